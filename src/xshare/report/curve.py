"""Active experts against batch size, beside the closed form for independent uniform routing."""

from __future__ import annotations

from collections.abc import Iterator

from xshare.report.axis import Axis
from xshare.report.chart import Chart, Series
from xshare.report.conditions import Regime, by_regime
from xshare.report.labels import Value, policy_label, printable, value
from xshare.report.result_files import ResultFile
from xshare.results import Row
from xshare.results.columns import number

Point = tuple[float, Value, float]  # requests, active experts, closed form
Curves = dict[str, list[Point]]  # by policy


def curves(file: ResultFile) -> Iterator[tuple[Regime, Curves]]:
    """The curves of a file, by regime."""
    whole = [row for row in file.rows if "closed_form" in row and row.get("layer") is None]
    for regime, rows in by_regime(file, whole, but="batch"):
        by_policy: Curves = {}
        for row in rows:
            if (point := _point(row)) is not None:
                by_policy.setdefault(str(row.get("policy", "all rows")), []).append(point)
        if by_policy:
            yield regime, {policy: sorted(points) for policy, points in by_policy.items()}


def _point(row: Row) -> Point | None:
    """The point of a row; None if a value is missing."""
    batch, active, closed = number(row.get("batch")), value(row, "active"), number(row.get("closed_form"))
    return None if batch is None or batch < 1 or active is None or closed is None else (batch, active, closed)


def chart(by_policy: Curves) -> Chart:
    closed = sorted({(batch, form) for points in by_policy.values() for batch, _, form in points})
    x, y = zip(*((3 * (batch,), 3 * (form,)) for batch, form in closed), strict=True)
    series = [Series("independent uniform choices", x, y, line=True)]
    for look, (policy, points) in enumerate(by_policy.items()):
        batches = [3 * (batch,) for batch, _, _ in points]
        series.append(
            Series(printable(policy_label(policy), 200), batches, [active for _, active, _ in points], look, line=True)
        )
    return Chart(Axis("requests in the batch", doubling=True), Axis("experts loaded per layer", zero=True), series)
