"""Random weights that route as a trained model does, in SGLang: a plugin for benchmarks alone.

SGLang's own dummy weights are so small that a router's scores are nearly equal. `write_plugin` makes a folder from
which SGLang loads this module beside XShare. The module then fills the weights of `--load-format dummy` by the rules of
vLLM's `xshare_dummy` (xshare.engines.vllm.dummy_weights). Such weights measure speed, not quality.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lib.paths import python_path
from xshare.engines.vllm.dummy_weights import GROWTH, Weights, gaussian

VARIABLE = "XSHARE_DUMMY"  # the knobs of Weights, as JSON
ENTRY = "[sglang.srt.plugins]\nxshare_dummy = lib.sglang_dummy_weights:register\n"


def write_plugin(folder: Path, knobs: dict[str, float]) -> dict[str, str]:
    """Write the plugin's entry point into a folder -> the environment of a server that loads it, for such routing."""
    place = folder / "xshare_dummy-1.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: xshare-dummy\nVersion: 1\n")
    (place / "entry_points.txt").write_text(ENTRY)
    return {"PYTHONPATH": python_path(folder), VARIABLE: json.dumps(knobs)}


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.model_executor.model_runner.ModelRunner.load_model", load_and_fill, HookType.AROUND
    )


def load_and_fill(native: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    result = native(self, *args, **kwargs)
    fill(self.model, self.model_config.hf_text_config, Weights.of(json.loads(os.environ.get(VARIABLE, "{}"))))
    return result


def fill(model: nn.Module, config: Any, weights: Weights) -> None:
    layers, vocab = config.num_hidden_layers, config.vocab_size
    for name, parameter in model.named_parameters():
        fill_one(name, parameter.data, weights, layers, vocab)


def fill_one(name: str, data: Tensor, weights: Weights, layers: int, vocab: int) -> None:
    if "norm" in name:
        data.fill_(1)
    elif data.ndim < 2 or "bias" in name:
        data.zero_()
    elif "embed_tokens" in name:
        weights.fill_embedding(data, name, vocab)
    elif "lm_head" in name:
        weights.fill_head(data, name, vocab)
    elif name.endswith(("mlp.gate.weight", "mlp.router.weight")):
        weights.fill_router(data, name)
    else:
        # A layer adds little to the residual stream, so that every router sees its token's embedding.
        added = GROWTH / (2 * layers) if "o_proj" in name or ".w2_" in name else 1.0
        gaussian(data, math.sqrt(added / data.shape[-1]), weights.generator(name, data.device))
