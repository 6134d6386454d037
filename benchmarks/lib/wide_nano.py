"""nano with experts large enough to take a GPU time: the same function in a larger model, padded with zero weights.

Every matrix is the corner of a larger one. The residual stream gets further dimensions that stay zero. A norm then
averages over `times` as many dimensions, so its weight is divided by the root of `times` and its epsilon by `times`;
`times` is a power of four, so the root is exact in any float. Routers see the same logits, up to the order of sums. A
step reads all of the larger experts, zeros included: it takes as long as in a model of that size, and answers as nano.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from xshare import models

LOAD_FORMAT = "nano_wide"
INTO = (
    "o_proj.weight",
    "down_proj.weight",
)  # their rows are dimensions of the stream; of all other matrices the columns are
APART = ("q_norm.weight", "k_norm.weight")  # norms of a head, whose size does not change


def write_config(folder: Path, times: int, width: int) -> Path:
    """Write nano's configuration and tokenizer for a stream of `times` as many dimensions and experts of `width`."""
    if times < 1 or math.log(times, 4) % 1:
        raise ValueError(f"times must be a power of four, not {times}")
    nano = models.folder("nano")
    config = json.loads((nano / "config.json").read_text())
    config |= {"hidden_size": config["hidden_size"] * times, "moe_intermediate_size": width}
    config["rms_norm_eps"] /= times
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for file in nano.glob("*token*.json"):
        shutil.copy(file, folder)
    for file in nano.glob("generation_config.json"):
        shutil.copy(file, folder)
    return folder


def widened(config: Any, device: torch.device | str = "cpu") -> Iterator[tuple[str, Tensor]]:
    """nano's tensors by name, padded for that configuration."""
    hidden, width = config.hidden_size, config.moe_intermediate_size
    for file in sorted(models.folder("nano").glob("*.safetensors")):
        with safe_open(str(file), "pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (it is no dictionary)
                yield name, _wide(name, opened.get_tensor(name).to(device), hidden, width)


def _wide(name: str, tensor: Tensor, hidden: int, width: int) -> Tensor:
    if name.endswith(APART):
        return tensor
    if tensor.ndim == 1:
        wide = tensor.new_zeros(hidden)
        wide[: len(tensor)] = tensor / math.sqrt(hidden / len(tensor))
        return wide
    rows, columns = tensor.shape
    into = name.endswith(INTO)
    shape = (hidden, columns) if into else (rows, hidden)
    if ".experts." in name:
        shape = (hidden, width) if into else (width, hidden)
    wide = tensor.new_zeros(shape)
    wide[:rows, :columns] = tensor
    return wide


def register() -> None:
    """Register LOAD_FORMAT with vLLM in this process."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    class Wide(BaseModelLoader):  # type: ignore[misc]
        def download_model(self, model_config: Any) -> None:
            """Nothing to download: the weights are in the package."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            model.load_weights(widened(model_config.hf_config, next(model.parameters()).device))

    register_model_loader(LOAD_FORMAT)(Wide)
