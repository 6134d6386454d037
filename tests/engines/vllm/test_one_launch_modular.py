"""The stand-in for vLLM's moe_align_block_size, without a GPU: what it hands out, to whom, and when not."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from sorted_rows_oracle import best_first, blocks_of

from xshare import Policy, RouterSpec

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from xshare.engines.vllm import one_launch_modular, routing_check
from xshare.engines.vllm.expert_bytes import rows_unshared
from xshare.engines.vllm.hooks import Route
from xshare.engines.vllm.one_launch_modular import (
    PARAMETERS,
    Routing,
    StandIn,
    engine_tables,
    make_tables,
    same_bits,
    why_not,
)
from xshare.engines.vllm.routing_check import find_difference
from xshare.kernels.control import Control
from xshare.kernels.launch import FusedSelection
from xshare.kernels.plan import Plan
from xshare.kernels.routing_blocks import Blocks

N, K = 32, 4
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter, not a GPU's roundings")


def aligned_by_hand(ids, size, num_experts, *_, **__):
    """What vLLM's moe_align_block_size gives, its rows of an expert in another order."""
    pairs, tiles = blocks_of(ids.tolist(), num_experts, ids.shape[1], size)
    positions = min(ids.numel() * size, ids.numel() + num_experts * (size - 1))
    numbers = torch.tensor(pairs).view(-1, size).flip(1).flatten()
    pairs = torch.cat([numbers, torch.full((positions - len(pairs),), ids.numel())]).int()
    tiles = torch.tensor(tiles + [-1] * (-(-positions // size) - len(tiles))).int()
    return pairs, tiles, torch.tensor([len(numbers)]).int()


def module():
    return SimpleNamespace(moe_align_block_size=aligned_by_hand)


def routing(rows=8, size=16):
    """Tables as a launch would leave them, of that many rows."""
    tables = Blocks(Plan.of(N, 16, 0, "cpu"), N, K, torch.bfloat16, "cpu", lambda rows: size)
    return engine_tables(tables, rows)


def test_blocks_are_handed_to_whoever_asks_for_these_ids_alone():
    fused_moe = module()
    stand_in = StandIn(fused_moe)
    ready = routing()
    other_ids = torch.zeros(8, K, dtype=torch.int32)
    for ids, size, experts, more in (
        (ready.ids, 32, N, {}), (ready.ids, 16, 2 * N, {}), (other_ids, 16, N, {}), (ready.ids[:4], 16, N, {}),
        (ready.ids, 16, N, {"expert_map": torch.zeros(N)}), (ready.ids, 16, N, {"pad_sorted_ids": True}),
    ):  # fmt: skip
        stand_in.ready = ready
        assert fused_moe.moe_align_block_size(ids, size, experts, **more) is not ready.blocks
        assert stand_in.ready is None  # not for the next layer
    for more in ({}, {"expert_map": None, "ignore_invalid_experts": False}):
        stand_in.ready = ready
        assert fused_moe.moe_align_block_size(ready.ids, 16, N, **more) is ready.blocks
    stand_in.ready = ready
    assert fused_moe.moe_align_block_size(ready.ids, 16, N, None) is ready.blocks
    assert fused_moe.moe_align_block_size(ready.ids, 16, N, None) is not ready.blocks  # once


def test_few_rows_have_no_blocks():
    tables = Blocks(Plan.of(N, 2, 0, "cpu"), N, K, torch.bfloat16, "cpu", unsorted=rows_unshared(N, K))
    few = engine_tables(tables, 2)
    assert few.blocks is None
    assert not few.serves(few.ids, 16, N)
    assert same_bits(few, few)
    assert not same_bits(few, Routing(few.weights, few.ids, 16, N, aligned_by_hand(few.ids, 16, N)))


def test_tables_have_the_sizes_that_vllm_asks_for():
    ready = routing(rows=12, size=32)
    assert ready.weights.shape == ready.ids.shape == (12, 4)
    pairs, tiles, end = ready.blocks
    assert (len(pairs), len(tiles), len(end)) == (48 + 32 * 31, 33, 1)
    pairs, tiles, _ = routing(rows=2, size=16).blocks
    assert (len(pairs), len(tiles)) == (128, 8)  # eight pairs, each in a block of its own


def test_the_real_function_takes_what_is_expected():
    align = pytest.importorskip("vllm.model_executor.layers.fused_moe.moe_align_block_size")
    assert list(inspect.signature(align.moe_align_block_size).parameters)[: len(PARAMETERS)] == PARAMETERS


def selection_of(rows):
    selection = FusedSelection(
        num_experts=N, rows=rows, device="cpu", router=RouterSpec.softmax(K), mask_logits=True, routes=True
    )
    site = SimpleNamespace(num_experts=N, top_k=K, rows_unshared=rows_unshared(N, K))
    selection.tables = make_tables(selection.plan, site, torch.bfloat16, torch.device("cpu"))
    return selection


def routed_by_hand(_, logits, top_k, renormalize):
    """What vLLM's fused_topk gives, by the oracle of the kernels' tests."""
    assert renormalize
    rows = [best_first(row, [True] * logits.shape[1], top_k) for row in logits]
    ids = torch.tensor([ids for ids, _ in rows], dtype=torch.int32)
    return torch.stack([weights for _, weights in rows]), ids, None


@interpreted
def test_every_start_looks_whether_both_route_alike(monkeypatch):
    router = pytest.importorskip("vllm.model_executor.layers.fused_moe.router.fused_topk_router")
    stand_in = StandIn(module())
    monkeypatch.setattr(router, "fused_topk", routed_by_hand)
    monkeypatch.setattr(one_launch_modular, "stand_in", lambda: stand_in)
    monkeypatch.setattr(one_launch_modular, "block_size_of", lambda site, dtype: lambda rows: 16)
    monkeypatch.setattr(routing_check, "COMPARED", 16)
    selections = {rows: selection_of(rows) for rows in (2, 8)}
    selector = SimpleNamespace(selections=selections, own=torch.zeros(1))
    assert find_difference(selector, one_launch_modular) is None
    assert all(selection.tables.checked for selection in selections.values())

    def otherwise(*args):
        weights, *rest = routed_by_hand(*args)
        weights[-1, -1] *= 1 + 2**-23
        return weights, *rest

    monkeypatch.setattr(router, "fused_topk", otherwise)
    other = SimpleNamespace(selections={2: selection_of(2)}, own=torch.zeros(1))
    assert find_difference(other, one_launch_modular) == "2 rows, the gate closed"


def test_other_blocks_are_noticed():
    logits = torch.randn(8, N, generator=torch.Generator().manual_seed(1)).bfloat16()
    weights, ids, _ = routed_by_hand(None, logits, K, True)
    ours = Routing(weights, ids, 16, N, aligned_by_hand(ids, 16, N))
    assert same_bits(ours, ours)
    for place in range(3):
        blocks = [tensor.clone() for tensor in ours.blocks]
        blocks[place][0] += 1 if place else -1
        assert not same_bits(ours, Routing(weights, ids, 16, N, tuple(blocks)))


@interpreted
def test_the_router_returns_what_the_kernel_left(monkeypatch):
    stand_in = StandIn(module())
    monkeypatch.setattr(one_launch_modular, "stand_in", lambda: stand_in)
    monkeypatch.setattr(one_launch_modular, "block_size_of", lambda site, dtype: lambda rows: 16)
    selection, control = selection_of(8), Control("cpu")
    control.set_policy(Policy.parse("k0=1,m=6"))
    control.set_step(8)
    control.set_gate(True)
    control.push()

    def routed(logits):
        selection.launch(logits, control)
        return engine_tables(selection.tables, len(logits))

    selector = SimpleNamespace(routed=routed, cannot_route=None, routes=torch.bfloat16)
    site = SimpleNamespace(name="layer 3", monolithic=False, router=RouterSpec.softmax(K))
    hook = Route(site, selector)
    logits = torch.randn(8, N, generator=torch.Generator().manual_seed(2)).bfloat16()
    weights, ids = hook.route(lambda logits: pytest.fail("vLLM does not route"), logits)
    expected = [best_first(row, selection.keep.tolist(), K) for row in logits]
    assert ids.tolist() == [chosen for chosen, _ in expected]
    assert torch.allclose(weights, torch.stack([weight for _, weight in expected]))
    pairs, tiles = blocks_of(ids.tolist(), N, K, 16)
    blocks = stand_in(ids, 16, N, None)
    assert blocks[0][: len(pairs)].tolist() == pairs
    assert blocks[1][: len(tiles)].tolist() == tiles


def test_where_it_is_not_used():
    assert why_not(SimpleNamespace(), torch.device("cpu"), torch.bfloat16) == "there is no NVIDIA GPU"
