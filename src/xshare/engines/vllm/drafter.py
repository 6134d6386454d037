"""A drafter that always drafts: exactly L tokens for every request, at no cost, for benchmarks and tests.

    speculative_config={
        "method": "custom_class",
        "model": "xshare.engines.vllm.drafter.FixedDrafter",
        "num_speculative_tokens": 3,
    }

The engine's seed and the request's last token decide which tokens are drafted, so that a run can be repeated. They lie
in the last token's block of ids: the load format `xshare_dummy` routes tokens of one block alike, as real drafts are
routed. On a GPU add `"rejection_sample_method": "synthetic"` and an acceptance length, and report the numbers as speed
only.
"""

from __future__ import annotations

from typing import Any

from xshare.engines.vllm.dummy_weights import BLOCK
from xshare.splitmix import GOLDEN, mix64


class FixedDrafter:
    def __init__(self, vllm_config: Any) -> None:
        self.length = int(vllm_config.speculative_config.num_speculative_tokens)
        self.vocab = int(vllm_config.model_config.get_vocab_size())
        self.seed = int(vllm_config.model_config.seed or 0)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """vLLM calls this on every drafter; there is nothing to load."""

    def propose(self, sampled_token_ids: list[list[int]], *args: Any, **kwargs: Any) -> list[list[int]]:
        """Drafts per request; none for a request in prefill, which has no token yet."""
        return [self._draft(tokens[-1]) if len(tokens) else [] for tokens in sampled_token_ids]

    def _draft(self, last: int) -> list[int]:
        start = min(last, self.vocab - 1) // BLOCK * BLOCK
        size = min(BLOCK, self.vocab - start)
        state = self.seed * GOLDEN + last
        return [start + mix64(state + i * 0x632BE59BD9B4E019) % size for i in range(1, self.length + 1)]
