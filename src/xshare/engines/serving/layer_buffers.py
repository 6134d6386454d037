"""The memory of layers with the same number of experts and the same rule: S of every step, the logits of sampled ones.

It is allocated for all of them together, so that one pass counts them all. Each layer gets its part when it is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from xshare.batch import BatchLayout, Placement
from xshare.engines.counters import FIGURES
from xshare.engines.serving.site import Site
from xshare.policy import Policy
from xshare.router import RouterSpec
from xshare.routing import fit_layout, prepare_step, route_prepared

ACTIVE, MASS = FIGURES.index("experts_active"), FIGURES.index("mass_kept")


@dataclass(frozen=True)
class Buffers:
    """One layer's part."""

    keep: Tensor  # bool [N], S of the last step
    seen: Tensor | None  # float32 [rows, N], the logits of a sampled step; None where nothing is sampled


class LayerGroup:
    """Layers with the same number of experts and the same rule."""

    def __init__(self, places: list[int], sites: list[Site], rows: int, device: torch.device, sampled: bool) -> None:
        """`places`: the positions of these layers among all."""
        self.places, self.sites = places, sites
        L, N = len(sites), sites[0].num_experts
        self.keep = torch.ones(L, N, dtype=torch.bool, device=device)  # [L, N]
        # float32 holds any engine's logits exactly.
        self.seen = torch.zeros(L, rows, N, device=device) if sampled else None  # [L, R, N]
        biases = [site.router.correction_bias for site in sites if site.router.correction_bias is not None]
        self.bias = torch.stack(biases).float() if biases else torch.zeros(L, N, device=device)
        self.router = sites[0].router.with_bias(self.bias if biases else None)

    def buffers(self) -> dict[int, Buffers]:
        """Each layer's buffers, by its position among all layers."""
        seen = [None] * len(self.sites) if self.seen is None else list(self.seen)
        return {place: Buffers(*pair) for place, *pair in zip(self.places, self.keep, seen, strict=True)}

    def placement(self) -> Placement | None:
        """Read at every call: an engine may move experts."""
        placements = [site.placement for site in self.sites if site.placement is not None]
        if not placements:
            return None
        return Placement(torch.stack([placement.devices for placement in placements]), placements[0].num_devices)

    def add_protected(self, rows: int, marks: Tensor, sums: Tensor, apart: Tensor) -> None:
        """Add two figures of a sampled step to `apart`, float64 [2, all layers]: the experts loaded for protected rows
        only, and how much larger the kept share of weight is over all rows than over unprotected ones. `marks` [rows]
        is nonzero at protected rows. `sums` gives the shape of the figures, as in `add`."""
        assert self.seen is not None
        # Rows of NaN are not counted.
        unprotected = torch.where(marks[None, :, None] != 0, torch.nan, self.seen[:, :rows])
        counts = torch.zeros(2, *sums.shape, dtype=sums.dtype, device=sums.device)
        for count, seen in zip(counts, (self.seen[:, :rows], unprotected), strict=True):
            self._count(seen.contiguous(), rows, count)
        apart += (counts[0] - counts[1])[[ACTIVE, MASS]]

    def add(self, rows: int, sums: Tensor) -> None:
        """Add a sampled step of that many voting rows to `sums`, float64 [figures, all layers]."""
        assert self.seen is not None
        self._count(self.seen, rows, sums)

    def _count(self, seen: Tensor, rows: int, sums: Tensor) -> None:
        placement = self.placement()
        if not seen.is_cuda:
            layout = BatchLayout.one_per_row(rows)  # requests do not matter: S is given
            sums[:, self.places] += figures(seen[:, :rows], self.keep, self.router, layout, placement)
            return
        from xshare.kernels.sampled_layers import Sampled

        group_sums = sums if len(self.places) == sums.shape[1] else sums[:, self.places].contiguous()
        sampled = Sampled(
            seen=seen,
            keep=self.keep,
            router=self.router,
            bias=self.bias,
            devices=(torch.zeros_like(self.bias) if placement is None else placement.devices).int(),
            num_devices=1 if placement is None else placement.num_devices,
        )
        sampled.count(rows, group_sums)
        if group_sums is not sums:
            sums[:, self.places] = group_sums


def group_layers(sites: Sequence[Site], rows: int, device: torch.device, sampled: bool) -> list[LayerGroup]:
    """All layers, grouped by number of experts, rule and whether experts are spread over devices."""
    kinds: dict[Any, list[int]] = {}
    for place, site in enumerate(sites):
        rule = replace(site.router, correction_bias=None)
        kinds.setdefault((site.num_experts, repr(rule), site.placement is None), []).append(place)
    return [LayerGroup(places, [sites[place] for place in places], rows, device, sampled) for places in kinds.values()]


def figures(
    logits: Tensor, keep: Tensor, router: RouterSpec, layout: BatchLayout, placement: Placement | None
) -> Tensor:
    """The figures of one step per layer, float64 [figures, L], from the logits [L, n, N] and S [L, N]."""
    layout, placement = fit_layout(logits, layout, placement)
    routing = route_prepared(
        prepare_step(logits, router, layout, placement), router, Policy(method="native"), keep=keep
    )
    experts = (routing.active_native.sum(-1), keep.sum(-1), routing.active.sum(-1))
    counts = (*experts, routing.mass, routing.below_half, routing.smallest_kept, routing.max_load)
    return torch.stack([count.double() for count in counts])
