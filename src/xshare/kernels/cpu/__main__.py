"""Compile the functions now that are otherwise compiled, and cached beside the code, at their first use.

python -m xshare.kernels.cpu
"""

from __future__ import annotations

import numpy as np
import torch

from xshare.batch import BatchLayout
from xshare.kernels.cpu.call import FIGURES, Steps, installed
from xshare.policy import Policy
from xshare.router import RouterSpec


def main() -> None:
    if not installed():
        return
    from xshare.kernels.cpu.experts import add_expert_outputs

    steps, logits, layout = (
        Steps(RouterSpec.softmax(2), Policy.parse("rho=0.7")),
        torch.zeros(2, 4),
        BatchLayout([0, 1]),
    )
    weights, ids = torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.int64)
    steps.settle(steps(logits[None], layout), weights[None], ids[None])
    steps.route_single(logits, weights, ids, layout, np.zeros((FIGURES, 1)), np.zeros(FIGURES))
    rows, experts = np.zeros((2, 4), np.float32), np.zeros(1, np.int64)
    gate_up, down = np.zeros((1, 4, 4), np.float32), np.zeros((1, 4, 2), np.float32)
    add_expert_outputs(rows, ids.numpy(), weights.numpy(), gate_up, down, experts, rows.copy())


if __name__ == "__main__":
    main()
