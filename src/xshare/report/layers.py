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
MOST = 1 + COLOURS  # lines per plot: more could not be told apart


def by_layer(rows: list[Row]) -> Layers:
    """Experts that native routing and each policy load in each layer; empty if no row tells."""
    by_policy: Layers = {}
    native: dict[float, float] = {}
    for row in rows:
        active_by_layer = by_policy.setdefault(str(row.get("policy", "all rows")), {})
        for active, active_native, layer in _values(row):
            if active is not None:
                active_by_layer[layer] = active
            if active_native is not None:
                native[layer] = active_native
    native = by_policy.get(NATIVE) or native  # native's own rows, or the native count in the steps of a policy
    others = {policy: layers for policy, layers in by_policy.items() if policy != NATIVE and layers}
    return ({NATIVE: native} if native else {}) | others


def _values(row: Row) -> list[tuple[float | None, float | None, float]]:
    """(active, native, layer) for each layer that a row tells of."""
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
