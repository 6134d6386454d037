"""A mixture of experts whose experts fit no cache, to show on any machine what loading them costs.

Its weights are random and its answers nonsense. It routes as nano does: logits that nano's routers gave while decoding
questions replace its own, so that load and overlap are those of a trained model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from xshare import models
from xshare.engines.transformers import experts
from xshare.engines.transformers.decode import decode
from xshare.engines.transformers.engine import TransformersEngine
from xshare.engines.transformers.routers import find_routers

HIDDEN, WIDTH, LAYERS = 1024, 2048, 1  # 25 MB per expert in float32, 1.6 GB per layer of 64


def large_engine(texts: Sequence[str], steps: int, hidden: int = HIDDEN, width: int = WIDTH) -> TransformersEngine:
    """The model as an engine, for batches of as many prompts as there are `texts`. Nano decodes the texts for `steps`
    steps, whose routing the model repeats."""
    nano, tokenizer = models.load("nano")
    logits = record_logits(nano, [tokenizer(text).input_ids for text in texts], steps)
    model = build(nano.config.num_experts, nano.config.num_experts_per_tok, hidden, width)
    ReplacedLogits(model, logits)
    return TransformersEngine(model, NoTokenizer(), "large")


def build(num_experts: int, top_k: int, hidden: int = HIDDEN, width: int = WIDTH, layers: int = LAYERS) -> Any:
    """The model in float32. Each loaded expert is read once: by compiled code with Numba, else Transformers' loop."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 128),
        num_key_value_heads=1,
        head_dim=64,
        num_experts=num_experts,
        num_experts_per_tok=top_k,
        moe_intermediate_size=width,
        norm_topk_prob=True,
        experts_implementation="eager",
    )
    with torch.device("meta"):
        model = Qwen3MoeForCausalLM(config)
    model = model.to_empty(device="cpu").eval()
    numbers = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)) * 0.02
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1)
            else:  # the same numbers again and again: only their addresses matter
                flat = parameter.view(-1)
                for start in range(0, len(flat), len(numbers)):
                    flat[start : start + len(numbers)] = numbers[: len(flat) - start]
        for name, buffer in model.named_buffers():
            if name.endswith("inv_freq"):
                buffer.copy_(1 / 10000 ** (torch.arange(0, 64, 2) / 64))
    experts.use(model)
    return model


class ReplacedLogits:
    """Replaces a model's logits by recorded ones, in every decode step."""

    def __init__(self, model: Any, logits: Tensor) -> None:
        """`logits` [steps, layers, rows, N]. A model with fewer layers goes through the recorded ones, one per step."""
        self.logits, self.step = logits, -1
        model.model.register_forward_pre_hook(self._begin, with_kwargs=True)
        for number, layer in enumerate(model.model.layers):
            layer.mlp.gate.register_forward_hook(self._hook(number))

    def _begin(self, module: Any, args: Any, kwargs: Any) -> None:
        cache = kwargs.get("past_key_values")
        decoding = cache is not None and int(cache.get_seq_length()) > 0
        self.step = self.step + 1 if decoding else -1  # after a prompt, the next step is the first

    def _hook(self, layer: int) -> Any:
        def replace(module: Any, args: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            if self.step < 0:
                return output
            recorded = self.logits[
                self.step % len(self.logits), (layer + self.step) % self.logits.shape[1]
            ]  # [rows, N]
            rows = torch.arange(len(output[0])) % len(recorded)
            logits = recorded[rows]
            weights, ids = logits.softmax(-1).topk(module.top_k, dim=-1)
            return logits, weights / weights.sum(-1, keepdim=True), ids

        return replace


def record_logits(model: Any, prompts: Sequence[Sequence[int]], steps: int) -> Tensor:
    """A model's router logits while it decodes these prompts, [steps, layers, rows, N]."""
    _, routers = find_routers(model)
    seen: list[Tensor] = []
    hooks = [r.module.register_forward_hook(lambda module, args, output: seen.append(output[0])) for r in routers]
    try:
        decode(model, prompts, ends=-1, limit=steps + 1, batch=len(prompts))
    finally:
        for hook in hooks:
            hook.remove()
    decoded = [logits.float() for logits in seen if len(logits) == len(prompts)]
    return torch.stack(decoded[-steps * len(routers) :]).view(steps, len(routers), len(prompts), -1)


class NoTokenizer:
    """Stands in for a tokenizer: tokens have no text."""

    eos_token_id = -1

    def batch_decode(self, tokens: Sequence[Sequence[int]], skip_special_tokens: bool = True) -> list[str]:
        return [""] * len(tokens)
