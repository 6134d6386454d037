"""One launch of the fused selection: under Triton's interpreter on a CPU, for real on a GPU."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import xshare
from xshare import BatchLayout, RouterSpec

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from triton.runtime import interpreter

from xshare.kernels.control import Control
from xshare.kernels.launch import FusedSelection

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
CASES = 450 if GPU else 20  # of each kernel: on a GPU more than 10,000 in all
TOP_4 = RouterSpec.softmax(4)


def hurry_up():
    """Spares Triton's interpreter what takes it more than half of its time, and decides nothing."""
    patch, builder = interpreter._patch_lang, interpreter.interpreter_builder
    done = set()

    def patch_once(fn):
        """Not the whole language again at every call inside a kernel: once per module of functions, for good."""
        if fn.__module__ not in done:
            done.add(fn.__module__)
            patch(fn)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = patch_once
    # Whether a sum overflows is worked out for an assertion that is made with `debug` alone.
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)


if not GPU:
    hurry_up()


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
