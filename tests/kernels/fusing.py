"""One launch of the fused selection: under Triton's interpreter on a CPU, for real on a GPU."""

from itertools import pairwise

import pytest
import torch

import xshare
from xshare import BatchLayout, RouterSpec

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from xshare.kernels.control import Control
from xshare.kernels.launch import FusedSelection

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
CASES = 250 if GPU else 20  # of each kernel
TOP_4 = RouterSpec.softmax(4)


def layout_of(n, starts, protected=()):
    requests = [-1] * n
    for request, (a, b) in enumerate(pairwise(starts)):
        requests[a:b] = [request] * (b - a)
    return BatchLayout(requests, list(protected) or None)


def fused(router, policy, logits, starts, selection=None, protected=(), table=None, **options):
    """-> the selection after its launch, and the logits it left."""
    selection = selection or make(router, logits, **options)
    control = Control(DEVICE)
    control.set_policy(policy)
    control.set_step(starts[-1], starts, protected, table)
    control.set_gate(True)
    control.push()
    left = logits.to(DEVICE, copy=True)
    selection.launch(left, control)
    return selection, left.cpu()


def make(router, logits, **options):
    n, N = logits.shape
    return of_shape(N, n, router, **options)


def of_shape(N, rows, router=TOP_4, **options):
    return FusedSelection(num_experts=N, rows=rows, device=DEVICE, router=router, **options)


def in_doubt(router, policy, logits, layout, placement, cost=None):
    """Whether changes of 1e-5 to the logits change S: a decision within the margin that devices may differ by."""
    noise = torch.Generator().manual_seed(0)
    sets = set()
    for _ in range(6):
        moved = logits.double() + 1e-5 * torch.randn(logits.shape, generator=noise)
        chosen = xshare.route(moved, router, policy, layout=layout, placement=placement, cost=cost).selected
        sets.add(tuple(chosen.tolist()))
    return len(sets) > 1
