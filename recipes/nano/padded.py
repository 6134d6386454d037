"""Experts for training on a CPU: every expert's tokens are filled up to a multiple of STEP.

oneDNN compiles a product for every number of rows it meets, and keeps it. Without filling up, that takes half the time,
and then all memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

NAME, STEP = "padded_mm", 64


def padded_mm(experts: Any, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """hidden: [tokens, d]; ids and weights: [tokens, k] -> [tokens, d]"""
    (tokens, d), k = hidden.shape, ids.shape[1]
    order = ids.flatten().argsort()  # of all choices, [tokens * k], by expert
    counts = torch.bincount(ids.flatten(), minlength=experts.num_experts)
    filled = (counts + STEP - 1) // STEP * STEP
    ends = filled.cumsum(0)
    moved = (ends - filled) - (counts.cumsum(0) - counts)  # of each expert's choices, by what is filled up before them
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device) + moved.repeat_interleave(counts)
    rows = hidden.new_zeros(int(ends[-1]), d).index_copy(0, place, hidden.repeat_interleave(k, 0))
    offsets = ends.int()
    inner = experts._apply_gate(grouped_mm(rows, experts.gate_up_proj.transpose(1, 2), offs=offsets))
    out = grouped_mm(inner, experts.down_proj.transpose(1, 2), offs=offsets).index_select(0, place)
    return (out.view(tokens, k, d) * weights.unsqueeze(-1).to(out.dtype)).sum(1)


def use_padded(model: Any) -> None:
    ALL_EXPERTS_FUNCTIONS.register(NAME, padded_mm)
    model.set_experts_implementation(NAME)
