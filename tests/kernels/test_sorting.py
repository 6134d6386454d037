"""All of routing in one launch: the tables of sorted rows, against an oracle that sorts by hand."""

import math

import pytest
import torch
from one_selection import DEVICE, GPU, fused, of_shape
from routed_forms import check_bits, check_sorted, sorted_selection

import xshare
from xshare import BatchLayout, Policy, RouterSpec

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from xshare.kernels.control import Control
from xshare.kernels.routing_tables import Tables

SHAPES = [(16, 128, 4), (5, 128, 4), (32, 128, 4), (13, 32, 4), (40, 32, 2), (33, 128, 8), (64, 60, 1), (1, 16, 4)]


@pytest.mark.parametrize(("n", "N", "k"), SHAPES)
def test_rows_are_sorted_by_expert(n, N, k):
    for seed, policy in enumerate(("k0=1,m=6", "rho=0.6", f"k0=1,m={N}")):
        logits = torch.randn(n, N, generator=torch.Generator().manual_seed(seed)).bfloat16()
        voting = n if seed else max(1, n - 3)  # and padding after
        selection, left = fused(
            RouterSpec.softmax(k), Policy.parse(policy), logits, range(voting + 1), sorted_selection(N, n, k)
        )
        assert torch.equal(left, logits)  # nothing is masked
        layout = BatchLayout([*range(voting), *[-1] * (n - voting)])
        want = xshare.route(logits.float(), RouterSpec.softmax(k), Policy.parse(policy), layout=layout)
        assert torch.equal(selection.keep.cpu(), want.selected)
        ids = check_sorted(selection, logits, N, k)
        assert ids == want.ids.sort(dim=-1).values.tolist()


def test_ties_zeros_infinities_and_nan():
    logits = torch.zeros(8, 32).bfloat16()
    logits[0, ::2] = -0.0
    logits[1, 3:] = -math.inf
    logits[2, 7] = math.inf
    logits[3, 5] = math.nan
    logits[4, 9] = -math.nan
    logits[5] = -math.inf
    logits[6, 4:8] = 1.0
    for policy in ("k0=1,m=2", "k0=1,m=32"):
        selection = sorted_selection(32, 8)
        fused(None, Policy.parse(policy), logits, range(9), selection)
        check_sorted(selection, logits, 32, 4)


def test_logits_of_another_type_are_masked():
    logits = torch.randn(8, 32, generator=torch.Generator().manual_seed(5))
    selection, left = fused(None, Policy.parse("k0=1,m=0"), logits, range(9), sorted_selection(32, 8))
    assert (left[:, ~selection.keep.cpu()] == torch.finfo(torch.float32).min).all()
    assert not selection.tables.hist.any()


def test_whoever_is_told_not_to_route_masks():
    logits = torch.randn(8, 32, generator=torch.Generator().manual_seed(6)).bfloat16().to(DEVICE)
    selection, control = sorted_selection(32, 8), Control(DEVICE)
    control.set_policy(Policy.parse("k0=1,m=0"))
    control.set_step(8)
    control.set_gate(True)
    control.push()
    assert not selection.launch(logits, control, route=False)
    assert (logits[:, ~selection.keep] == torch.finfo(torch.bfloat16).min).all()
    assert not selection.tables.hist.any()


def test_what_cannot_be_sorted_is_refused():
    plan = of_shape(32, 8).plan
    with pytest.raises(ValueError, match="not 6"):
        Tables(plan, 32, 6, torch.bfloat16, DEVICE)
    with pytest.raises(ValueError, match="float32"):
        Tables(plan, 32, 4, torch.float32, DEVICE)


@pytest.mark.skipif(not GPU, reason="vLLM's routing is made of GPU kernels")
@pytest.mark.parametrize("n", [1, 5, 16, 24, 64, 256])
def test_to_the_bit_as_vllm_routes(n):
    pytest.importorskip("vllm").utils.import_utils.has_triton_kernels()
    pytest.importorskip("triton_kernels", reason="this vLLM has no Triton path")
    from xshare.engines.vllm import one_launch

    check_bits(one_launch, sorted_selection(128, n))
