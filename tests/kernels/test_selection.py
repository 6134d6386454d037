"""The fused selection against the reference: under Triton's interpreter on a CPU, for real on a GPU."""

import random
import warnings
from itertools import pairwise

import pytest
import torch

import xshare
from xshare import BatchLayout, LayoutError, Placement, Policy, PolicyError, RouterSpec

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from xshare.kernels.launch import Control, FusedSelection

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
CASES = 5000 if GPU else 200
on_gpu = pytest.mark.skipif(not GPU, reason="a CUDA graph needs a GPU")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with NaN as a GPU does


def case(seed):
    """Router, policy, logits and layout, all drawn from the seed."""
    rng = random.Random(seed)
    sizes = [1, 5, 16, 17, 32, 60, 128] + ([256, 288, 384, 512] if GPU else [])
    N, n = rng.choice(sizes), rng.choice([1, 2, 5, 8, 13, 16] + ([33, 64, 100, 256] if GPU else []))
    k = rng.randint(1, min(N, 8))
    fields = {"warmup": rng.randint(0, min(3, N))}
    if rng.random() < 0.4:
        fields["request_budget"] = rng.randint(1, 4)
    kind = rng.choice(["m", "m", "tau", "mg"])
    if kind == "m":
        fields["batch_budget"] = rng.choice([0, 1, 3, k, N // 2, N])
    elif kind == "tau":
        fields["mass"] = rng.choice([0.1, 0.5, 0.9, 1.0])
    else:
        fields |= {"device_budget": rng.randint(0, 4), "fill": rng.choice(["level", "rounds"])}
    if not any(value for name, value in fields.items() if name != "fill"):
        fields["warmup"] = 1
    router = RouterSpec.softmax(k)
    if rng.random() < 0.5:
        grouped = rng.random() < 0.4 and N >= 16 and N & (N - 1) == 0
        bias = torch.randn(N, generator=torch.Generator().manual_seed(seed)) * 0.3
        router = RouterSpec.sigmoid(
            k, correction_bias=bias, n_group=4 if grouped else 1, topk_group=2 if grouped else 1
        )
        k = router.top_k
    voting = rng.randint(0, n)
    starts = [0]
    while starts[-1] < voting:
        starts.append(min(voting, starts[-1] + rng.randint(1, 4)))
    dtype = rng.choice([torch.float32, torch.bfloat16, torch.float16])
    logits = (torch.randn(n, N, generator=torch.Generator().manual_seed(seed + 1)) * 2).to(dtype)
    if rng.random() < 0.2:
        logits[rng.randrange(n)] = rng.choice([torch.nan, torch.inf, -torch.inf])
    G = rng.choice([1, 2, 3, 8])
    placement = Placement.of([rng.randrange(G) for _ in range(N)], G)
    return router, Policy(**fields), logits, starts, placement


def layout_of(n, starts):
    requests = [-1] * n
    for request, (a, b) in enumerate(pairwise(starts)):
        requests[a:b] = [request] * (b - a)
    return BatchLayout(requests)


def fused(router, policy, logits, starts, placement, **more):
    """-> the selection after its launch, and the logits it left."""
    options = {"rows_per_request": 4} | more
    selection = FusedSelection(
        logits.shape[1],
        router.top_k,
        len(logits),
        DEVICE,
        router.scoring,
        router.correction_bias,
        router.n_group,
        router.topk_group,
        placement=None if policy.device_budget is None else placement,
        fill=policy.fill,
        **options,
    )
    control = Control(DEVICE)
    control.set_policy(policy)
    control.set_step(starts[-1], starts)
    control.set_gate(True)
    left = logits.to(DEVICE, copy=True)
    selection.launch(left, control)
    return selection, left.cpu()


def in_doubt(router, policy, logits, layout, placement):
    """Whether changes of 1e-5 to the logits change S: a decision within the margin that devices may differ by."""
    noise = torch.Generator().manual_seed(0)
    sets = set()
    for _ in range(6):
        moved = logits.double() + 1e-5 * torch.randn(logits.shape, generator=noise)
        chosen = xshare.route(moved, router, policy, layout=layout, placement=placement).selected
        sets.add(tuple(chosen.tolist()))
    return len(sets) > 1


def test_random_configurations_equal_the_reference():
    left_out = 0
    for seed in range(CASES):
        router, policy, logits, starts, placement = case(seed)
        layout = layout_of(len(logits), starts)
        want = xshare.route(logits, router, policy, layout=layout, placement=placement)
        got, masked = fused(router, policy, logits, starts, placement)
        if not torch.equal(got.keep.cpu(), want.selected):
            assert in_doubt(router, policy, logits, layout, placement), (seed, str(policy))
            left_out += 1
            continue
        lowest = torch.finfo(logits.dtype).min
        assert torch.equal(masked.nan_to_num(), logits.masked_fill(~want.selected, lowest).nan_to_num()), seed
    warnings.warn(f"{CASES} configurations, {left_out} left out within the margin", stacklevel=1)
    assert left_out <= CASES // 100


@pytest.mark.parametrize("text", ["k0=1,m=8", "k0=1,mr=2", "k0=1,mg=2", "k0=0,tau=0.8"])
def test_two_launches(text):
    """More than 64 rows: blocks vote, then all choose alike."""
    router, policy, placement = RouterSpec.softmax(4), Policy.parse(text), Placement.contiguous(40, 4)
    logits = torch.randn(90, 40, generator=torch.Generator().manual_seed(1)) * 2
    starts = [*range(0, 84, 4), 84, 85, 87]
    want = xshare.route(logits, router, policy, layout=layout_of(90, starts), placement=placement)
    got, masked = fused(router, policy, logits, starts, placement)
    assert torch.equal(got.keep.cpu(), want.selected)
    assert torch.equal(masked, logits.masked_fill(~want.selected, torch.finfo(torch.float32).min))


def test_kept_mass_and_masked_bias():
    bias = torch.linspace(-0.2, 0.2, 24)
    logits = torch.randn(6, 24, generator=torch.Generator().manual_seed(2))
    for router in (RouterSpec.softmax(4), RouterSpec.sigmoid(4, correction_bias=bias)):
        got, _ = fused(router, Policy.parse("k0=1,m=4"), logits, [0, 1, 2, 3, 4, 5], Placement.contiguous(24, 1))
        score = router.score(logits.double())
        share = (score * got.keep.cpu()).sum(-1) / score.sum(-1)
        torch.testing.assert_close(got.mass.cpu()[:5].double(), share[:5], rtol=1e-5, atol=0)
        assert got.mass[5] == 1  # a padding row
    assert torch.equal(got.masked_bias.cpu(), bias.masked_fill(~got.keep.cpu(), torch.finfo(torch.float32).min))


def test_a_budget_of_everything_and_a_closed_gate_leave_the_bits_alone():
    logits = torch.randn(8, 33, generator=torch.Generator().manual_seed(3)).bfloat16()
    one = Placement.contiguous(33, 1)
    got, left = fused(RouterSpec.softmax(4), Policy.parse("k0=1,m=33"), logits, [0, 8], one)
    assert torch.equal(left, logits)
    assert got.keep.all()
    selection = FusedSelection(33, 4, 8, DEVICE, "sigmoid", torch.arange(33.0))
    control = Control(DEVICE)
    control.set_policy(Policy.parse("k0=0,m=4"))
    control.set_step(8)
    rows = logits.to(DEVICE, copy=True)
    selection.launch(rows, control)  # the gate is closed until it is opened
    assert torch.equal(rows.cpu(), logits)
    assert selection.keep.all()
    assert torch.equal(selection.masked_bias, selection.bias)
    control.set_gate(True)
    selection.launch(rows, control)
    assert int(selection.keep.sum()) == 4
    control.set_gate(False)
    selection.launch(rows, control)
    assert torch.equal(selection.masked_bias, selection.bias)


def test_strided_rows():
    wide = torch.randn(8, 64, generator=torch.Generator().manual_seed(4))
    logits = wide[:, :40]
    selection = FusedSelection(40, 4, 8, DEVICE)
    control = Control(DEVICE)
    control.set_policy(Policy.parse("k0=1,m=4"))
    control.set_step(8)
    control.set_gate(True)
    there = wide.to(DEVICE, copy=True)
    selection.launch(there[:, :40], control)
    want = xshare.route(logits, RouterSpec.softmax(4), Policy.parse("k0=1,m=4")).selected
    assert torch.equal(selection.keep.cpu(), want)
    assert torch.equal(there[:, 40:].cpu(), wide[:, 40:])


@pytest.mark.parametrize(
    ("make", "error", "names"),
    [
        (lambda: FusedSelection(600, 4, 8, DEVICE), LayoutError, "512 experts"),
        (lambda: FusedSelection(64, 4, 300, DEVICE), LayoutError, "256 rows"),
        (lambda: FusedSelection(64, 4, 100, DEVICE, rows_per_request=50), LayoutError, "32 rows"),
        (lambda: FusedSelection(48, 4, 8, DEVICE, "sigmoid", n_group=3, topk_group=1), LayoutError, "powers of two"),
        (lambda: Control(DEVICE).set_policy(Policy.parse("k0=5,m=1")), PolicyError, "at most 4"),
        (lambda: Control(DEVICE).set_policy(Policy.parse("oea:k0=1")), PolicyError, "oea:k0=1"),
        (lambda: Control(DEVICE, max_requests=2).set_step(4), LayoutError, "at most 2"),
    ],
)
def test_what_it_cannot_serve_is_named(make, error, names):
    with pytest.raises(error, match=names):
        make()


@on_gpu
def test_a_captured_graph_follows_its_control():
    """Other logits, row counts, requests, budgets and gate, all without a new capture."""
    router, n, N = RouterSpec.softmax(4), 16, 128
    selection = FusedSelection(N, 4, n, DEVICE, rows_per_request=4)
    control, rows = Control(DEVICE), torch.empty(n, N, device=DEVICE, dtype=torch.bfloat16)
    control.set_policy(Policy.parse("k0=1,m=8"))
    control.set_step(n)
    selection.launch(rows, control)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        selection.launch(rows, control)
    noise = torch.Generator().manual_seed(7)
    for text in ("k0=1,m=8", "k0=2,m=0", "k0=0,m=24", "k0=1,mr=3", "k0=1,tau=0.7", "k0=3,mr=1,m=2"):
        for starts in ([0, 16], [0, 4, 8, 12, 16], [0, 1, 5], [0, 1, 2, 3]):
            logits = (torch.randn(n, N, generator=noise) * 2).bfloat16()
            rows.copy_(logits)
            control.set_policy(Policy.parse(text))
            control.set_step(starts[-1], starts)
            control.set_gate(False)
            graph.replay()
            assert torch.equal(rows.cpu(), logits)
            control.set_gate(True)
            graph.replay()
            want = xshare.route(logits, router, Policy.parse(text), layout=layout_of(n, starts)).selected
            assert torch.equal(selection.keep.cpu(), want), (text, starts)


@on_gpu
@pytest.mark.parametrize(
    "text", ["k0=1,m=8", "k0=1,mr=2", "k0=1,mg=2", "k0=1,tau=0.8", "k0=1,m=4,score=topk", "oea:k0=2"]
)
def test_select_and_route_on_a_gpu_equal_the_cpu(text):
    logits = torch.randn(16, 64, generator=torch.Generator().manual_seed(8))
    policy, placement = Policy.parse(text), Placement.contiguous(64, 4)
    layout = BatchLayout([0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3, -1, -1, -1, -1])
    here = xshare.route(logits, RouterSpec.softmax(4), policy, layout=layout, placement=placement)
    there = xshare.route(logits.cuda(), RouterSpec.softmax(4), policy, layout=layout, placement=placement)
    assert torch.equal(here.selected, there.selected.cpu())
    assert torch.equal(here.ids, there.ids.cpu())
    scores = logits.softmax(-1)
    mine = xshare.select(scores, policy, layout=layout, placement=placement)
    assert torch.equal(mine, xshare.select(scores.cuda(), policy, layout=layout, placement=placement).cpu())
