"""vLLM's data-parallel ranks (serving/ranks.py says what they do)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xshare.engines.serving.ranks import Ranks
from xshare.engines.serving.step import Step

EVEN_ALONE = False  # set by benchmarks/vllm_check.py only: a single rank takes the path of several


def rank_of(parallel: Any) -> int:
    """This process's data-parallel rank, from vLLM's parallel configuration."""
    return int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank))


def make_ranks(step: Step) -> Ranks | None:
    """The ranks of vLLM's data-parallel group; None where there is only one."""
    from vllm.distributed import get_dp_group

    group = get_dp_group()
    if group.world_size == 1 and not EVEN_ALONE:
        return None
    return Ranks(step, all_reduce_of(group, nccl_of(group)))


def nccl_of(group: Any) -> Any:
    """vLLM's NCCL communicator for this group, which CUDA graphs can capture; None where it has none, as on a CPU."""
    nccl = getattr(group.device_communicator, "pynccl_comm", None)
    return None if nccl is None or nccl.disabled else nccl


def all_reduce_of(group: Any, nccl: Any) -> Callable[[Tensor], None]:
    """A function that replaces a tensor by its sum over the group, on the caller's stream."""

    def by_vllm(message: Tensor) -> None:
        nccl.all_reduce(message, message)

    def by_torch(message: Tensor) -> None:
        torch.distributed.all_reduce(message, group=group.device_group)

    return by_torch if nccl is None else by_vllm
