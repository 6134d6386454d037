"""Finds the MoE layers that can be served, and logs why the others cannot."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from xshare.engines.counters import layer_numbers
from xshare.engines.serving.layer_facts import Facts
from xshare.engines.serving.settings import Settings, SettingsError
from xshare.engines.vllm.compatibility import verification
from xshare.engines.vllm.hooks import mode_of
from xshare.engines.vllm.pipeline_stages import gather_stages
from xshare.engines.vllm.routers import placement_of, router_of
from xshare.engines.vllm.site import Site

log = logging.getLogger("vllm.xshare")


@dataclass(frozen=True)
class Layers:
    sites: list[Site]  # of this pipeline stage, which may have none
    model: list[Facts]  # of all stages, in the model's order


class Outcome(NamedTuple):
    """Whether a layer is served; exactly one field is set."""

    facts: Facts | None = None  # of a layer that is served
    skipped: str | None = None  # why a layer that was asked for is not served
    refused: str | None = None  # why the engine cannot start


def find_layers(model: Any, settings: Settings, device: torch.device) -> Layers:
    """Every MoE layer that can be served. The log has a line for each layer, served or not."""
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    runners = {name: module for name, module in model.named_modules() if isinstance(module, MoERunner)}
    names = gather_stages(list(runners))  # of all stages, in the model's order
    numbers = layer_numbers(names)
    sites: list[Site] = []
    own_outcomes: list[Outcome] = []
    for place, (number, name) in enumerate(zip(numbers, names, strict=True)):
        if name not in runners:
            continue
        wanted = settings.layers is None or place in settings.layers
        try:
            site = _site(settings, device, number, name, runners[name]) if wanted else "not among the layers asked for"
        except SettingsError as error:  # the other stages wait in gather_stages, and must refuse too
            own_outcomes.append(Outcome(refused=str(error)))
            continue
        if isinstance(site, Site):
            sites.append(site)
            own_outcomes.append(Outcome(Facts.of(site)))
            mode = mode_of(site, settings.policy, device)
            log.info("xshare: %s attached (%s path, %s), %s", name, site.path, mode, verification())
        else:
            log.warning("xshare: %s skipped: %s", name, site)
            if wanted:
                own_outcomes.append(Outcome(skipped=f"{name} ({site})"))
    outcomes: list[Outcome] = gather_stages(own_outcomes)
    _check_outcomes(outcomes, settings, len(names))
    return Layers(sites, [outcome.facts for outcome in outcomes if outcome.facts is not None])


def _check_outcomes(outcomes: list[Outcome], settings: Settings, layers: int) -> None:
    """Refuse a model in which selection cannot follow the settings."""
    if refused := [outcome.refused for outcome in outcomes if outcome.refused is not None]:
        raise SettingsError(refused[0])
    if settings.layers is not None and (beyond := [n for n in settings.layers if not 0 <= n < layers]):
        raise SettingsError(f"layers in xshare names {beyond}, and the model has MoE layers 0 to {layers - 1}")
    skipped = [outcome.skipped for outcome in outcomes if outcome.skipped is not None]
    if skipped and settings.strict:
        raise SettingsError(f"strict in xshare refuses a model with layers it cannot serve: {'; '.join(skipped)}")
    if not any(outcome.facts for outcome in outcomes):
        why = f"it skipped all {layers}: {skipped[0]}" if skipped else "the model has no MoE layer"
        raise SettingsError(f"xshare has no layer to act on, because {why}; remove the xshare key to serve this model")


def _site(settings: Settings, device: torch.device, number: int, name: str, runner: Any) -> Site | str:
    """One layer, or why it cannot be served."""
    router = router_of(runner.router)
    if isinstance(router, str):
        return router
    moe = runner.moe_config
    num_experts = int(getattr(moe, "num_logical_experts", 0) or moe.num_experts)
    site = Site(number, name, runner, router, num_experts, placement_of(runner, num_experts, device))
    if reason := site.unservable(settings.policy, device):
        return reason
    if settings.policy.warmup > num_experts:
        raise SettingsError(f"warmup (k0) in xshare must be at most {num_experts}, the experts of {name}")
    return site
