"""Builds one worker's State: the policy, the step, the buffers and the layers, none of them attached yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from xshare.engines.gates import Tally
from xshare.engines.serving.compiled import Compiled
from xshare.engines.serving.joint_state import JointState
from xshare.engines.serving.layer_buffers import LayerGroup, group_layers
from xshare.engines.serving.layer_facts import Facts
from xshare.engines.serving.metrics import Samples
from xshare.engines.serving.ranks import Ranks
from xshare.engines.serving.settings import Settings
from xshare.engines.serving.site import Site
from xshare.engines.serving.state import Attached, State
from xshare.engines.serving.step import Step
from xshare.engines.serving.step_sizes import Sizes
from xshare.kernels.control import Control
from xshare.policy import Policy
from xshare.profile import read_profile
from xshare.staircase import Stairs

AnySite = TypeVar("AnySite", bound=Site, contravariant=True)


class MakesLayers(Protocol[AnySite]):
    """The engine's function that makes a layer per site, with the buffers that its group has for it. `ranks`: the
    data-parallel ranks that choose one set together."""

    def __call__(
        self,
        sites: Sequence[AnySite],
        policy: Policy,
        groups: Sequence[LayerGroup],
        step: Step,
        sizes: Sizes,
        tally: Tally,
        compiled: Compiled,
        ranks: Ranks | None,
    ) -> Sequence[Attached]: ...


def has_kernels(device: torch.device) -> bool:
    """Whether the fused kernels select on this device; a Control then tells them of every step."""
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
    """One worker's state, with layers that are not attached yet. `stairs` must have been checked against this machine.
    `model`: the layers of all pipeline stages; None where `sites` are all of them. `make_ranks` returns the ranks that
    choose one set together, or None."""
    all_layers = [Facts.of(site) for site in sites] if model is None else model
    numbers, top_k = [layer.number for layer in all_layers], max(layer.top_k for layer in all_layers)
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
        say_what_costs_are_known(stairs, settings, sizes, log)
    groups = group_layers(sites, sizes.buckets[-1], device, sampled=settings.metrics.on)
    # With the rows of other ranks, a step of any size may be acted on.
    every_size = settings.at_every_size or ranks is not None
    compiled = Compiled.of(settings, policy, numbers, top_k, sizes.num_spec_tokens, every_size)
    layers = make_layers(sites, policy, groups, now, sizes, tally, compiled, ranks)
    samples = Samples(groups, device) if settings.metrics.on else None
    parts = settings, policy, layers, now, sizes, tally, samples, stairs, all_layers
    state = State(*parts) if ranks is None else JointState(*parts, ranks=ranks)
    if ranks is None and state.why_not(True, sizes.max_rows) == "within_budget":
        log.warning(
            "xshare: %s can never act here: %d rows of top-%d load no more than the budget", policy, sizes.max_rows,
            top_k,
        )  # fmt: skip
    return state


def say_what_costs_are_known(stairs: Stairs, settings: Settings, sizes: Sizes, log: logging.Logger) -> None:
    """Log how large the steps are that sets are weighed in, and what else is to be known of the staircase."""
    known, most = stairs.rows[-1], sizes.max_rows
    beyond = f"; in larger ones, of up to {most} rows here, no cost counts" if most > known else ""
    log.info(
        "xshare: sizes of sets are weighed by what they cost here: %s, in steps of up to %d rows%s", settings.cost,
        known, beyond,
    )  # fmt: skip
    for note in stairs.notes():
        log.warning("xshare: %s", note)
