"""The conditions under which an engine runs, by the names in a staircase's file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xshare.engines.cpu_name import cpu_name
from xshare.engines.serving.settings import SettingsError
from xshare.engines.sglang.compatibility import sglang_version
from xshare.engines.sglang.site import Site
from xshare.profile import model_hash


def staircase_conditions(runner: Any, sites: Sequence[Site]) -> dict[str, Any]:
    experts = {site.num_experts for site in sites}
    if len(experts) > 1:
        raise SettingsError(f"cost in xshare needs layers of as many experts each, and these have {sorted(experts)}")
    return {
        "engine": "sglang",
        "version": sglang_version(),
        "cpu": cpu_name() if runner.device == "cpu" else None,
        "dtype": str(runner.dtype).removeprefix("torch."),
        "config": model_hash(runner.model_config.hf_text_config),
        "tensor_parallel": runner.server_args.tp_size,
        "device": torch.cuda.get_device_name() if runner.device == "cuda" else str(runner.device),
        "backend": sites[0].backend,
        "experts": experts.pop(),
        "top_k": max(site.router.top_k for site in sites),
        "layers": len(sites),
    }
