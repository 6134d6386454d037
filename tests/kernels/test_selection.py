"""The fused selection, one property at a time, and what it refuses (random cases: test_random_configurations.py)."""

import logging
from types import SimpleNamespace

import pytest
import torch
from one_selection import DEVICE, TOP_4, fused, layout_of, of_shape

import xshare
from xshare import LayoutError, Placement, Policy, PolicyError, RouterError, RouterSpec
from xshare.engines.gates import Tally
from xshare.engines.serving.compiled import Compiled
from xshare.engines.serving.gpu_selector import FusedSelector, Pool
from xshare.engines.serving.layer_buffers import Buffers
from xshare.engines.serving.state import State
from xshare.engines.serving.step import Step
from xshare.engines.serving.step_sizes import Sizes
from xshare.engines.vllm.settings import settings_of
from xshare.kernels.control import Control, layer_numbers
from xshare.kernels.control_words import LayerNumber
from xshare.kernels.limits import thresholds_of
from xshare.staircase import Stairs

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with NaN as a GPU does

STAIRS = ((4, (8, 12, 19, 30)), (8, (10, 18, 27, 40)), (12, (16, 25, 33, 45)))  # rows of a step, where stairs end


@pytest.mark.parametrize(
    "text", ["k0=1,m=8", "k0=1,mr=2", "k0=1,mg=2", "k0=0,tau=0.8", "k0=1,m=8,score=full", "k0=1,mr=2,score=full"]
)
def test_many_programs_choose_the_references_set(text):
    """Programs share the rows out, vote, and then all choose alike."""
    router, policy, placement = RouterSpec.softmax(4), Policy.parse(text), Placement.contiguous(40, 4)
    logits = torch.randn(90, 40, generator=torch.Generator().manual_seed(1)) * 2
    starts = [*range(0, 84, 4), 84, 85, 87]
    want = xshare.route(logits, router, policy, layout=layout_of(90, starts), placement=placement)
    spread = None if policy.device_budget is None else placement
    got, masked = fused(router, policy, logits, starts, rows_per_request=4, placement=spread)
    assert torch.equal(got.keep.cpu(), want.selected)
    assert torch.equal(masked, logits.masked_fill(~want.selected, torch.finfo(torch.float32).min))


@pytest.mark.parametrize("rows", [16, 40])  # one tile, and blocks
@pytest.mark.parametrize("text", ["k0=1,m=8", "k0=0,rho=0.7", "k0=0,lam=0.04,p=2", "k0=1,tau=0.8"])
def test_made_for_one_kind_of_policy(text, rows):
    """Code that its policies never need is left out, and what is left chooses the same."""
    policy = Policy.parse(text)
    logits = torch.randn(rows, 64, generator=torch.Generator().manual_seed(2)) * 2
    want = xshare.route(logits, TOP_4, policy).selected
    got, _ = fused(TOP_4, policy, logits, list(range(rows + 1)), thresholds=thresholds_of([policy]))
    assert torch.equal(got.keep.cpu(), want)
    other = Policy.parse("k0=0,rho=0.7" if "rho" not in text else "k0=1,tau=0.8")
    with pytest.raises(PolicyError, match="was made without: start an engine with such a policy, or with live 'any'"):
        got.check(other)


def test_scores_of_the_top_k_where_all_of_them_underflow():
    """Shares of the native top-k are by the logarithm of the score: sigmoid(-200) is nothing in 32 bits."""
    logits = torch.full((4, 24), -200.0) + torch.randn(4, 24, generator=torch.Generator().manual_seed(8))
    router, policy = (
        RouterSpec.sigmoid(4, correction_bias=torch.linspace(0, 1, 24)),
        Policy.parse("k0=0,m=5"),
    )
    logits[:2, :20] += 400  # rows that choose others
    want = xshare.route(logits, router, policy).selected
    assert torch.equal(fused(router, policy, logits, [0, 1, 2, 3, 4])[0].keep.cpu(), want)


def test_kept_mass_and_masked_bias():
    bias = torch.linspace(-0.2, 0.2, 24)
    logits = torch.randn(6, 24, generator=torch.Generator().manual_seed(2))
    for router in (RouterSpec.softmax(4), RouterSpec.sigmoid(4, correction_bias=bias)):
        got, _ = fused(router, Policy.parse("k0=1,m=4"), logits, [0, 1, 2, 3, 4, 5])
        score = router.score(logits.double())
        share = (score * got.keep.cpu()).sum(-1) / score.sum(-1)
        torch.testing.assert_close(got.share.cpu()[:5].double(), share[:5], rtol=1e-5, atol=0)
        assert got.share[5] == 1  # a padding row
    assert torch.equal(got.masked_bias.cpu(), bias.masked_fill(~got.keep.cpu(), torch.finfo(torch.float32).min))


@pytest.mark.parametrize("rows", [8, 40])
def test_a_layers_own_numbers_take_the_place_of_the_controls(rows):
    logits = torch.randn(rows, 33, generator=torch.Generator().manual_seed(4))
    own = torch.zeros(len(LayerNumber), dtype=torch.float64, device=DEVICE)
    selection = of_shape(33, rows, own=own)
    control = Control(DEVICE)
    control.set_policy(Policy.parse("k0=0,m=12"))
    control.set_step(rows)
    control.set_gate(True)
    control.push()
    for text in ("m=7", "m=33", "rho=0.6", "lam=0.9", "tau=0.4"):
        own.copy_(layer_numbers(Policy.parse(text)))
        selection.launch(logits.to(DEVICE, copy=True), control)
        assert torch.equal(selection.keep.cpu(), xshare.route(logits, TOP_4, Policy.parse(text)).selected), text


def test_a_budget_of_everything_and_a_closed_gate_leave_the_bits_alone():
    logits = torch.randn(8, 33, generator=torch.Generator().manual_seed(3)).bfloat16()
    got, left = fused(RouterSpec.softmax(4), Policy.parse("k0=1,m=33"), logits, [0, 8])
    assert torch.equal(left, logits)
    assert got.keep.all()
    selection = of_shape(33, 8, RouterSpec.sigmoid(4, correction_bias=torch.arange(33.0)))
    control = Control(DEVICE)
    control.set_policy(Policy.parse("k0=0,m=4"))
    control.set_step(8)
    rows = logits.to(DEVICE, copy=True)
    selection.launch(rows, control)  # the gate is closed until it is opened
    assert torch.equal(rows.cpu(), logits)
    assert selection.keep.all()
    assert torch.equal(selection.masked_bias, selection.bias)
    control.set_gate(True)
    control.push()
    selection.launch(rows, control)
    assert int(selection.keep.sum()) == 4
    control.set_gate(False)
    control.push()
    selection.launch(rows, control)
    assert torch.equal(selection.masked_bias, selection.bias)


def test_strided_rows_leave_other_columns_alone():
    wide = torch.randn(8, 64, generator=torch.Generator().manual_seed(4))
    logits = wide[:, :40]
    selection = of_shape(40, 8)
    control = Control(DEVICE)
    control.set_policy(Policy.parse("k0=1,m=4"))
    control.set_step(8)
    control.set_gate(True)
    control.push()
    there = wide.to(DEVICE, copy=True)
    selection.launch(there[:, :40], control)
    want = xshare.route(logits, RouterSpec.softmax(4), Policy.parse("k0=1,m=4")).selected
    assert torch.equal(selection.keep.cpu(), want)
    assert torch.equal(there[:, 40:].cpu(), wide[:, 40:])


@pytest.mark.parametrize("text", ["k0=0,lam=0.3,p=2", "k0=1,m=8", "k0=0,rho=0.7", "k0=1,mr=2"])
def test_every_step_weighs_the_costs_of_its_rows(text):
    """One selection with all tables of a staircase; the control says which counts."""
    times = {rows: {size: 10.0 + sum(size > edge for edge in edges) for size in range(4, 65)} for rows, edges in STAIRS}
    stairs, policy = Stairs({"experts": 64}, times), Policy.parse(text)
    selection = of_shape(64, 16, cost=stairs.costs.to(DEVICE), rows_per_request=1 if policy.request_budget else 0)
    others = 0
    for rows in (3, 4, 5, 8, 12, 13, 16):
        logits = torch.randn(16, 64, generator=torch.Generator().manual_seed(rows)) * 2
        table, starts = stairs.table_for(rows), list(range(rows + 1))
        cost, layout = None if table is None else stairs.costs[table], layout_of(16, starts)
        got, _ = fused(TOP_4, policy, logits, starts, selection, table=table)
        want = xshare.route(logits, TOP_4, policy, layout=layout, cost=cost).selected
        assert torch.equal(got.keep.cpu(), want), rows
        others += not torch.equal(want, xshare.route(logits, TOP_4, policy, layout=layout).selected)
        assert (table is None) == (rows > 12)
    assert others >= 2


def selector_of(policy, compiled, step, keep, rows):
    site = SimpleNamespace(router=TOP_4, num_experts=64, placement=None)
    hook = {"mask_logits": True, "with_share": False, "reroutes": False, "routes": None}
    return FusedSelector(site, Buffers(keep, None), step, Sizes(rows), policy, compiled=compiled, pool=Pool(), **hook)


@pytest.mark.parametrize(
    ("started_with", "rows_each"),
    [
        ({"policy": "balanced"}, 0),
        ({"policy": "balanced", "gates": {"bypass": False}}, 0),
        ({"policy": "balanced", "live": "any"}, 4),
        ({"policy": "k0=1,m=0,mr=4"}, 4),
    ],
)
def test_request_budgets_are_compiled_where_a_server_may_need_them(started_with, rows_each):
    """A server with three drafts: without request budgets it has the faster kernel, which takes no request budgets."""
    settings = settings_of({"xshare": started_with | {"metrics": False}})
    policy, keep = settings.policy, torch.ones(64, dtype=torch.bool, device=DEVICE)
    compiled = Compiled.of(settings, policy, [0, 1], top_k=4, drafts=3, every_size=settings.at_every_size)
    assert compiled.rows_per_request == rows_each
    control = Control(DEVICE)
    control.set_policy(policy)
    selector = selector_of(policy, compiled, Step(torch.device(DEVICE), control), keep, 16)
    assert selector.selections[16].plan.one_tile == (rows_each == 0)
    logits, starts = torch.randn(16, 64, generator=torch.Generator().manual_seed(5)) * 2, list(range(0, 17, 4))
    control.set_step(16, starts)
    control.set_gate(True)
    control.push()
    selector.launch(logits.to(DEVICE, copy=True))
    assert torch.equal(keep.cpu(), xshare.route(logits, TOP_4, policy, layout=layout_of(16, starts)).selected)
    other = Policy.parse("k0=1,m=0,mr=2")
    if rows_each:
        selector.check_policy(other)
    else:
        with pytest.raises(PolicyError, match=r"request_budget \(mr\) in k0=1,m=0,mr=2 needs a selection made with"):
            selector.check_policy(other)


def test_vllm_hands_the_tables_to_its_kernels():
    """A layer of vLLM on a GPU, as far as it is ours: told of steps, it weighs what a step's table says."""
    stairs = Stairs({"experts": 64}, {4: {4: 1.0, 20: 1.0, 21: 9.0, 64: 10.0}})
    policy = Policy.parse("k0=1,m=2")
    control = Control(DEVICE)
    control.set_policy(policy)
    step = Step(torch.device(DEVICE), control, costs=stairs.costs.to(DEVICE))
    keep = torch.ones(64, dtype=torch.bool, device=DEVICE)
    settings = settings_of({"xshare": {"policy": str(policy), "gates": {"bypass": False}, "metrics": False}})
    selector = selector_of(policy, Compiled.of(settings, policy, [0], 4, 0, every_size=True), step, keep, 8)
    state = State(settings, policy, [], step, Sizes(8), Tally(logging.getLogger("xshare")), stairs=stairs)
    for rows, on in ((4, True), (4, False), (3, True), (6, True)):
        logits = torch.randn(rows, 64, generator=torch.Generator().manual_seed(rows)) * 2
        state.weigh_costs(on)
        state.step(True, state.one_row_per_request(rows))
        selector.launch(logits.to(DEVICE, copy=True))
        cost = stairs.costs[0] if on and rows <= 4 else None
        assert torch.equal(keep.cpu(), xshare.route(logits, TOP_4, policy, cost=cost).selected)
        assert (int(keep.sum()) > 4 + rows) == (cost is not None)


@pytest.mark.parametrize(
    ("make", "error", "names"),
    [
        (lambda: of_shape(600, 8), LayoutError, "512 experts"),
        (lambda: of_shape(64, 300), LayoutError, "256 rows"),
        (lambda: of_shape(48, 8, RouterSpec.sigmoid(4, n_group=3, topk_group=1)), LayoutError, "powers of two"),
        (lambda: Control(DEVICE).set_policy(Policy.parse("k0=5,m=1")), PolicyError, "at most 4"),
        (lambda: Control(DEVICE).set_policy(Policy.parse("oea:k0=1")), PolicyError, "oea:k0=1"),
        (lambda: Control(DEVICE, max_requests=2).set_step(4), LayoutError, "at most 2"),
        (lambda: of_shape(64, 8).check(Policy.parse("k0=1,mr=2")), PolicyError, "rows_per_request"),
        (lambda: of_shape(64, 8).check(Policy.parse("k0=1,mg=2")), PolicyError, "placement"),
        (lambda: of_shape(64, 8, own=torch.zeros(3)), LayoutError, r"own must be a contiguous \[4\], not \[3\]"),
        (lambda: of_shape(64, 8, cost=torch.zeros(1, 64)), LayoutError, r"cost must be a contiguous \[1, 65\]"),
        (lambda: of_shape(64, 8).launch(torch.zeros(8, 60), Control(DEVICE)), LayoutError, "64"),
        (
            lambda: of_shape(64, 8).launch(torch.zeros(9, 64), Control(DEVICE)),
            LayoutError,
            "8 or fewer",
        ),
        (lambda: of_shape(64, 8).launch(torch.zeros(64), Control(DEVICE)), LayoutError, "not .64."),
        (
            lambda: of_shape(64, 8, RouterSpec.sigmoid(4, correction_bias=torch.zeros(60))),
            RouterError,
            "one value an expert",
        ),
        (lambda: of_shape(64, 8, RouterSpec(4, "tanh")), RouterError, "'tanh'"),
        (lambda: of_shape(64, 8, RouterSpec(4, n_group=4, topk_group=2)), RouterError, "sigmoid"),
        (
            lambda: of_shape(64, 8, placement=Placement.contiguous(32, 4)),
            LayoutError,
            "each of the 64",
        ),
    ],
)
def test_what_it_cannot_serve_is_named(make, error, names):
    with pytest.raises(error, match=names):
        make()
