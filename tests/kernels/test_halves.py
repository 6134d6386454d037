"""The fused selection in two halves: ranks that add up their votes in between choose the set of all their rows."""

import pytest
import torch
from one_selection import DEVICE, TOP_4, layout_of, of_shape

import xshare
from xshare import Placement, Policy, RouterSpec
from xshare.kernels.control import Control

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with NaN as a GPU does

N, LOWEST = 40, torch.finfo(torch.float32).min
ROWS = (3, 14, 0)  # of each rank; the third only listens
GROUPS = RouterSpec.sigmoid(4, correction_bias=torch.linspace(-0.2, 0.2, 32), n_group=4, topk_group=2)


def control_of(policy, starts, gate=True, number=7, only_votes=False, **group):
    control = Control(DEVICE)
    control.set_policy(policy)
    control.set_step(starts[-1], starts)
    control.set_gate(gate, only_votes=only_votes)
    control.set_group(number, **group)
    control.push()
    return control


def together(selections, controls, logits):
    """Every rank's launch, twice: to learn what each says, and with the sum of it. -> what is left of the logits"""
    messages = []
    for turn in range(2):
        left = [rows.to(DEVICE, copy=True) for rows in logits]
        for selection, control, rows in zip(selections, controls, left, strict=True):
            selection.across = (lambda message: messages.append(message.clone())) if turn == 0 else add(messages)
            if len(rows):
                selection.launch(rows, control)
            else:
                selection.only_listen()
    return [rows.cpu() for rows in left]


def add(messages):
    return lambda message: message.copy_(torch.stack(messages).sum(0))


def rank_selections(router=TOP_4, num_experts=N, rows=ROWS, **options):
    return [of_shape(num_experts, max(1, n), router, across=lambda message: None, **options) for n in rows]


def random_rows(num_experts=N, rows=ROWS, seed=0):
    noise = torch.Generator().manual_seed(seed)
    return [torch.randn(n, num_experts, generator=noise) * 2 for n in rows]


@pytest.mark.parametrize("text", ["k0=1,m=8", "k0=1,mr=2", "k0=1,mg=3", "k0=0,tau=0.8", "k0=0,rho=0.7", "k0=0,lam=0.4"])
def test_the_set_is_that_of_all_rows(text):
    policy, placement, logits = Policy.parse(text), Placement.contiguous(N, 4), random_rows()
    rows_per_request = 2 if policy.request_budget else 0
    starts = [[*range(0, n, 2), n] if rows_per_request and n else list(range(n + 1)) for n in ROWS]
    spread = None if policy.device_budget is None else placement
    selections = rank_selections(rows_per_request=rows_per_request, placement=spread)
    left = together(selections, [control_of(policy, rank_starts) for rank_starts in starts], logits)
    ends = [0, *torch.tensor(ROWS).cumsum(0).tolist()]
    joined = sorted({ends[rank] + start for rank, rank_starts in enumerate(starts) for start in rank_starts})
    want = xshare.route(
        torch.cat(logits), TOP_4, policy, layout=layout_of(sum(ROWS), joined), placement=placement
    ).selected
    assert not want.all()
    for selection, (before, after), n in zip(selections, zip(logits, left, strict=True), ROWS, strict=True):
        if n:
            assert torch.equal(selection.keep.cpu(), want)
            assert torch.equal(after, before.masked_fill(~want, LOWEST))


def test_groups_and_one_rank_alone():
    logits = random_rows(32, (12,))
    policy = Policy.parse("k0=1,m=5")
    (selection,) = rank_selections(GROUPS, 32, (12,), mask_logits=False)
    together([selection], [control_of(policy, list(range(13)))], logits)
    assert torch.equal(selection.keep.cpu(), xshare.route(logits[0], GROUPS, policy).selected)


def test_a_rank_whose_gate_is_closed_brings_nothing_and_is_left_alone():
    policy, logits = Policy.parse("k0=1,m=8"), random_rows(rows=(6, 20))
    selections = rank_selections(rows=(6, 20))
    starts = [list(range(7)), list(range(21))]
    controls = [control_of(policy, rank_starts) for rank_starts in starts]
    together(selections, controls, logits)  # leaves votes in its memory
    left = together(selections, [control_of(policy, starts[0]), control_of(policy, starts[1], gate=False)], logits)
    assert torch.equal(selections[0].keep.cpu(), xshare.route(logits[0], TOP_4, policy).selected)
    assert selections[1].keep.all()
    assert torch.equal(left[1], logits[1])


def test_a_rank_that_only_votes_brings_its_rows_and_is_left_alone():
    policy, logits, starts = Policy.parse("k0=1,m=8"), random_rows(rows=(6, 9)), [list(range(7)), list(range(10))]
    selections = rank_selections(rows=(6, 9))
    left = together(selections, [control_of(policy, starts[0]), control_of(policy, starts[1], only_votes=True)], logits)
    want = xshare.route(torch.cat(logits), TOP_4, policy).selected
    assert torch.equal(selections[0].keep.cpu(), want)
    assert selections[1].keep.all()
    assert torch.equal(left[1], logits[1])


def test_one_rank_alone_leaves_what_one_launch_does():
    """Masked logits, a masked bias and each row's share, some rows protected, the last of them padding."""
    softmax, policy, logits = (
        RouterSpec.softmax(4, renormalize=False),
        Policy.parse("k0=1,m=5"),
        random_rows(rows=(12,)),
    )
    sigmoid = RouterSpec.sigmoid(4, correction_bias=torch.linspace(-0.2, 0.2, N))
    for router in (softmax, sigmoid):
        outputs = []
        for across in (None, lambda message: None):
            selection, control = of_shape(N, 12, router, protects=True, across=across), Control(DEVICE)
            control.set_policy(policy)
            control.set_step(10, list(range(11)), [3, 7])
            control.set_gate(True)
            control.set_group(1)
            control.push()
            rows = logits[0].to(DEVICE, copy=True)
            selection.launch(rows, control)
            outputs.append((rows.cpu(), selection.keep.cpu(), selection.share.cpu(), selection.masked_bias.cpu()))
        for one, halves in zip(*outputs, strict=True):
            assert torch.equal(one, halves)
        assert not outputs[0][1].all()


@pytest.mark.parametrize(
    "group",
    [{"least_rows": 16}, {"most_rows": 14}, {"most_requests": 14}, {"number": 8}],
    ids=["few rows", "many rows", "many requests", "another policy"],
)
def test_gates_look_at_all_ranks_and_close_for_all(group):
    policy, logits = Policy.parse("k0=1,m=8"), random_rows(rows=(6, 9))
    selections, starts = rank_selections(rows=(6, 9)), [list(range(7)), list(range(10))]
    acts = {"least_rows": 15, "most_rows": 15, "most_requests": 15}
    controls = [control_of(policy, rank_starts, **acts) for rank_starts in starts]
    together(selections, controls, logits)
    assert not selections[0].keep.all()
    other = {} if "number" in group else group
    controls = [control_of(policy, starts[0], **other), control_of(policy, starts[1], **group)]
    left = together(selections, controls, logits)
    for selection, before, after in zip(selections, logits, left, strict=True):
        assert selection.keep.all()
        assert torch.equal(before, after)
