"""The invariants of docs/algorithms.md, section 10, by their numbers: properties over random cases of every kind.

Number 3 is proven by brute force in algorithms/test_greedy.py; number 8 is what kernels/ and engines/ test.
"""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import make

import xshare
from xshare import BatchLayout, Placement, Policy, RouterSpec
from xshare.routing import used_experts

seeds = st.integers(0, 2**32)
many = settings(max_examples=150, deadline=None)


def routed(case, policy=None, **more):
    keywords = case.keywords() | more
    return xshare.route(case.tensor(), case.spec(), policy or case.xshare_policy(), **keywords)


def experts(mask):
    return set(mask.nonzero().flatten().tolist())


def close(a, b):
    """Equal but for the last bit of float64: a vectorised exp may round otherwise in another lane."""
    torch.testing.assert_close(a, b, rtol=1e-14, atol=0)


@many
@given(seeds, st.sampled_from(["m", "mr", "mg", "tau"]), st.integers(0, 2), st.sampled_from(["full", "topk"]))
def test_a_budget_of_everything_is_native_routing(seed, letter, k0, score):
    """Invariant 1."""
    case = make(seed, broken=False)
    policy = Policy.parse(f"k0={min(k0, case.N)},{letter}={1 if letter == 'tau' else case.N},score={score}")
    native, got = routed(case, Policy.parse("native")), routed(case, policy)
    assert torch.equal(got.ids, native.ids)
    assert torch.equal(got.weights, native.weights)


@many
@given(seeds)
def test_warm_up_is_kept_and_the_budget_is_met(seed):
    """Invariant 2."""
    case = make(seed, broken=False)
    k0, m = max(1, min(case.policy["k0"], case.N)), case.policy["m"]
    scores = case.tensor().softmax(-1)
    layout = BatchLayout(case.requests)
    S0, S = (xshare.select(scores, Policy(warmup=k0, batch_budget=b), layout=layout) for b in (0, m))
    assert experts(S0) <= experts(S)
    assert len(experts(S)) == min(case.N, len(experts(S0)) + m)
    got = routed(case)
    assert experts(got.active) <= experts(got.selected)


@many
@given(seeds, st.randoms(use_true_random=False))
def test_permuting_rows_and_requests_changes_nothing_else(seed, rng):
    """Invariant 4."""
    case = make(seed)
    order = list(range(len(case.logits)))
    rng.shuffle(order)
    voters = sorted(set(case.requests) - {-1})
    names = dict(zip(voters, rng.sample(range(len(voters)), len(voters)), strict=True))
    renamed = [names.get(case.requests[i], -1) for i in order]
    got = routed(case)
    moved = xshare.route(
        case.tensor()[order],
        case.spec(),
        case.xshare_policy(),
        **case.keywords() | {"layout": BatchLayout(renamed, [order.index(i) for i in case.protected] or None)},
    )
    assert torch.equal(moved.selected, got.selected)
    assert torch.equal(moved.ids, got.ids[order])
    close(moved.weights, got.weights[order])


@many
@given(seeds, st.integers(1, 4))
def test_rows_that_do_not_vote_change_nothing(seed, extra):
    """Invariant 5."""
    case = make(seed)
    more = torch.randn(extra, case.N, generator=torch.Generator().manual_seed(seed % 2**31)).double() * 9
    got = routed(case)
    padded = xshare.route(
        torch.cat([case.tensor(), more]),
        case.spec(),
        case.xshare_policy(),
        **case.keywords() | {"layout": BatchLayout(case.requests + [-1] * extra, case.protected or None)},
    )
    assert torch.equal(padded.selected, got.selected)
    assert torch.equal(padded.ids[:-extra], got.ids)
    close(padded.weights[:-extra], got.weights)
    assert torch.equal(padded.active, got.active)
    everyone = torch.ones(len(padded.ids), dtype=torch.bool)
    assert experts(used_experts(padded.ids, everyone, case.N)) <= experts(got.selected)  # padding routes inside S too


@many
@given(seeds)
def test_without_a_voting_row_routing_is_native(seed):
    """Invariant 5."""
    case = make(seed, broken=False)
    nobody = BatchLayout([-1] * len(case.logits))
    got, native = routed(case, layout=nobody), routed(case, Policy.parse("native"), layout=nobody)
    assert torch.equal(got.ids, native.ids)
    assert torch.equal(got.weights, native.weights)
    assert (got.mass.item(), got.top1_kept.item(), experts(got.active)) == (1.0, 1.0, set())


@many
@given(seeds)
def test_max_load_is_that_of_the_set(seed):
    """Invariant 6."""
    case = make(seed)
    got = routed(case)
    devices = torch.tensor(case.devices)
    assert got.max_load.item() == max(int((devices[got.selected] == d).sum()) for d in range(case.G))


@many
@given(seeds)
def test_weights_add_up_and_nothing_is_ever_nan(seed):
    """Invariant 7."""
    case = make(seed, broken=True)
    got = routed(case)
    assert not got.weights.isnan().any()
    assert bool(((got.ids >= 0) & (got.ids < case.N)).all())
    if case.router.renormalize:
        torch.testing.assert_close(got.weights.sum(-1), torch.full((len(case.logits),), case.router.scale).double())
    broken = [i for i in range(len(case.logits)) if case.broken(i)]
    for i in broken:
        assert got.weights[i].unique().numel() == 1
    assert got.excluded.item() == sum(case.requests[i] >= 0 for i in broken)


@many
@given(seeds, st.floats(0.01, 1), st.sampled_from(["k0=0", "k0=1,m=2", "k0=0,mr=2", "k0=0,lam=0.3", "k0=0,mg=2"]))
def test_every_voting_row_is_routed_to_rho_of_its_native_weight(seed, rho, more):
    """Invariant 9."""
    case = make(seed)
    native, got = routed(case, Policy.parse("native")), routed(case, Policy.parse(f"{more},rho={rho!r}"))
    for i, request in enumerate(case.requests):
        if request < 0 or case.broken(i):
            continue
        own = zip(native.ids[i].tolist(), native.weights[i].tolist(), strict=True)
        kept = sum(weight for expert, weight in own if expert in got.ids[i].tolist())
        assert kept >= rho * float(native.weights[i].sum()) * (1 - 1e-9)


@many
@given(seeds)
def test_protected_rows_are_native(seed):
    """Invariant 9."""
    case = make(seed)
    votes = [i for i, request in enumerate(case.requests) if request >= 0 and not case.broken(i)]
    layout = BatchLayout(case.requests, protected=votes[:2])
    native, got = routed(case, Policy.parse("native")), routed(case, layout=layout)
    assert got.ids[votes[:2]].tolist() == native.ids[votes[:2]].tolist()
    torch.testing.assert_close(got.weights[votes[:2]], native.weights[votes[:2]], rtol=0, atol=1e-6)


@many
@given(seeds, st.lists(st.floats(0.001, 4), min_size=2, max_size=4), st.booleans())
def test_the_set_shrinks_as_the_price_grows(seed, prices, with_cost):
    """Invariant 9."""
    case = make(seed)
    case.cost = case.cost if with_cost else None
    sets = [experts(routed(case, Policy(price=lam, warmup=1)).selected) for lam in sorted(prices)]
    assert all(dearer <= cheaper for cheaper, dearer in pairwise(sets))


@many
@given(seeds)
def test_leading_dimensions_are_independent_problems(seed):
    """[2, 3, n, N] at once is six problems one by one, with one layout or one for each step."""
    case = make(seed)
    rng = random.Random(seed)
    n, N = len(case.logits), case.N
    noise = torch.Generator().manual_seed(seed % 2**31)
    logits = case.tensor().nan_to_num(0, 0, 0) + torch.randn(2, 3, n, N, generator=noise).double()
    requests = torch.tensor([[[rng.choice([-1, 0, 5]) for _ in range(n)]] for _ in range(2)])  # [2, 1, n]
    placement = case.keywords()["placement"]
    got = xshare.route(logits, case.spec(), case.xshare_policy(), layout=BatchLayout(requests), placement=placement)
    for a in range(2):
        for b in range(3):
            one = xshare.route(
                logits[a, b], case.spec(), case.xshare_policy(), layout=BatchLayout(requests[a, 0]), placement=placement
            )
            for name in ("ids", "weights", "selected", "active", "active_native", "mass", "top1_kept", "max_load"):
                torch.testing.assert_close(getattr(got, name)[a, b], getattr(one, name), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_type_routes_as_float64(dtype):
    logits = torch.randn(16, 40, generator=torch.Generator().manual_seed(1)).to(dtype)
    router, policy = RouterSpec.softmax(4), Policy.parse("k0=1,m=4")
    got, exact = xshare.route(logits, router, policy), xshare.route(logits.double(), router, policy)
    assert torch.equal(got.ids, exact.ids)
    assert got.weights.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(got.weights.double(), exact.weights, rtol=1e-6, atol=0)


POLICIES = ["k0=1,m=4", "k0=1,mr=2,m=1", "k0=1,mg=2", "k0=1,mg=2,fill=rounds", "k0=1,tau=0.8", "k0=1,m=2,score=topk"]
RIVALS = ["native", "topk:k=2", "oea:k0=2", "lynx:drop=4", "skip:beta=0.5", "logit-sum:k0=1,m=8", "random:k0=1,m=4"]


@pytest.mark.parametrize("text", POLICIES + RIVALS)
def test_static_shapes_and_no_host_synchronisation(text):
    """On the meta device any read of a value fails, so passing proves that nothing depends on one."""
    router = RouterSpec.sigmoid(4, correction_bias=torch.zeros(32, device="meta"), n_group=4, topk_group=2)
    logits = torch.empty(2, 8, 32, device="meta")
    layout = BatchLayout([0, 0, 0, 1, 1, 2, -1, -1])
    got = xshare.route(logits, router, Policy.parse(text), layout=layout, placement=Placement.contiguous(32, 4))
    assert got.ids.shape == (2, 8, 4)
    assert got.selected.shape == (2, 32)


def test_an_empty_batch_selects_nothing():
    got = xshare.route(torch.empty(0, 8), RouterSpec.softmax(2), Policy.parse("k0=1,m=2"))
    assert got.ids.shape == (0, 2)
    assert got.excluded.item() == 0
