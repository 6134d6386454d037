"""Finds the MoE layers that can be served, and logs why the others cannot."""

from __future__ import annotations

import logging
from typing import Any

import torch

from xshare.engines.counters import layer_numbers
from xshare.engines.serving.settings import Settings, SettingsError
from xshare.engines.sglang.compatibility import verification
from xshare.engines.sglang.routers import output_format, placement_of, router_of
from xshare.engines.sglang.settings import VARIABLE
from xshare.engines.sglang.site import Site

log = logging.getLogger("xshare.sglang")


def find_layers(model: Any, settings: Settings, device: torch.device) -> list[Site]:
    """Every MoE layer that can be served. The log has a line for each layer, served or not."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    modules = [(name, module) for name, module in model.named_modules() if isinstance(module, FusedMoE)]
    numbers = layer_numbers([name for name, _ in modules])
    sites, skipped = [], []
    for place, (number, (name, experts)) in enumerate(zip(numbers, modules, strict=True)):
        wanted = settings.layers is None or place in settings.layers
        site = _site(settings, device, number, name, experts, model) if wanted else "not among the layers asked for"
        if isinstance(site, Site):
            sites.append(site)
            log.info("xshare: %s attached (%s, %s), %s", name, site.format, site.mode(settings.policy), verification())
        else:
            log.warning("xshare: %s skipped: %s", name, site)
            if wanted:
                skipped.append(f"{name} ({site})")
    if settings.layers is not None and (beyond := [n for n in settings.layers if not 0 <= n < len(modules)]):
        raise SettingsError(f"layers in xshare names {beyond}, and the model has MoE layers 0 to {len(modules) - 1}")
    if skipped and settings.strict:
        raise SettingsError(f"strict in xshare refuses a model with layers it cannot serve: {'; '.join(skipped)}")
    if not sites:
        why = f"it skipped all {len(modules)}: {skipped[0]}" if skipped else "the model has no MoE layer"
        raise SettingsError(f"xshare has no layer to act on, because {why}; unset {VARIABLE} to serve this model")
    return sites


def _site(settings: Settings, device: torch.device, number: int, name: str, experts: Any, model: Any) -> Site | str:
    """One layer, or why it cannot be served."""
    from sglang.srt.layers.moe.topk import TopK

    parent = model.get_submodule(name.rpartition(".")[0])
    routers = [module for module in parent.children() if "TopK" in type(module).__name__]
    topk = routers[0] if len(routers) == 1 else None
    if topk is not None and type(topk).__name__ == "HashTopK":
        return "its experts come from a table of token ids (hash routing)"
    if not isinstance(topk, TopK):
        return "its routing does not pass through SGLang's TopK"
    router = router_of(topk)
    if isinstance(router, str):
        return router
    num_experts = int(experts.num_experts)
    placement = placement_of(experts, num_experts, device)
    site = Site(number, name, topk, experts, router, num_experts, placement, output_format(topk, device))
    if reason := site.unservable(settings.policy, device):
        return reason
    if settings.policy.warmup > num_experts:
        raise SettingsError(f"warmup (k0) in xshare must be at most {num_experts}, the experts of {name}")
    return site
