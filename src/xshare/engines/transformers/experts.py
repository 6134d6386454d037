"""Compiled experts for decode steps on a CPU, registered as one of Transformers' experts implementations."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xshare.kernels.cpu.call import installed

NAME = "xshare_cpu"
Array = NDArray[Any]
FEW = 64  # rows that a decode step has at most; libraries are faster with a prompt's many rows


def compiled_experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The experts' output [n, D] for rows [n, D] with experts and weights [n, k]."""
    from transformers.integrations.moe import grouped_mm_experts_forward

    if len(hidden_states) > FEW:
        many: Tensor = grouped_mm_experts_forward(module, hidden_states, top_k_index, top_k_weights)
        return many
    from xshare.kernels.cpu.experts import add_expert_outputs

    ids = top_k_index.numpy()
    inputs = (hidden_states.contiguous().numpy(), ids, top_k_weights.float().contiguous().numpy())
    weights = module.gate_up_proj.detach().numpy(), module.down_proj.detach().numpy()
    threads = torch.get_num_threads()
    parts = split_work(*np.unique(ids, return_counts=True), threads)
    sums = [np.zeros(hidden_states.shape, np.float32) for _ in parts]
    others = [
        pool(threads - 1).submit(add_expert_outputs, *inputs, *weights, *part)
        for part in zip(parts[1:], sums[1:], strict=True)
    ]
    add_expert_outputs(*inputs, *weights, parts[0], sums[0])
    wait(others)
    for other in others:
        other.result()  # raises what the thread raised
    return torch.from_numpy(sum(sums[1:], sums[0]))


def split_work(experts: Array, rows: Array, threads: int) -> list[Array]:
    """Experts per thread, with about equal work: experts with the most rows are assigned first."""
    parts: list[list[int]] = [[] for _ in range(threads)]
    work = [0] * threads
    for place in (-rows).argsort(kind="stable").tolist():
        least = work.index(min(work))
        parts[least].append(int(experts[place]))
        work[least] += work_of(int(rows[place]))
    return [np.array(part, np.int64) for part in parts]


def work_of(rows: int) -> int:
    """The cost of an expert with so many rows: up to four cost little more than reading it. Measured on an Arm
    Neoverse-N1, where a row at ten rows takes about a millisecond for 25 MB."""
    return 8 + rows + 5 * max(0, rows - 4) // 2


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """Our own threads: compiled code releases Python's global lock."""
    return ThreadPoolExecutor(threads, "xshare-experts")


def use(model: Any) -> bool:
    """Use them in a model. Returns False and changes nothing without Numba, on a device, with other types than
    float32, or with experts that are not SwiGLU without biases."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    blocks = [module for module in model.modules() if hasattr(module, "gate_up_proj") and hasattr(module, "down_proj")]
    weights = [weight for block in blocks for weight in (block.gate_up_proj, block.down_proj)]
    plain = all(_is_plain(block) for block in blocks)
    on_cpu = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in weights)
    if not (blocks and plain and on_cpu and installed()):
        return False
    ALL_EXPERTS_FUNCTIONS.register(NAME, compiled_experts)
    model.set_experts_implementation(NAME)
    return True


def _is_plain(block: Any) -> bool:
    """Whether its experts are down(silu(gate(x)) * up(x)), gate and up one below the other."""
    has_form = block.has_gate and block.is_concatenated and not block.has_bias and not block.is_transposed
    return bool(has_form) and block.config.hidden_act in ("silu", "swish")
