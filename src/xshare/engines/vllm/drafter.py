"""A drafter that always drafts: exactly L tokens for every request, at no cost, for benchmarks and tests.

    speculative_config={
        "method": "custom_class",
        "model": "xshare.engines.vllm.drafter.FixedDrafter",
        "num_speculative_tokens": 3,
    }

Which tokens is decided by the engine's seed and the request's last token, so that a run repeats. They lie in the last
token's block of ids, whose routing the load format `xshare_dummy` makes alike, as that of real drafts is. On a GPU add
`"rejection_sample_method": "synthetic"` and an acceptance length, and say beside the numbers that it measures speed.
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
        """vLLM asks every drafter; there is nothing to load."""

    def propose(self, sampled_token_ids: list[list[int]], *args: Any, **kwargs: Any) -> list[list[int]]:
        """Drafts for each request, none for one whose prompt is not through and that has no token to follow."""
        return [self._draft(tokens[-1]) if len(tokens) else [] for tokens in sampled_token_ids]

    def _draft(self, last: int) -> list[int]:
        start = min(last, self.vocab - 1) // BLOCK * BLOCK
        size = min(BLOCK, self.vocab - start)
        state = self.seed * GOLDEN + last
        return [start + mix64(state + i * 0x632BE59BD9B4E019) % size for i in range(1, self.length + 1)]
