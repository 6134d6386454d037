"""Everything that is there before a layer is touched, from what must be known first to what is made of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from xshare.engines.gates import Tally
from xshare.engines.serving.layer_buffers import Alike, alike
from xshare.engines.serving.layer_facts import Facts
from xshare.engines.serving.metrics import Samples
from xshare.engines.serving.ranks import Ranks
from xshare.engines.serving.settings import Settings
from xshare.engines.serving.site import Site
from xshare.engines.serving.state import Attached, State, rows_within
from xshare.engines.serving.step import Step
from xshare.engines.serving.step_sizes import Sizes
from xshare.kernels.control import Control
from xshare.kernels.limits import THRESHOLDS, thresholds_of
from xshare.policy import Policy
from xshare.profile import read_profile
from xshare.staircase import Stairs

AnySite = TypeVar("AnySite", bound=Site, contravariant=True)


class MakesLayers(Protocol[AnySite]):
    """An engine's own: a layer for each site, with the memory that its group has for it. `never_within`, `thresholds`:
    FusedSelector. `one_launch`: whether all of routing is done in the selection's launch, where that can be."""

    def __call__(
        self,
        sites: Sequence[AnySite],
        policy: Policy,
        groups: Sequence[Alike],
        step: Step,
        sizes: Sizes,
        tally: Tally,
        *,
        never_within: int,
        thresholds: frozenset[str],
        one_launch: bool,
        protects: bool,
        ranks: Ranks | None,
    ) -> Sequence[Attached]: ...


def has_kernels(device: torch.device) -> bool:
    """Whether the fused kernels select there, told of every step by a Control."""
    return device.type == "cuda"


def build_state(
    sites: Sequence[Any],
    settings: Settings,
    device: torch.device,
    sizes: Sizes,
    max_requests: int,
    stairs: Stairs | None,
    make_layers: MakesLayers[Any],
    log: logging.Logger,
    model: Sequence[Facts] | None = None,
    make_ranks: Callable[[Step], Ranks | None] = lambda step: None,
) -> State:
    """One worker's, with layers that are not attached yet. `stairs` were checked to be this machine's. `model`: the
    layers of all pipeline stages, None where these are all. `make_ranks`: those that choose together, if any."""
    whole = [Facts.of(site) for site in sites] if model is None else model
    numbers, top_k = [layer.number for layer in whole], max(layer.top_k for layer in whole)
    policy = settings.policy
    if settings.profile is not None:
        policy = read_profile(Path(settings.profile)).policy_on(numbers)
    control = None
    if has_kernels(device):
        control = Control(device, max_requests)
        control.set_policy(policy)
        control.push()
    now, tally = Step(device, control), Tally(log)
    ranks = make_ranks(now)
    if stairs is not None:
        now.costs = stairs.costs.to(device)
    groups = alike(sites, sizes.buckets[-1], device, sampled=settings.metrics.on)
    # Together with those of other ranks any number of rows may be acted on.
    never_within = 0 if settings.at_every_size or ranks is not None else rows_within(policy, numbers, top_k)
    thresholds = THRESHOLDS if settings.at_every_size else thresholds_of(policy.by_layer(numbers))
    layers = make_layers(
        sites, policy, groups, now, sizes, tally,
        never_within=never_within, thresholds=thresholds, one_launch=settings.one_launch,
        protects=settings.protect, ranks=ranks,
    )  # fmt: skip
    samples = Samples(groups, device) if settings.metrics.on else None
    state = State(settings, policy, layers, now, sizes, tally, samples, stairs, whole, ranks)
    if ranks is None and state.why_not(True, sizes.max_rows) == "within_budget":
        log.warning(
            "xshare: %s can never act here: %d rows of top-%d load no more than the budget", policy, sizes.max_rows,
            top_k,
        )  # fmt: skip
    return state
