"""All of routing in one launch, for experts that read blocks of rows: against an oracle that sorts by hand."""

import math

import pytest
import torch
from one_selection import DEVICE, GPU, fused, of_shape
from routed_forms import blocks_selection, check_bits, check_blocks

import xshare
from xshare import BatchLayout, Policy, RouterSpec

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from xshare.kernels.routing_blocks import Blocks

SHAPES = [(16, 128, 8), (8, 128, 8), (5, 128, 8), (4, 128, 8), (32, 128, 8), (13, 32, 4), (40, 64, 6), (33, 256, 8),
          (6, 512, 10), (1, 16, 4), (2, 16, 2)]  # fmt: skip


@pytest.mark.parametrize(("n", "N", "k"), SHAPES)
def test_rows_are_in_blocks(n, N, k):
    for seed, policy in enumerate(("k0=1,m=12", "rho=0.6", f"k0=1,m={N}")):
        size = (16, 32, 64)[seed]
        logits = torch.randn(n, N, generator=torch.Generator().manual_seed(seed)).bfloat16()
        voting = n if seed else max(1, n - 3)  # and padding after
        selection, left = fused(
            RouterSpec.softmax(k), Policy.parse(policy), logits, range(voting + 1), blocks_selection(N, n, k, size)
        )
        assert torch.equal(left, logits)  # nothing is masked
        layout = BatchLayout([*range(voting), *[-1] * (n - voting)])
        want = xshare.route(logits.float(), RouterSpec.softmax(k), Policy.parse(policy), layout=layout)
        assert torch.equal(selection.keep.cpu(), want.selected)
        ids = check_blocks(selection, logits, N, k, size)
        assert [sorted(row) for row in ids] == want.ids.sort(dim=-1).values.tolist()


def test_ties_zeros_infinities_and_nan():
    logits = torch.zeros(8, 32).bfloat16()
    logits[0, ::2] = -0.0
    logits[1, 3:] = -math.inf
    logits[2, 7] = math.inf
    logits[3, 5] = math.nan
    logits[4, 9] = 1e-9  # above the others, and the same score
    logits[5] = -math.inf
    logits[6, 4:8] = 1.0
    logits[7, 3] = 300.0  # all other scores are 0
    for policy in ("k0=1,m=6", "k0=1,m=32"):
        selection = blocks_selection(32, 8, 4)
        fused(None, Policy.parse(policy), logits, range(9), selection)
        check_blocks(selection, logits, 32, 4)


def test_one_program_routes_few_pairs():
    for routes, k, most in ((True, 8, 8), (True, 4, 16), (False, 8, 16)):
        plans = {n: of_shape(128, n, RouterSpec.softmax(k), routes=routes).plan for n in (4, 8, 9, 16, 17)}
        assert {n: plan.one_tile for n, plan in plans.items()} == {n: n <= most for n in plans}


def test_what_cannot_be_put_into_blocks_is_refused():
    plan = of_shape(32, 8).plan
    with pytest.raises(ValueError, match="not 60"):
        Blocks(plan, 60, 4, torch.bfloat16, DEVICE)
    with pytest.raises(ValueError, match="float32"):
        Blocks(plan, 32, 4, torch.float32, DEVICE)


@pytest.mark.skipif(not GPU, reason="vLLM's routing is made of GPU kernels")
@pytest.mark.parametrize(
    ("n", "N", "k"),
    [(1, 128, 8), (5, 128, 8), (8, 128, 8), (16, 128, 8), (24, 128, 8), (64, 128, 8), (256, 128, 8), (24, 256, 8),
     (24, 32, 4), (8, 512, 10)],
)  # fmt: skip
def test_to_the_bit_as_vllm_routes(n, N, k):
    pytest.importorskip("vllm")
    from xshare.engines.vllm import one_launch_modular

    check_bits(one_launch_modular, blocks_selection(N, n, k), [0.1 + more for more in range(7)])
