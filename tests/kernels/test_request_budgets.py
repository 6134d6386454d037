"""Request budgets where one program has all rows: the reference's set, and to the bit what the other kernel leaves."""

import random
from dataclasses import replace

import pytest
import torch
from one_selection import DEVICE, TOP_4, fused, layout_of, make
from routed_forms import FORMS

import xshare
from xshare import Policy, RouterSpec
from xshare.kernels.plan import Scratch

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with NaN as a GPU does

BF16, F32 = torch.bfloat16, torch.float32
BIAS = torch.linspace(-0.2, 0.2, 32)
ROUTERS = {
    "softmax": TOP_4,
    "sigmoid": RouterSpec.sigmoid(4, correction_bias=BIAS),
    "groups": RouterSpec.sigmoid(4, correction_bias=BIAS, n_group=4, topk_group=2),
}
POLICIES = ("k0=1,mr=2", "k0=0,m=3,mr=1,score=full", "k0=2,m=0,mr=5", "k0=1,m=4")  # the last has no request budget
SHAPES = [
    (1, 4, "softmax", BF16),
    (4, 4, "groups", F32),
    (4, 2, "softmax", F32),
    (5, 3, "sigmoid", BF16),
    (13, 2, "groups", BF16),
    (13, 5, "softmax", BF16),
    (16, 1, "sigmoid", F32),
    (16, 4, "softmax", F32),
    (16, 4, "softmax", BF16),
    (16, 7, "sigmoid", BF16),
]


def steps(rows, each, seed):
    """Boundaries of requests: even ones, all rows in one, and ones of any length from none to more than `each`, with
    padding behind them; and which rows are protected."""
    dice = random.Random(seed)
    yield [*range(0, rows, each), rows], ()
    yield [0, rows], (rows - 1,)
    for _ in range(2):
        voting, starts = dice.randint(max(1, rows - 3), rows), [0]
        while starts[-1] < voting and len(starts) < rows:
            starts.append(min(voting, starts[-1] + dice.choice([0, 1, 2, each, each + 1, 2 * each + 1])))
        yield starts, tuple(row for row in range(starts[-1]) if dice.random() < 0.3)


def in_blocks(selection, router, logits, **options):
    """The same selection by the other kernel, in one program."""
    other = make(router, logits, **options)
    other.plan = replace(selection.plan, one_tile=False)
    other.scratch = Scratch(other.plan, DEVICE)
    return other


@pytest.mark.parametrize(("rows", "each", "router", "dtype"), SHAPES)
def test_the_reference_and_the_other_kernel(rows, each, router, dtype):
    router, noise = ROUTERS[router], torch.Generator().manual_seed(rows + each)
    logits = (torch.randn(rows, 32, generator=noise) * 2).to(dtype)
    options = {"rows_per_request": each, "protects": True, "thresholds": frozenset()}
    selection = make(router, logits, **options)
    other = in_blocks(selection, router, logits, **options)
    assert selection.plan.one_tile
    assert selection.plan.each >= each
    budgets = set()
    for turn, (starts, protected) in enumerate(steps(rows, each, rows)):
        logits = (torch.randn(rows, 32, generator=noise) * 2).to(dtype)
        if turn == 3:  # rows without a vote
            logits[0], logits[rows // 2] = torch.nan, -torch.inf
        for text in (POLICIES[(turn + rows) % 3], POLICIES[3]):
            policy = Policy.parse(text)
            _, left = fused(router, policy, logits, starts, selection, protected=protected)
            layout = layout_of(rows, starts, protected)
            assert torch.equal(
                selection.keep.cpu(), xshare.route(logits.float(), router, policy, layout=layout).selected
            )
            _, other_left = fused(router, policy, logits, starts, other, protected=protected)
            assert torch.equal(left.nan_to_num(7), other_left.nan_to_num(7))
            for name in ("keep", "masked_bias", "share"):
                assert torch.equal(getattr(selection, name), getattr(other, name)), name
            budgets.add(policy.request_budget > 0)
    assert budgets == {True, False}


@pytest.mark.parametrize(
    ("starts", "there"),
    [([*[0] * 9, 2, 2, 3, 4], [*[0] * 9, 2, 2, 3, 4]), ([0, 3, 9, 12], [0, 3, 4])],
    ids=["more requests than rows", "more rows than logits"],
)
def test_boundaries_beyond_the_rows(starts, there):
    logits = torch.randn(4, 32, generator=torch.Generator().manual_seed(1)) * 2
    got, _ = fused(TOP_4, Policy.parse("k0=1,mr=3"), logits, starts, rows_per_request=2)
    want = xshare.route(logits, TOP_4, Policy.parse("k0=1,mr=3"), layout=layout_of(4, there)).selected
    assert torch.equal(got.keep.cpu(), want)


@pytest.mark.parametrize("form", FORMS)
def test_routing_in_the_same_launch(form):
    for rows, each in ((16, 4), (13, 3), (5, 2), (4, 4), (1, 4)):
        selection = FORMS[form].selection(64, rows, 4, rows_per_request=each, protects=True)
        assert selection.plan.one_tile
        for turn, (starts, protected) in enumerate(steps(rows, each, rows)):
            logits = torch.randn(rows, 64, generator=torch.Generator().manual_seed(turn)).bfloat16()
            policy = Policy.parse(POLICIES[turn])
            fused(None, policy, logits, starts, selection, protected=protected)
            want = xshare.route(logits.float(), TOP_4, policy, layout=layout_of(rows, starts, protected)).selected
            assert torch.equal(selection.keep.cpu(), want)
            FORMS[form].check(selection, logits, 64, 4)
