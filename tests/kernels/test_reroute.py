"""The fused routing inside a set against the reference."""

import random

import pytest
import torch
from one_selection import CASES, DEVICE, fused, in_doubt

import xshare
from xshare import BatchLayout, Policy, RouterSpec
from xshare.kernels.control import Control

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with NaN as a GPU does


@pytest.mark.parametrize(("N", "groups", "kept"), [(32, 4, 2), (16, 1, 1), (64, 8, 4)])
def test_reroute_equals_the_reference(N, groups, kept):
    """Groups thinned out by S, to one expert and to none, rows left with fewer than k, rows that cannot be read, rows
    whose scores underflow; and S = E, where the engine's own routing stays."""
    bias = torch.randn(N, generator=torch.Generator().manual_seed(N)) * 0.2
    scale = 2.5
    router = RouterSpec.sigmoid(4, correction_bias=bias, n_group=groups, topk_group=kept, routed_scaling_factor=scale)
    broken = [torch.nan, torch.inf, -torch.inf, -200.0]
    layout, compared = BatchLayout([0, 1, 2, 3, 4, -1]), 0
    for seed in range(CASES):
        logits = torch.randn(6, N, generator=torch.Generator().manual_seed(seed)) * 2
        logits[seed % 6, : N if seed % 3 else 1] = broken[seed % 4]
        policy = Policy.parse(random.Random(seed).choice(["k0=1,m=0", "k0=0,m=4", "k0=1,m=6", "k0=2,m=2", f"m={N}"]))
        want = xshare.route(logits, router, policy, layout=layout)
        got, _ = fused(router, policy, logits, [0, 1, 2, 3, 4, 5], mask_logits=False)
        if not torch.equal(got.keep.cpu(), want.selected):
            assert in_doubt(router, policy, logits, layout, None), (seed, str(policy))
            continue
        compared += 1
        control = Control(DEVICE)
        ids, weights = torch.full((6, 4), 99, dtype=torch.int32, device=DEVICE), torch.full((6, 4), 9.0, device=DEVICE)
        rows = logits.to(DEVICE)
        got.reroute(rows, weights, ids, control)
        assert (ids == 99).all()  # the gate is closed
        ids[:] = xshare.route(logits, router, Policy.parse("native")).ids.to(ids)  # as the engine leaves them
        native = ids.clone()
        control.set_gate(True)
        control.push()
        got.reroute(rows, weights, ids, control)
        if want.selected.all():
            assert torch.equal(ids, native), seed
            continue
        read = logits.amax(-1).isfinite()
        assert torch.equal(ids.cpu()[read].long(), want.ids[read]), seed
        torch.testing.assert_close(weights.cpu()[read], want.weights[read], rtol=1e-5, atol=1e-6)
        assert want.selected[ids.cpu()[~read].long()].all()  # in S, though not by the sums
        for row in weights.cpu()[~read]:
            torch.testing.assert_close(row.sum(), torch.tensor(scale))
            assert len(row[row > 0].unique()) == 1
    assert compared > 0.9 * CASES
