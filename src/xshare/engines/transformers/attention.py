"""Attention on the CPU that reads the keys and values which several heads share as they lie in the cache.

With a mask, Transformers first copies them for every head, and in a decode step that takes longer than attention does.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

THEIRS, OURS = "sdpa", "xshare_sdpa"


def shared_sdpa(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Query [sequences, heads, new, d], key and value [sequences, fewer heads, cached, d] -> [sequences, new, heads, d]

    Elsewhere than on the CPU no fast kernel takes shared heads and a mask, and Transformers' own runs.
    """
    shared = key.shape[1] < query.shape[1] and key.device.type == "cpu"
    if attention_mask is None or not shared or module.training or options.get("position_bias") is not None:
        theirs: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return theirs
    sequences, heads, new, d = query.shape
    if new == 1 and attention_mask.shape[1] == 1:  # as if the heads that share were new tokens: twice as fast
        query = query.reshape(sequences, key.shape[1], -1, d)
    found = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=options.get("scaling"), enable_gqa=True
    )
    return found.reshape(sequences, heads, new, -1).transpose(1, 2).contiguous(), None


def share(model: Any, on: bool = True) -> None:
    """Put it to work on a model in place of Transformers' own, or take it back. Other attention is left alone."""
    AttentionInterface.register(OURS, shared_sdpa)
    AttentionMaskInterface.register(OURS, sdpa_mask)
    before, after = (THEIRS, OURS) if on else (OURS, THEIRS)
    if model.config._attn_implementation == before:
        model.set_attn_implementation(after)
