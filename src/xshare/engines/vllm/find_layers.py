"""The MoE layers of a model that can be served, and a word about each of the others."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from xshare.engines.counters import layer_numbers
from xshare.engines.serving.layer_facts import Facts
from xshare.engines.serving.settings import Settings, SettingsError
from xshare.engines.vllm.compatibility import verified
from xshare.engines.vllm.hooks import mode_of
from xshare.engines.vllm.pipeline_stages import told_by_all
from xshare.engines.vllm.routers import placement_of, router_of
from xshare.engines.vllm.site import Site

log = logging.getLogger("vllm.xshare")


@dataclass(frozen=True)
class Layers:
    sites: list[Site]  # this stage's: it may have none
    model: list[Facts]  # the whole model's, in its order


class Outcome(NamedTuple):
    """What became of a layer."""

    facts: Facts | None = None  # it is served
    skipped: str | None = None  # it was asked for and cannot be
    refused: str | None = None  # the engine cannot start with it


def find_layers(model: Any, settings: Settings, device: torch.device) -> Layers:
    """Every MoE layer that can be served; the log says of each what became of it."""
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    runners = {name: module for name, module in model.named_modules() if isinstance(module, MoERunner)}
    names = told_by_all(list(runners))  # the model's, in its order
    numbers = layer_numbers(names)
    sites: list[Site] = []
    here: list[Outcome] = []
    for place, (number, name) in enumerate(zip(numbers, names, strict=True)):
        if name not in runners:
            continue
        wanted = settings.layers is None or place in settings.layers
        try:
            found = _site(settings, device, number, name, runners[name]) if wanted else "not among the layers asked for"
        except SettingsError as error:  # the other stages have to hear of it
            here.append(Outcome(refused=str(error)))
            continue
        if isinstance(found, Site):
            sites.append(found)
            here.append(Outcome(Facts.of(found)))
            mode = mode_of(found, settings.policy, device)
            log.info("xshare: %s attached (%s path, %s), %s", name, found.path, mode, verified())
        else:
            log.warning("xshare: %s skipped: %s", name, found)
            if wanted:
                here.append(Outcome(skipped=f"{name} ({found})"))
    outcomes: list[Outcome] = told_by_all(here)
    _check(outcomes, settings, len(names))
    return Layers(sites, [each.facts for each in outcomes if each.facts is not None])


def _check(outcomes: list[Outcome], settings: Settings, layers: int) -> None:
    """Refuse a model in which selection cannot be as the settings say."""
    if refused := [each.refused for each in outcomes if each.refused is not None]:
        raise SettingsError(refused[0])
    if settings.layers is not None and (beyond := [n for n in settings.layers if not 0 <= n < layers]):
        raise SettingsError(f"layers in xshare names {beyond}, and the model has MoE layers 0 to {layers - 1}")
    skipped = [each.skipped for each in outcomes if each.skipped is not None]
    if skipped and settings.strict:
        raise SettingsError(f"strict in xshare refuses a model with layers it cannot serve: {'; '.join(skipped)}")
    if not any(each.facts for each in outcomes):
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
