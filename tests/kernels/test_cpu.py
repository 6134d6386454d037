"""The compiled steps on a CPU are the reference: the same sets, ids and counts, weights to the last few bits."""

import logging
import random
import time
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import random_cases
import torch

import xshare
from xshare.kernels import cpu
from xshare.kernels.cpu import call
from xshare.routing import cost_table, fit_layout, prepare_step, route, route_compiled, route_prepared

# Not imported here: vLLM, whose engines other tests start in this process, must find it as the package leaves it.
pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="Numba is not installed")
SAME = ("ids", "selected", "active", "active_native", "max_load", "excluded")
CLOSE = ("weights", "mass", "below_half", "smallest_kept", "top1_kept")


def reference(logits, router, policy, layout=None, placement=None, cost=None, dtype=torch.float64):
    layout, placement = fit_layout(logits, layout, placement)
    table = None if cost is None else cost_table(cost, logits)
    return route_prepared(prepare_step(logits, router, layout, placement, None, table), router, policy, dtype)


def compiled(logits, router, policy, layout=None, placement=None, cost=None):
    layout, placement = fit_layout(logits, layout, placement)
    table = None if cost is None else cost_table(cost, logits)
    return route_compiled(logits, cpu.Steps(router, policy, placement, table), layout)


def assert_same(ours, theirs, what=""):
    for name in SAME:
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), f"{what}: {name}"
    for name in CLOSE:
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-13, atol=1e-15, msg=f"{what}")


@pytest.mark.parametrize("block", range(4))
def test_compiled_routing_equals_the_reference_in_random_cases(block):
    """10,000 of them were compared once; those of the oracle in test_routing go through the compiled steps as well."""
    for seed in range(150 * block, 150 * (block + 1)):
        case = random_cases.make(seed)
        arguments = (case.tensor(), case.spec(), case.xshare_policy())
        assert_same(compiled(*arguments, **case.keywords()), reference(*arguments, **case.keywords()), f"seed {seed}")


@pytest.mark.parametrize("policy", ["oea:k0=1", "native"])
def test_rivals_know_no_costs(policy):
    torch.manual_seed(0)
    arguments = torch.randn(6, 16, dtype=torch.float64), xshare.RouterSpec.softmax(4), xshare.Policy.parse(policy)
    flat = [0.0] * 17  # all experts for nothing
    assert_same(compiled(*arguments, cost=flat), reference(*arguments))


def test_many_steps_each_by_itself():
    """Leading dimensions: a layout, a placement and a bias for each step, or one for all."""
    torch.manual_seed(0)
    logits = torch.randn(5, 3, 12, 16, dtype=torch.float64) * 2
    requests = torch.randint(-1, 4, (5, 1, 12))
    layout = xshare.BatchLayout(requests, protected=(requests >= 0) & (torch.rand(5, 1, 12) < 0.2))
    devices = xshare.Placement(torch.randint(0, 4, (3, 16)), 4)
    router = xshare.RouterSpec.sigmoid(4, correction_bias=torch.randn(3, 16), n_group=4, topk_group=2)
    for text in ("rho=0.6,mr=2", "k0=1,mg=3,fill=rounds,score=full", "k0=1,tau=0.7", "lam=0.3,p=2"):
        arguments = (logits, router, xshare.Policy.parse(text))
        assert_same(compiled(*arguments, layout, devices), reference(*arguments, layout, devices), text)
        assert_same(compiled(*arguments), reference(*arguments), text)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_any_type_of_logits(dtype):
    torch.manual_seed(1)
    logits = (torch.randn(16, 64) * 2).to(dtype)
    arguments = (logits, xshare.RouterSpec.softmax(4), xshare.Policy.parse("rho=0.7"))
    ours = route(*arguments)
    assert ours.weights.dtype == torch.float32
    theirs = reference(*arguments, dtype=torch.float32)
    assert all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in SAME)
    torch.testing.assert_close(ours.weights, theirs.weights)


def test_oea_renormalises_whatever_the_model_does():
    logits = torch.randn(8, 32, dtype=torch.float64)
    arguments = (logits, xshare.RouterSpec.softmax(4, renormalize=False), xshare.Policy.parse("oea:rho=0.5"))
    assert_same(compiled(*arguments), reference(*arguments))


def test_native_routing_too():
    """With the same arithmetic, so that a policy that keeps everything gives its bits."""
    torch.manual_seed(2)
    logits = torch.randn(3, 9, 16, dtype=torch.float64)
    logits[0, 2], logits[1, 4, 3] = float("nan"), float("-inf")
    layout = xshare.BatchLayout([0, 0, 1, -1, 2, 3, -1, 4, 5])
    for router in (
        xshare.RouterSpec.softmax(4),
        xshare.RouterSpec.softmax(4, renormalize=False),
        xshare.RouterSpec.sigmoid(4, correction_bias=torch.randn(16), n_group=4, topk_group=2),
    ):
        arguments = (logits, router, xshare.Policy.parse("native"))
        assert_same(compiled(*arguments, layout), reference(*arguments, layout))
        everything = route(logits, router, "k0=1,m=16", layout=layout)
        readable = ~logits.isnan().any(-1)
        for name in ("ids", "weights"):
            ours, theirs = (
                getattr(routing, name)[readable] for routing in (everything, route(*arguments, layout=layout))
            )
            assert torch.equal(ours, theirs), name


def test_other_methods_take_the_reference():
    logits = torch.randn(8, 32)
    for text in ("topk:k=2", "lynx:drop=3", "random:k0=1,m=4"):
        assert not cpu.serves(logits, xshare.Policy.parse(text))
    assert cpu.serves(logits, xshare.Policy.parse("rho=0.7"))
    assert not cpu.serves(logits[:0], xshare.Policy.parse("rho=0.7"))


def test_without_numba_the_reference_runs_and_one_line_says_so(monkeypatch, caplog):
    monkeypatch.setattr(call, "find_spec", lambda name: None)
    call.installed.cache_clear()
    logits, router = torch.randn(8, 32), xshare.RouterSpec.softmax(4)
    with caplog.at_level(logging.WARNING, "xshare"):
        routings = [route(logits, router, xshare.Policy.parse("rho=0.7")) for _ in range(3)]
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert "pip install numba" in caplog.records[0].message
    monkeypatch.undo()
    call.installed.cache_clear()
    assert torch.equal(routings[0].ids, route(logits, router, xshare.Policy.parse("rho=0.7")).ids)


def best_of(call, repeats):
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


@pytest.mark.parametrize("text", ["rho=0.7", "k0=1,m=12", "k0=1,mr=4,score=full", "lam=0.04,p=2"])
def test_selection_takes_a_fraction_of_the_reference(text):
    """1/25 by evidence/cpu_selection.json; here less is asked for, because tests run side by side."""
    logits, router, policy = torch.randn(16, 64) * 2, xshare.RouterSpec.softmax(4), xshare.Policy.parse(text)
    layout, steps = xshare.BatchLayout(torch.arange(16) // 4), cpu.Steps(router, policy)
    fast = best_of(partial(steps, logits, layout), 200)
    slow = best_of(partial(reference, logits, router, policy, layout), 20)
    assert slow / fast > 12, f"{slow * 1e6:.0f} us and {fast * 1e6:.0f} us"


def test_rows_settle_as_the_reference_has_them():
    """A row that keeps its native experts keeps the model's bits."""
    from xshare.engines.transformers.layer import settle

    rng = random.Random(3)
    for seed in range(40):
        torch.manual_seed(seed)
        logits, router = torch.randn(6, 16) * 2, xshare.RouterSpec.softmax(4)
        policy = xshare.Policy.parse(rng.choice(["rho=0.6", "k0=1,m=3", "k0=1,m=16"]))
        native = route(logits, router, xshare.Policy.parse("native"))
        order = torch.stack([torch.randperm(4) for _ in range(6)])  # a model may list them in another order
        weights = (native.weights.gather(1, order) * (1 + 1e-7)).to(torch.bfloat16 if seed % 2 else torch.float32)
        ids = native.ids.gather(1, order).int()
        theirs = settle(reference(logits, router, policy), weights, ids)
        steps = cpu.Steps(router, policy)
        ours = steps.settle(steps(logits), weights.unsqueeze(0), ids.unsqueeze(0))
        for tensor, other in zip(ours, theirs, strict=True):
            assert tensor.dtype == other.dtype
            assert torch.equal(tensor.squeeze(0), other)


@pytest.mark.parametrize("seed", range(60))
def test_a_step_in_one_call_is_the_same(seed):
    """What an engine on a CPU calls for a single step, figures included."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    n, N, k = rng.choice([1, 3, 16]), rng.choice([8, 64]), rng.choice([2, 4])
    router = rng.choice(
        [xshare.RouterSpec.softmax(k), xshare.RouterSpec.sigmoid(k, correction_bias=torch.randn(N) / 4)]
    )
    policy = xshare.Policy.parse(rng.choice(["rho=0.6", "k0=1,m=3", f"k0=1,m={N}", "k0=1,m=0,mr=2", "lam=0.3,p=2"]))
    logits, requests = torch.randn(n, N) * 2, torch.tensor([[rng.randrange(-1, n) for _ in range(n)]])
    logits[rng.randrange(n)] = rng.choice([float("nan"), float("-inf"), 0.0])  # one that may be impossible to read
    native = route(logits, router, xshare.Policy.parse("native"))
    weights, ids, layout = native.weights.to(rng.choice([torch.float32, torch.float64])), native.ids, None
    if seed % 3:
        layout = xshare.BatchLayout(requests)
    steps, sums = cpu.Steps(router, policy), np.zeros(call.FIGURES)
    routed = steps(logits[None], layout)
    wanted = steps.settle(routed, weights[None], ids[None])
    for turn in (1, 2):
        figures = np.zeros((call.FIGURES, 1))
        ours = steps.route_single(logits, weights, ids, layout, figures, sums)
        assert all(torch.equal(tensor, other[0]) for tensor, other in zip(ours, wanted, strict=True))
        assert np.array_equal(figures, routed.figures)
        assert np.array_equal(sums, turn * routed.figures[:, 0])
        assert np.array_equal(steps.sets[0], routed.selected)
    assert (
        steps.route_single(logits.bfloat16(), weights, ids, layout, figures, sums) is None
    )  # not of a type that it takes
    assert steps.route_single(logits, weights.clone().requires_grad_(), ids, layout, figures, sums) is None
    if n > 1 and k > 1:
        assert steps.route_single(logits, weights.t().contiguous().t(), ids, layout, figures, sums) is None
    learning = steps.settle(routed, weights[None].clone().requires_grad_(), ids[None])  # a model outside no_grad
    assert all(torch.equal(tensor, other) for tensor, other in zip(learning, wanted, strict=True))


def test_llvmlite_has_a_dictionary_for_those_who_look_into_all_modules():
    """vLLM 0.32 does, when it starts in a process that has compiled."""
    from llvmlite.binding import ffi

    cpu.Steps(xshare.RouterSpec.softmax(2), xshare.Policy.parse("rho=0.7"))
    assert vars(ffi.lib).get("kernel") is None


def test_all_of_it_can_be_compiled_ahead():
    """What `make setup` does, so that nobody waits for it later."""
    from xshare.kernels.cpu.__main__ import main

    main()
    from xshare.kernels.cpu import experts, steps

    assert all(kernel.signatures for kernel in (steps.route_steps, steps.route_one, experts.add_expert_outputs))
