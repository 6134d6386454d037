"""Protected sequences of a Transformers model: routed as natively, whatever becomes of the others."""

import pytest
import torch
from model_probes import watched
from tiny_models import generate, prompts

import xshare
from xshare.errors import LayoutError
from xshare.kernels import cpu

POLICIES = ["k0=0,m=4", "k0=1,m=0", "k0=0,lam=0.9", "k0=0,rho=0.3", "oea:k0=1", "skip:beta=0.9"]
SEQUENCES = 8


@pytest.fixture(params=["compiled", "reference"])
def path(request, monkeypatch):
    """Selection on a CPU takes its compiled form, or the reference."""
    if request.param == "reference":
        monkeypatch.setattr(cpu.call, "installed", lambda: False)


def run(model, policy, sequences, tokens, **options):
    """What it says under a policy with these sequences protected, and its passes."""
    with watched(model) as steps:
        handle = xshare.apply(model, policy)
        with xshare.protect(model, sequences):
            output = generate(model, tokens, **options)
        stats = handle.stats()
        xshare.remove(model)
    return output, steps, stats


def assert_native(step, rows):
    for routed in step.layers:
        (ids, weights), (used, used_weights) = routed.native, routed.used
        assert [set(row) for row in used[rows].tolist()] == [set(row) for row in ids[rows].tolist()]
        N = routed.logits.shape[-1]
        native, actual = (
            torch.zeros(len(i), N).scatter_add_(1, i, w.float()) for i, w in ((ids, weights), (used, used_weights))
        )
        torch.testing.assert_close(actual[rows], native[rows], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["qwen3", "olmoe", "deepseek"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.usefixtures("path")
def test_protected_sequences_are_routed_as_natively(tiny, kind, policy):
    model, tokens = tiny(kind), prompts(SEQUENCES)
    native = generate(model, tokens)
    output, steps, stats = run(model, policy, [0, 3], tokens)
    assert torch.equal(output[[0, 3]], native[[0, 3]])
    assert stats["steps_pruned"] > 5
    decoding = steps[1:]
    for step in decoding:
        assert_native(step, [0, 3])
    assert not all(routed.untouched for step in decoding for routed in step.layers)


def test_all_protected_is_native(tiny):
    model, tokens = tiny("olmoe"), prompts(4)
    native = generate(model, tokens)
    output, steps, stats = run(model, "k0=0,m=4", range(4), tokens)
    assert torch.equal(output, native)
    assert all(routed.untouched for step in steps for routed in step.layers)
    assert stats["steps_pruned"] == 0
    assert stats["steps_bypassed"]["protected"] == len(steps) - 1


def test_nobody_protected_changes_nothing(tiny):
    model, tokens = tiny("qwen3"), prompts(SEQUENCES)
    xshare.apply(model, "k0=0,m=4")
    plain = generate(model, tokens)
    xshare.remove(model)
    assert torch.equal(run(model, "k0=0,m=4", [], tokens)[0], plain)


def test_padding_and_sequences_that_end_beside_protected_ones(tiny):
    model, tokens = tiny("qwen3"), prompts(6)
    mask = torch.ones(6, 6, dtype=torch.long)
    for row in range(6):
        tokens[row, :row], mask[row, :row] = 2, 0
    ends = generate(model, tokens, attention_mask=mask)[2, 8].item()
    options = {"attention_mask": mask, "eos_token_id": [1, ends], "pad_token_id": 2}
    native = generate(model, tokens, **options)
    output, steps, _ = run(model, "k0=0,m=4", [2, 5], tokens, **options)
    width = min(output.shape[1], native.shape[1])
    assert torch.equal(output[[2, 5], :width], native[[2, 5], :width])
    assert any(step.acted for step in steps)


def test_all_answers_to_a_protected_prompt(tiny):
    model, tokens = tiny("qwen3"), prompts(3)
    torch.manual_seed(0)
    _, steps, _ = run(model, "k0=0,m=4", [1], tokens, do_sample=True, num_return_sequences=2)
    for step in steps[1:]:
        assert_native(step, [2, 3])
    _, steps, _ = run(model, "k0=0,m=4", [1], tokens, num_beams=3)
    for step in steps[1:]:
        assert_native(step, [3, 4, 5])


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("policy", ["k0=0,m=4", "k0=1,m=0,mr=1", "oea:k0=1"])
def test_a_layout_with_protected_rows(tiny, policy):
    model, tokens = tiny("qwen3"), prompts(2, 3)
    with watched(model) as steps, torch.no_grad():
        xshare.apply(model, policy)
        with xshare.layout(model, xshare.BatchLayout([0, 0, 0, 1, 1, -1], protected=[1, 3])):
            model(tokens)
        requests = torch.arange(2).repeat(3, 1)
        with xshare.layout(model, xshare.BatchLayout(requests, protected=torch.tensor([[True, False]] * 3))):
            model(tokens)
        xshare.remove(model)
    rows, positions = steps
    assert rows.acted
    assert_native(rows, [1, 3])
    assert_native(positions, [0, 1, 2])  # of the first sequence, a step each


def test_what_cannot_be_protected(tiny):
    model, tokens = tiny("qwen3"), prompts(3)
    xshare.apply(model, "k0=0,m=4")
    try:
        with (
            pytest.raises(LayoutError, match="protect names sequence 3, and the batch has 3"),
            xshare.protect(model, [3]),
        ):
            generate(model, tokens)
        for wrong in ([-1], [True], ["a"]):
            with pytest.raises(LayoutError, match="numbers of sequences from 0 up"), xshare.protect(model, wrong):
                pass
        layout = xshare.BatchLayout([0, 1, 2])
        with pytest.raises(LayoutError, match="layout says"), xshare.protect(model, [0]), xshare.layout(model, layout):
            pass
        with pytest.raises(LayoutError, match="layout says"), xshare.layout(model, layout), xshare.protect(model, [0]):
            pass
    finally:
        xshare.remove(model)
