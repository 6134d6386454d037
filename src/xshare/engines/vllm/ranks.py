"""vLLM's data-parallel ranks (serving/ranks.py says what they do)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xshare.engines.serving.ranks import Ranks
from xshare.engines.serving.step import Step


def rank_of(parallel: Any) -> int:
    """Among the data-parallel ones, by vLLM's parallel configuration."""
    return int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank))


def make_ranks(step: Step) -> Ranks | None:
    """Of vLLM's data-parallel group; None where there is one rank."""
    from vllm.distributed import get_dp_group

    group = get_dp_group()
    if group.world_size == 1:
        return None

    def add_up(message: Tensor) -> None:
        torch.distributed.all_reduce(message, group=group.device_group)

    return Ranks(step, add_up)
