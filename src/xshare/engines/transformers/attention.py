"""Attention that reads shared keys and values (GQA) in place, from the cache.

With a mask, Transformers first copies them for every query head. In a decode step the copy takes longer than attention.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

THEIRS, OURS = "sdpa", "xshare_sdpa"
FEW = 8  # new tokens per sequence that a decode step with drafts may have; a prompt's mask would be too large to repeat


def shared_sdpa(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Query [sequences, heads, new, d], key and value [sequences, fewer heads, cached, d] -> [sequences, new, heads, d]

    Only the CPU's kernels take shared heads together with a mask. On other devices decode steps are folded, and
    prompts are left to Transformers.
    """
    mask, new, on_cpu = attention_mask, query.shape[2], key.device.type == "cpu"
    foldable = mask is not None and mask.shape[1] == 1 and new <= (1 if on_cpu else FEW)
    shared = key.shape[1] < query.shape[1] and (on_cpu or foldable)
    if mask is None or not shared or module.training or options.get("position_bias") is not None:
        theirs: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, **options)
        return theirs
    if foldable:
        output = folded(query, key, value, mask, options.get("scaling"))
    else:
        output = scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=options.get("scaling"), enable_gqa=True
        )
    return output.transpose(1, 2).contiguous(), None


def folded(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    """Attention in which the heads that share keys count as new tokens of one head: twice as fast on the CPU. Mask
    [sequences, 1, new, cached] -> [sequences, heads, new, d]"""
    sequences, heads, new, d = query.shape
    query = query.reshape(sequences, key.shape[1], -1, d)  # a head's new tokens, then the next head's
    if new > 1:
        mask = mask.repeat(1, 1, heads // key.shape[1], 1)
    output: Tensor = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return output.reshape(sequences, heads, new, -1)


def share(model: Any, on: bool = True) -> None:
    """Use it in a model in place of Transformers' SDPA, or restore that. Other attention is left alone."""
    AttentionInterface.register(OURS, shared_sdpa)
    AttentionMaskInterface.register(OURS, sdpa_mask)
    before, after = (THEIRS, OURS) if on else (OURS, THEIRS)
    if model.config._attn_implementation == before:
        model.set_attn_implementation(after)
