"""Experts of decode steps on a CPU by compiled code, as one of the implementations that Transformers has for them."""

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
FEW = 64  # rows, of a decode step; a prompt's are many, and products of many rows are what libraries are made for


def compiled_experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Rows [n, D], their experts and weights [n, k] -> what the experts make of them, [n, D]."""
    from transformers.integrations.moe import grouped_mm_experts_forward

    if len(hidden_states) > FEW:
        many: Tensor = grouped_mm_experts_forward(module, hidden_states, top_k_index, top_k_weights)
        return many
    from xshare.kernels.cpu.experts import run_experts

    ids = top_k_index.numpy()
    given = (hidden_states.contiguous().numpy(), ids, top_k_weights.float().contiguous().numpy())
    weights = module.gate_up_proj.detach().numpy(), module.down_proj.detach().numpy()
    threads = torch.get_num_threads()
    parts = dealt_out(*np.unique(ids, return_counts=True), threads)
    sums = [np.zeros(hidden_states.shape, np.float32) for _ in parts]
    others = [
        pool(threads - 1).submit(run_experts, *given, *weights, *each) for each in zip(parts[1:], sums[1:], strict=True)
    ]
    run_experts(*given, *weights, parts[0], sums[0])
    wait(others)
    for each in others:
        each.result()  # whatever it raised
    return torch.from_numpy(sum(sums[1:], sums[0]))


def dealt_out(loaded: Array, rows: Array, threads: int) -> list[Array]:
    """Experts, and how many rows each has -> for every thread about as much work, the most rows first."""
    parts: list[list[int]] = [[] for _ in range(threads)]
    work = [0] * threads
    for place in (-rows).argsort(kind="stable").tolist():
        least = work.index(min(work))
        parts[least].append(int(loaded[place]))
        work[least] += work_of(int(rows[place]))
    return [np.array(part, np.int64) for part in parts]


def work_of(rows: int) -> int:
    """Of an expert with so many rows: up to four cost little more than reading it. As measured on an Arm Neoverse-N1, a
    row at ten being about a millisecond for 25 MB."""
    return 8 + rows + 5 * max(0, rows - 4) // 2


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """Threads of our own: compiled code lets go of Python's lock."""
    return ThreadPoolExecutor(threads, "xshare-experts")


def use(model: Any) -> bool:
    """Put them to work on a model; False, and nothing is changed, where they cannot be: without Numba, on a device,
    in another type than float32, or with experts that are not SwiGLU without biases."""
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
    formed = block.has_gate and block.is_concatenated and not block.has_bias and not block.is_transposed
    return bool(formed) and block.config.hidden_act in ("silu", "swish")
