"""What only a GPU can show: captured graphs, programs that meet, and the same answers as on a CPU."""

import pytest
import torch
from one_selection import CASES, DEVICE, GPU, fused, layout_of, of_shape

import xshare
from xshare import BatchLayout, Placement, Policy, RouterSpec
from xshare.kernels.control import Control

pytestmark = pytest.mark.skipif(not GPU, reason="a CUDA graph needs a GPU")


def test_a_captured_graph_follows_its_control():
    """Other logits, row counts, requests, budgets and gate, all without a new capture."""
    router, n, N = RouterSpec.softmax(4), 16, 128
    selection = of_shape(N, n, rows_per_request=4)
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
            control.push()
            graph.replay()
            assert torch.equal(rows.cpu(), logits)
            control.set_gate(True)
            control.push()
            graph.replay()
            want = xshare.route(logits, router, Policy.parse(text), layout=layout_of(n, starts)).selected
            assert torch.equal(selection.keep.cpu(), want), (text, starts)


@pytest.mark.parametrize("n", [16, 64])
def test_layers_in_a_graph_wait_for_one_another(n):
    """GEMM -> selection -> reader, layer after layer on shared scratch: who starts early waits for what it needs."""
    N, hidden = 128, 512
    noise = torch.Generator(DEVICE).manual_seed(11)
    # Small whole numbers over 16: no GEMM rounds them, whichever is chosen inside a graph and outside.
    weights = [torch.randint(-2, 3, (hidden, N), device=DEVICE, generator=noise).bfloat16() / 16 for _ in range(12)]
    inputs, logits = torch.zeros(n, hidden, device=DEVICE).bfloat16(), torch.empty(n, N, device=DEVICE).bfloat16()
    control, first = Control(DEVICE), None
    layers = []
    for _ in weights:
        layers.append(of_shape(N, n, scratch=first and first.scratch))
        first = first or layers[0]
    left = [torch.empty_like(logits) for _ in weights]

    def step():
        for weight, layer, out in zip(weights, layers, left, strict=True):
            torch.mm(inputs, weight, out=logits)
            layer.launch(logits, control)
            torch.add(logits, 0, out=out)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    alone = of_shape(N, n)
    for turn in range(CASES // 5):
        inputs.random_(-2, 3, generator=noise)
        control.set_policy(
            Policy.parse(["k0=1,m=8,score=full", "k0=0,rho=0.6", "k0=0,m=64", "k0=1,tau=0.7", "lam=0.9,p=2"][turn % 5])
        )
        control.set_step(n - turn % 3)
        control.set_gate(turn % 7 != 0)
        control.push()
        graph.replay()
        torch.cuda.synchronize()
        for weight, layer, out in zip(weights, layers, left, strict=True):
            torch.mm(inputs, weight, out=logits)
            torch.cuda.synchronize()
            alone.launch(logits, control)
            assert torch.equal(out, logits), turn
            assert torch.equal(layer.keep, alone.keep), turn


@pytest.mark.parametrize("n", [8, 64])
def test_two_ranks_in_a_graph_choose_from_the_votes_of_both(n):
    """The first leaves what it says, the second adds it to its own; either may be closed, and rows may differ."""
    N, messages = 128, []
    controls = [Control(DEVICE), Control(DEVICE)]
    rows = [torch.zeros(size, N, device=DEVICE).bfloat16() for size in (n, 5)]

    def adds(message):
        message.add_(messages[0])

    def leaves(message):
        messages[:] = messages or [torch.zeros_like(message)]
        messages[0].copy_(message)

    ranks = [of_shape(N, len(rank_rows), across=across) for rank_rows, across in zip(rows, (adds, leaves), strict=True)]

    def step():
        for rank in (1, 0):
            ranks[rank].launch(rows[rank], controls[rank])

    for control in controls:
        control.set_policy(Policy.parse("k0=1,m=8"))
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    noise = torch.Generator().manual_seed(5)
    for turn in range(CASES // 5):
        policy = Policy.parse(["k0=1,m=8", "k0=0,rho=0.6", "k0=1,tau=0.7"][turn % 3])
        logits = [(torch.randn(len(rank_rows), N, generator=noise) * 2).bfloat16() for rank_rows in rows]
        for rank, control in enumerate(controls):
            rows[rank].copy_(logits[rank])
            control.set_policy(policy)
            control.set_step(len(logits[rank]))
            control.set_gate((turn + rank) % 4 != 0)
            control.set_group(7)
            control.push()
        graph.replay()
        voting = [rank_logits for rank, rank_logits in enumerate(logits) if (turn + rank) % 4 != 0]
        want = xshare.route(torch.cat(voting), RouterSpec.softmax(4), policy).selected if turn % 4 else None
        assert torch.equal(ranks[0].keep.cpu(), torch.ones(N, dtype=torch.bool) if want is None else want), turn


def test_programs_meet_after_days_of_serving():
    """Arrivals are counted for as long as an engine lives: beyond what 32 bits hold."""
    selection = of_shape(128, 64)
    assert selection.plan.blocks > 1
    logits = torch.randn(64, 128, generator=torch.Generator().manual_seed(9)).bfloat16()
    want = xshare.route(logits, RouterSpec.softmax(4), Policy.parse("k0=1,m=8")).selected
    selection.scratch.arrivals.fill_(2**31 - 2 * selection.plan.blocks)
    for _ in range(4):
        got, _ = fused(RouterSpec.softmax(4), Policy.parse("k0=1,m=8"), logits, list(range(65)), selection)
        assert torch.equal(got.keep.cpu(), want)


@pytest.mark.parametrize(
    "text",
    ["k0=1,m=8", "k0=1,mr=2", "k0=1,mg=2", "k0=1,tau=0.8", "k0=1,m=4,score=full", "k0=0,lam=0.4,p=2", "oea:k0=2"],
)
def test_select_and_route_on_a_gpu_equal_the_cpu(text):
    logits = torch.randn(16, 64, generator=torch.Generator().manual_seed(8))
    policy, placement = Policy.parse(text), Placement.contiguous(64, 4)
    layout = BatchLayout([0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3, -1, -1, -1, -1])
    on_cpu = xshare.route(logits, RouterSpec.softmax(4), policy, layout=layout, placement=placement)
    on_gpu = xshare.route(logits.cuda(), RouterSpec.softmax(4), policy, layout=layout, placement=placement)
    assert torch.equal(on_cpu.selected, on_gpu.selected.cpu())
    assert torch.equal(on_cpu.ids, on_gpu.ids.cpu())
    scores = logits.softmax(-1)
    selected = xshare.select(scores, policy, layout=layout, placement=placement)
    assert torch.equal(selected, xshare.select(scores.cuda(), policy, layout=layout, placement=placement).cpu())
