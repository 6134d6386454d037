"""The rivals, by hand and by identity, and the registry that holds them."""

import pytest
import torch
from random_cases import make

import xshare
from xshare import BatchLayout, Policy, PolicyError, RouterSpec
from xshare.methods import METHODS, Selection, register
from xshare.policy import METHOD_KNOBS, Knobs

P = torch.tensor(
    [
        [0.40, 0.30, 0.20, 0.10, 0.00],
        [0.45, 0.05, 0.30, 0.00, 0.20],
        [0.10, 0.00, 0.35, 0.50, 0.05],
    ]
)
LOGITS = P.log()  # some -inf
TOP3 = RouterSpec.softmax(3)


def run(text, logits=LOGITS, router=TOP3, **more):
    return xshare.route(logits, router, Policy.parse(text), **more)


def experts(mask):
    return mask.nonzero().flatten().tolist()


def test_native_routing_keeps_every_rows_experts():
    got = run("native")
    assert got.ids.tolist() == [[0, 1, 2], [0, 2, 4], [3, 2, 0]]
    assert experts(got.selected) == experts(got.active) == [0, 1, 2, 3, 4]
    assert (got.mass.item(), got.top1_kept.item()) == (1.0, 1.0)


def test_static_topk_gives_fewer_experts_in_the_same_slots():
    got = run("topk:k=2")
    assert got.ids.tolist() == [[0, 1, 0], [0, 2, 0], [3, 2, 3]]
    torch.testing.assert_close(got.weights[0], torch.tensor([4 / 7, 3 / 7, 0.0]))
    assert experts(got.selected) == [0, 1, 2, 3]
    assert got.mass.item() == pytest.approx((0.7 / 0.9 + 0.75 / 0.95 + 0.85 / 0.95) / 3)
    assert run("topk:k=9").ids.tolist() == run("native").ids.tolist()


@pytest.mark.parametrize("seed", range(300))
def test_oea_is_xshare_without_a_budget_on_a_renormalising_model(seed):
    case = make(seed, broken=False)
    case.router.renormalize = True
    k0 = 1 + seed % min(3, case.N)
    layout = case.keywords()["layout"]
    for knobs in (f"k0={k0}", f"k0={k0},rho=0.6", "rho=0.8"):
        oea = run(f"oea:{knobs}", case.tensor(), case.spec(), layout=layout)
        ours = run(f"{knobs},score=full", case.tensor(), case.spec(), layout=layout)  # as it tops up a small pool
        assert torch.equal(oea.selected, ours.selected)
        assert torch.equal(oea.ids, ours.ids)
        assert torch.equal(oea.weights, ours.weights)


def test_oea_renormalises_where_the_model_does_not():
    router = RouterSpec.softmax(2, renormalize=False)
    torch.testing.assert_close(run("oea:k0=2", router=router).weights.sum(-1), torch.ones(3))
    assert (run("k0=2,m=0", router=router).weights.sum(-1) < 1).all()


def test_lynx_drops_the_least_used():
    # Uses of experts 0..4: 3, 1, 3, 1, 1. Ties keep the lower index, so 4 goes first, then 3.
    assert experts(run("lynx:drop=0").selected) == [0, 1, 2, 3, 4]
    assert experts(run("lynx:drop=1").selected) == [0, 1, 2, 3]
    assert experts(run("lynx:drop=2").selected) == [0, 1, 2]
    assert run("lynx:drop=2").top1_kept.item() == pytest.approx(2 / 3)  # it dropped row 2's best expert
    assert experts(run("lynx:drop=4").selected) == [0, 2, 3]  # no fewer than k: topped up by score
    assert experts(run("lynx:drop=1", layout=BatchLayout([0, -1, -1])).selected) == [0, 1, 2]


def test_skip_by_lu_et_al():
    got = run("skip:beta=0.6")  # row 0: 0.3 >= 0.24 stays, 0.2 goes; row 1: 0.3 >= 0.27; row 2: 0.35 >= 0.3
    assert got.ids.tolist() == [[0, 1, 0], [0, 2, 0], [3, 2, 3]]
    torch.testing.assert_close(got.weights[1], torch.tensor([0.6, 0.4, 0.0]))
    assert run("skip:beta=0").ids.tolist() == run("native").ids.tolist()
    assert run("skip:beta=1").ids.tolist() == [[0] * 3, [0] * 3, [3] * 3]


def test_skip_by_kmin_and_t():
    assert run("skip:kmin=2,t=1").ids.tolist() == [[0, 1, 0], [0, 2, 0], [3, 2, 3]]
    assert run("skip:kmin=3,t=1").ids.tolist() == run("native").ids.tolist()
    assert run("skip:t=0.6").ids.tolist() == run("skip:beta=0.6").ids.tolist()


def test_logit_sum_sums_logits_not_probabilities():
    logits = torch.tensor([[9.0, 5.0, 0.0, 0.0], [-9.0, 5.0, 6.0, 0.0]])
    one = RouterSpec.softmax(1)
    assert experts(run("logit-sum:m=1", logits, one).selected) == [1]  # 10 beats 6 and 0
    assert experts(run("k0=0,m=1", logits, one).selected) == [0]  # summed probability: 0.98 beats 0.73 and 0.29


def test_logit_sum_opens_warm_up_to_its_own_row_only():
    logits = torch.tensor([[9.0, 5.0, 0.0, 0.0], [-9.0, 5.0, 6.0, 0.0]])
    got = run("logit-sum:k0=1,m=1", logits, RouterSpec.softmax(1))
    assert got.ids.tolist() == [[0], [2]]
    assert experts(got.selected) == [0, 1, 2]
    two = run("logit-sum:k0=1,m=2", logits, RouterSpec.softmax(2))
    assert two.ids.tolist() == [[0, 1], [2, 1]]  # the pool is {1, 2}; row 1 may not use expert 0


def test_a_small_random_set_is_not_filled_up_with_the_best():
    logits = torch.randn(200, 8, 64, generator=torch.Generator().manual_seed(0))
    router = RouterSpec.softmax(8)
    small, whole = (run(text, logits, router) for text in ("random:m=1", "random:m=8"))
    assert (small.selected.sum(-1) == 8).all()
    assert torch.equal(small.selected, whole.selected)


def test_random_has_the_size_of_xshare_and_is_not_chosen():
    logits = torch.randn(40, 8, 64, generator=torch.Generator().manual_seed(0))
    ours, control, other = (
        run(text, logits, TOP3) for text in ("k0=1,m=4", "random:k0=1,m=4", "random:k0=1,m=4,seed=1")
    )
    assert torch.equal(ours.selected.sum(-1), control.selected.sum(-1))
    assert torch.equal(control.selected, run("random:k0=1,m=4", logits, TOP3).selected)
    assert not torch.equal(control.selected, other.selected)
    share = control.selected.double().mean(0)  # over 40 steps every expert should come up about equally often
    expected = control.selected.double().mean()
    assert ((share - expected).abs() < 5 * (expected * (1 - expected) / 40).sqrt()).all()
    overlap = (control.selected & ours.selected).sum() / ours.selected.sum()
    assert overlap < 0.4  # about 11 of 64 by chance


def test_a_calibrated_method_brings_its_tables():
    """Room for methods that substitute experts by a per-layer table: they return their own ids and weights."""

    @register("swap", "for this test", knobs=Knobs(), needs="router", tables=("instead",))
    def swap(step, policy):
        ids = step.tables["instead"][step.native.ids]
        keep = torch.zeros(step.num_experts, dtype=torch.bool).index_fill(0, step.tables["instead"], True)
        return Selection(keep=keep, routed=(ids, step.native.weights))

    try:
        table = torch.tensor([0, 0, 2, 2, 2])
        got = run("swap", tables={"instead": table})
        assert got.ids.tolist() == [[0, 0, 2], [0, 2, 2], [2, 2, 0]]
        assert experts(got.active) == [0, 2]
        with pytest.raises(PolicyError, match="'instead'"):
            run("swap")
    finally:
        del METHODS["swap"], METHOD_KNOBS["swap"]


def test_every_method_is_registered_with_one_line():
    assert set(METHODS) == {"xshare", "native", "topk", "oea", "lynx", "skip", "logit-sum", "random"}
    assert all(method.summary and "\n" not in method.summary for method in METHODS.values())


@pytest.mark.parametrize("text", ["topk:k=2", "lynx:drop=2", "skip:beta=0.5", "logit-sum:k0=1,m=3", "random:k0=1,m=2"])
@pytest.mark.parametrize("block", range(3))
def test_rivals_never_break_a_row(text, block):
    """Whatever the router and the rows: valid ids, no NaN, inside what is allowed, and native without a vote."""
    for seed in range(block * 50, (block + 1) * 50):
        case = make(seed, broken=True)
        got = run(text, case.tensor(), case.spec(), layout=case.keywords()["layout"])
        assert not got.weights.isnan().any()
        assert bool(((got.ids >= 0) & (got.ids < case.N)).all())
        assert bool((got.selected | ~got.active).all())
        assert 0 <= got.mass.item() <= 1 + 1e-12
