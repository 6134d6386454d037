"""Active experts layer by layer: rows of one layer each, or rows that list all layers."""

from __future__ import annotations

from typing import Any

from xshare.report.axis import Axis
from xshare.report.chart import COLOURS, Chart, Series
from xshare.report.labels import policy_label, printable
from xshare.results import Row
from xshare.results.columns import number

Layers = dict[str, dict[float, float]]  # policy -> layer -> active experts
NATIVE = "native"
MOST = 1 + COLOURS  # lines of a plot: more nobody tells apart


def by_layer(rows: list[Row]) -> Layers:
    """What each policy loads in each layer, and what native routing loads there; empty if no row says."""
    found: Layers = {}
    native: dict[float, float] = {}
    for row in rows:
        mine = found.setdefault(str(row.get("policy", "all rows")), {})
        for active, beside, layer in _values(row):
            if active is not None:
                mine[layer] = active
            if beside is not None:
                native[layer] = beside
    native = found.get(NATIVE) or native  # its own, or what would have been loaded in the steps of another
    others = {policy: layers for policy, layers in found.items() if policy != NATIVE and layers}
    return ({NATIVE: native} if native else {}) | others


def _values(row: Row) -> list[tuple[float | None, float | None, float]]:
    """(active, native, layer) of one row."""
    layer = number(row.get("layer"))
    if layer is not None:
        return [(number(row.get("active")), number(row.get("active_native")), layer)]
    active, native = (_listed(row.get(name)) for name in ("experts_active", "experts_native"))
    longest = max(len(active), len(native))
    both = [values + [None] * (longest - len(values)) for values in (active, native)]
    return [(a, n, float(place)) for place, (a, n) in enumerate(zip(*both, strict=True))]


def _listed(value: Any) -> list[float | None]:
    return [number(item) for item in value] if isinstance(value, list) else []


def chart(layers: Layers) -> Chart:
    series = []
    for look, (policy, values) in enumerate(layers.items()):
        x, y = zip(*((3 * (layer,), 3 * (active,)) for layer, active in sorted(values.items())), strict=True)
        series.append(Series(printable(policy_label(policy), 200), x, y, None if policy == NATIVE else look, line=True))
    return Chart(Axis("layer"), Axis("experts loaded", zero=True), series)
