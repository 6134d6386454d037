"""All of routing in one launch: the tables of sorted rows, against an oracle that sorts by hand."""

import math

import pytest
import torch
from one_selection import CASES, DEVICE, GPU, fused, of_shape
from sorted_rows_oracle import chosen, tables_of

import xshare
from xshare import BatchLayout, Policy, RouterSpec

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from xshare.kernels.control import Control
from xshare.kernels.routing_tables import Tables, most_tiles


def routing_selection(N, rows, k=4, dtype=torch.bfloat16, **options):
    """A selection that routes."""
    selection = of_shape(N, rows, RouterSpec.softmax(k), mask_logits=True, **options)
    selection.tables = Tables(selection.plan, N, k, dtype, DEVICE)
    return selection


def check(selection, logits, N, k):
    """What a launch left, against S as it left it."""
    tables, n = selection.tables, len(logits)
    S = selection.keep.cpu().tolist()
    routed = [chosen(row, S, k) for row in logits]
    ids = [row_ids for row_ids, _ in routed]
    hist, offsets, tiles, gathers, scatters = tables_of(ids, N, k)
    assert tables.hist.tolist() == hist
    assert tables.offsets[:, : N + 1].tolist() == offsets
    assert tables.tiles[:, : most_tiles(n * k, N)].tolist() == tiles
    assert tables.pairs[: n * k].tolist() == gathers
    assert tables.pairs[n * k : 2 * n * k].tolist() == scatters
    weights = torch.cat([weight for _, weight in routed])[gathers].to(logits.dtype)
    got = tables.weights[: n * k].cpu()
    assert torch.allclose(
        got.float(), weights.float(), rtol=2**-7, atol=1e-6, equal_nan=True
    )  # one bit of the last place
    return ids


SHAPES = [(16, 128, 4), (5, 128, 4), (32, 128, 4), (13, 32, 4), (40, 32, 2), (33, 128, 8), (64, 60, 1), (1, 16, 4)]


@pytest.mark.parametrize(("n", "N", "k"), SHAPES)
def test_rows_are_sorted_by_expert(n, N, k):
    for seed, policy in enumerate(("k0=1,m=6", "rho=0.6", f"k0=1,m={N}")):
        logits = torch.randn(n, N, generator=torch.Generator().manual_seed(seed)).bfloat16()
        voting = n if seed else max(1, n - 3)  # and padding after
        selection, left = fused(
            RouterSpec.softmax(k), Policy.parse(policy), logits, range(voting + 1), routing_selection(N, n, k)
        )
        assert torch.equal(left, logits)  # nothing is masked
        layout = BatchLayout([*range(voting), *[-1] * (n - voting)])
        want = xshare.route(logits.float(), RouterSpec.softmax(k), Policy.parse(policy), layout=layout)
        assert torch.equal(selection.keep.cpu(), want.selected)
        ids = check(selection, logits, N, k)
        assert ids == want.ids.sort(dim=-1).values.tolist()


def test_requests_of_several_rows():
    logits = torch.randn(24, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    selection = routing_selection(64, 24, rows_per_request=4)
    fused(None, Policy.parse("k0=1,mr=3"), logits, [0, 4, 6, 10, 14, 15, 19, 22], selection)
    check(selection, logits, 64, 4)


def test_a_closed_gate_routes_natively():
    for n in (16, 48):
        logits = torch.randn(n, 64, generator=torch.Generator().manual_seed(4)).bfloat16()
        selection, control = routing_selection(64, n), Control(DEVICE)
        control.set_policy(Policy.parse("k0=1,m=0"))
        control.push()
        assert selection.launch(logits.to(DEVICE), control)
        assert selection.keep.all()
        check(selection, logits, 64, 4)


def test_fewer_rows_than_it_was_made_for():
    for rows, n in ((32, 9), (64, 41)):
        selection = routing_selection(128, rows)
        for seed in range(2):  # the second finds what the first left
            logits = torch.randn(n + seed, 128, generator=torch.Generator().manual_seed(seed)).bfloat16()
            fused(None, Policy.parse("k0=1,m=4"), logits, range(n + seed + 1), selection)
            check(selection, logits, 128, 4)


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
        selection = routing_selection(32, 8)
        fused(None, Policy.parse(policy), logits, range(9), selection)
        check(selection, logits, 32, 4)


def test_one_expert_takes_every_row():
    n = 200 if GPU else 70
    logits = torch.full((n, 16), -4.0).bfloat16()
    logits[:, 3] = 5.0
    logits[:, 7:10] = 1.0
    selection = routing_selection(16, n)
    fused(None, Policy.parse("k0=1,m=16"), logits, range(n + 1), selection)
    ids = check(selection, logits, 16, 4)
    assert all(row_ids == [3, 7, 8, 9] for row_ids in ids)


def test_logits_of_another_type_are_masked():
    logits = torch.randn(8, 32, generator=torch.Generator().manual_seed(5))
    selection, left = fused(None, Policy.parse("k0=1,m=0"), logits, range(9), routing_selection(32, 8))
    assert (left[:, ~selection.keep.cpu()] == torch.finfo(torch.float32).min).all()
    assert not selection.tables.hist.any()


def test_whoever_is_told_not_to_route_masks():
    logits = torch.randn(8, 32, generator=torch.Generator().manual_seed(6)).bfloat16().to(DEVICE)
    selection, control = routing_selection(32, 8), Control(DEVICE)
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
    from xshare.engines.vllm.one_launch import random_logits, route_both, same_bits

    dice = torch.Generator("cuda").manual_seed(n)
    selection, control = routing_selection(128, n), Control("cuda")
    control.set_policy(Policy.parse("k0=1,m=8"))
    control.set_step(n)
    for batch in range(CASES):
        control.set_gate(batch % 2 == 0)
        control.push()
        assert same_bits(*route_both(selection, control, random_logits(selection, n, dice)))
