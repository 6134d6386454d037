"""What vLLM leaves out of MoE over data-parallel ranks on a CPU (its issue 57837): two collectives of its communicator.

Importing this puts them in, and the experts' map (`expert_parallel_worker`). Nothing else is replaced.
"""

from __future__ import annotations

import expert_parallel_worker  # noqa: F401
import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


def all_gatherv(self, input_, dim=0, sizes=None):
    """The rows of all ranks, one after another; rank r has sizes[r]."""
    if isinstance(input_, list):
        return [all_gatherv(self, tensor, dim, sizes) for tensor in input_]
    assert dim == 0
    sizes = [len(input_)] * self.world_size if sizes is None else sizes
    padded = input_.new_zeros(max(sizes), *input_.shape[1:])
    padded[: len(input_)] = input_
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=self.device_group)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def reduce_scatterv(self, input_, dim=-1, sizes=None):
    """The sum over all ranks, of which this one keeps its own rows."""
    assert dim == 0
    sizes = [len(input_) // self.world_size] * self.world_size if sizes is None else sizes
    total = input_.clone()
    dist.all_reduce(total, group=self.device_group)
    first = sum(sizes[: self.rank_in_group])
    return total[first : first + sizes[self.rank_in_group]].clone()


CpuCommunicator.all_gatherv, CpuCommunicator.reduce_scatterv = all_gatherv, reduce_scatterv


class Joined:
    """Mixed into the workers of a server, so that they import this."""
