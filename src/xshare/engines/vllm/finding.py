"""The MoE layers of a model that can be served, and a word about each of the others."""

from __future__ import annotations

import logging
from typing import Any

import torch

from xshare.engines.counting import layer_numbers
from xshare.engines.serving.settings import Settings, SettingsError
from xshare.engines.vllm.compatibility import verified
from xshare.engines.vllm.hooks import mode_of
from xshare.engines.vllm.routers import placement_of, router_of
from xshare.engines.vllm.site import Site

log = logging.getLogger("vllm.xshare")


def find_sites(model: Any, settings: Settings, device: torch.device) -> list[Site]:
    """Every MoE layer that can be served; the log says of each what became of it."""
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    runners = [(name, module) for name, module in model.named_modules() if isinstance(module, MoERunner)]
    numbers = layer_numbers([name for name, _ in runners])
    sites, skipped = [], []
    for place, (number, (name, runner)) in enumerate(zip(numbers, runners, strict=True)):
        wanted = settings.layers is None or place in settings.layers
        found = _site(settings, device, number, name, runner) if wanted else "not among the layers asked for"
        if isinstance(found, Site):
            sites.append(found)
            mode = mode_of(found, settings.policy, device)
            log.info("xshare: %s attached (%s path, %s), %s", name, found.path, mode, verified())
        else:
            log.warning("xshare: %s skipped: %s", name, found)
            if wanted:
                skipped.append(f"{name} ({found})")
    if settings.layers is not None and (beyond := [n for n in settings.layers if not 0 <= n < len(runners)]):
        raise SettingsError(f"layers in xshare names {beyond}, and the model has MoE layers 0 to {len(runners) - 1}")
    if skipped and settings.strict:
        raise SettingsError(f"strict in xshare refuses a model with layers it cannot serve: {'; '.join(skipped)}")
    if not sites:
        why = f"it skipped all {len(runners)}: {skipped[0]}" if skipped else "the model has no MoE layer"
        raise SettingsError(f"xshare has no layer to act on, because {why}; remove the xshare key to serve this model")
    return sites


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
