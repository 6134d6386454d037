"""Which rows vote: padding, sequences that have ended, drafts, a layout of the caller's; which steps are acted on."""

import pytest
import torch
from model_probes import check, watched
from tiny_models import generate, make, prompts

import xshare

POLICY = "k0=1,m=2"
EOS, PAD = 1, 2


@pytest.fixture
def applied(tiny):
    """A function that puts a policy to work on a watched model: -> model, passes, handle."""
    left = []

    def start(kind="qwen3", policy=POLICY, **options):
        model = tiny(kind)
        watching = watched(model)
        steps = watching.__enter__()
        left.append((model, watching))
        return model, steps, xshare.apply(model, policy, **options)

    yield start
    for model, watching in left:
        xshare.remove(model)
        watching.__exit__(None, None, None)


def test_left_padding_and_sequences_that_end_early(applied):
    model, steps, handle = applied()
    tokens, mask = prompts(6), torch.ones(6, 6, dtype=torch.long)
    for row in range(6):
        tokens[row, :row], mask[row, :row] = PAD, 0
    free = generate(model, tokens, attention_mask=mask)
    ends = free[2, 8].item()  # a token that some sequence comes to
    steps.clear()
    handle.clear()
    out = generate(model, tokens, attention_mask=mask, eos_token_id=[EOS, ends], pad_token_id=PAD)
    ended = set()
    acted = 0
    for step in steps[1:]:
        ended |= {row for row, token in enumerate(step.tokens[:, 0].tolist()) if token in (EOS, ends, PAD)}
        requests = [-1 if row in ended else row for row in range(6)]
        if 6 - len(ended) >= 2:
            acted += 1
            check(model, step, requests, POLICY)
        else:
            assert not step.acted
    assert 0 < len(ended) < 6
    assert (out[2, 9:] == PAD).all()
    stats = handle.stats()
    assert stats["steps_pruned"] == acted
    assert sum(stats["steps_bypassed"].values()) + acted == len(steps)


def test_sequences_that_end_early_under_a_static_cache(applied):
    model, steps, _ = applied()
    ends = generate(model, prompts(4))[1, 8].item()
    steps.clear()
    generate(model, prompts(4), eos_token_id=ends, pad_token_id=PAD, cache_implementation="static")
    silent = [[row for row, token in enumerate(step.tokens[:, 0].tolist()) if token in (ends, PAD)] for step in steps]
    assert any(silent[1:])
    for step, quiet in zip(steps[1:], silent[1:], strict=True):
        assert step.acted == (len(quiet) <= 2)
        if step.acted:
            check(model, step, [-1 if row in quiet else row for row in range(4)], POLICY)


def test_a_loop_of_ones_own(applied):
    model, steps, _ = applied(drafts=2)
    tokens, mask = prompts(3), torch.ones(3, 6, dtype=torch.long)
    with torch.no_grad():
        cache = model(tokens, attention_mask=mask).past_key_values
        mask = torch.cat([mask, torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]])], dim=1)  # ragged drafts, padded right
        model(prompts(3, 3, seed=1), attention_mask=mask, past_key_values=cache)
        cache.crop(-2)
        model(prompts(3, 1, seed=2), attention_mask=mask[:, :8], past_key_values=cache)  # EOS here is a token as any
        model(prompts(3, 4, seed=3), past_key_values=cache)
    assert [step.acted for step in steps] == [False, True, True, False]
    check(model, steps[1], [0, 0, 0, 1, 1, -1, 2, -1, -1], POLICY)


def test_prompts_in_chunks_and_on_top_of_a_cache_are_prefill(applied):
    model, steps, handle = applied()
    free = generate(model, prompts(3, 7))
    assert torch.equal(generate(model, prompts(3, 7), prefill_chunk_size=2), free)
    assert [step.acted for step in steps] == [False] + [True] * 7 + [False] * 4 + [True] * 7
    steps.clear()
    with torch.no_grad():
        cache = model(prompts(3, 7)[:, :6]).past_key_values
    assert torch.equal(generate(model, prompts(3, 7), past_key_values=cache), free)
    assert [step.acted for step in steps] == [False, False] + [True] * 7
    assert handle.stats()["steps_bypassed"] == {"prefill": 7}


def test_without_a_cache_every_pass_is_prefill(applied):
    model, steps, _ = applied()
    generate(model, prompts(3), use_cache=False)
    assert not any(step.acted for step in steps)


@pytest.mark.parametrize("kind", ["qwen3", "deepseek"])
def test_drafts_of_assisted_generation_are_one_request(applied, kind):
    policy = "k0=1,m=0,mr=2"
    model, steps, handle = applied(kind, policy)
    drafter = make(kind, seed=0 if kind == "qwen3" else 1)  # one that is often right, and one that is not
    drafter.generation_config.update(num_assistant_tokens=4, assistant_confidence_threshold=0)
    drafter.generation_config.num_assistant_tokens_schedule = "constant"
    drafted = []
    hook = drafter.model.layers[1].mlp.gate.register_forward_hook(lambda *call: drafted.append(call))
    generate(model, prompts(1), new=12, assistant_model=drafter)
    hook.remove()
    assert drafted
    assert not steps[0].acted
    rows = [step.tokens.shape[1] for step in steps[1:]]
    assert max(rows) > 2
    for step in steps[1:]:
        assert step.acted == (step.tokens.shape[1] >= 2)
        if step.acted:
            check(model, step, [0] * step.tokens.shape[1], policy)
    assert handle.stats()["steps_pruned"] == sum(count >= 2 for count in rows)
    assert "_xshare" not in vars(drafter.model)


def test_prompt_lookup_drafts_too(applied):
    model, steps, _ = applied()
    tokens = torch.arange(3, 64).unsqueeze(0)  # whatever comes next was there before
    generate(model, tokens, new=10, prompt_lookup_num_tokens=3)
    assert any(step.acted and step.tokens.shape[1] > 1 for step in steps[1:])


def test_a_layout_of_ones_own(applied):
    model, steps, handle = applied(policy="k0=1,m=0,mr=1")
    requests = [0, 0, 0, 1, 1, 1, -1, -1, 1, 2, 2, 2]
    with torch.no_grad(), xshare.layout(model, xshare.BatchLayout(requests)):
        model(prompts(4, 3))  # a prompt, and acted on
    check(model, steps[0], requests, "k0=1,m=0,mr=1")
    with torch.no_grad():
        model(prompts(4, 3))
    assert not steps[1].acted
    with pytest.raises(xshare.LayoutError, match=r"\[12\] requests, one a row of the pass, or \[3, 4\]"):  # noqa: SIM117
        with torch.no_grad(), xshare.layout(model, xshare.BatchLayout([0, 1])):
            model(prompts(4, 3))
    assert handle.stats()["steps_pruned"] == 1


@pytest.mark.parametrize("kind", ["qwen3", "gpt_oss", "deepseek"])
def test_teacher_forcing_a_step_a_position_is_decoding_side_by_side(applied, kind):
    model, steps, handle = applied(kind)
    tokens = generate(model, prompts(5))  # [5, 6 + 8]
    decoded = steps[1:]
    counted = handle.stats()
    handle.clear()
    new, sequences = tokens.shape[1], 5
    requests = torch.arange(sequences).repeat(new, 1)
    requests[:6] = -1  # the prompt's positions are native
    with torch.no_grad(), xshare.layout(model, xshare.BatchLayout(requests)):
        logits = model(tokens).logits
    assert torch.equal(logits[:, 5:-1].argmax(-1), tokens[:, 6:])
    forced = steps[-1]
    for number, routed in enumerate(forced.layers):
        assert routed.selected[6:-1] == [step.layers[number].selected[0] for step in decoded]
        own, used = (triple[0].view(sequences, new, -1) for triple in (routed.native, routed.used))
        assert torch.equal(own[:, :6], used[:, :6])
    stats = handle.stats()
    assert stats["steps_pruned"] == 8
    assert stats["steps_bypassed"] == {"few_rows": 6}
    assert stats["layer_steps"] == [8] * len(stats["layers"])
    assert counted["mean"]["experts_active"] == pytest.approx(stats["mean"]["experts_active"], abs=1)


def test_steps_outside_the_gates_are_left_alone_and_counted(applied):
    model, steps, handle = applied(policy="k0=1,m=13", min_rows=3, max_rows=5)
    for rows in (2, 3, 4, 5, 6):
        generate(model, prompts(rows), new=2)
    assert [step.acted for step in steps[1::2]] == [False, False, True, True, False]  # three rows: 12 of 13
    stats = handle.stats()
    assert stats["steps_bypassed"] == {"prefill": 5, "few_rows": 1, "within_budget": 1, "many_rows": 1}
    assert stats["steps_pruned"] == 2


def test_figures_add_up(applied):
    model, steps, handle = applied("olmoe", "k0=1,m=3")
    generate(model, prompts(6))
    stats = handle.stats()
    acted = [step for step in steps if step.acted]
    assert stats["steps_pruned"] == len(acted) == 7
    for number in range(2):
        layer = [step.layers[number] for step in acted]
        active = [len(set(routed.used[0].flatten().tolist())) for routed in layer]
        native = [len(set(routed.native[0].flatten().tolist())) for routed in layer]
        kept = [_mass(routed) for routed in layer]
        assert stats["experts_active"][number] == pytest.approx(sum(active) / 7)
        assert stats["experts_native"][number] == pytest.approx(sum(native) / 7)
        assert stats["experts_selected"][number] == pytest.approx(sum(len(r.selected[0]) for r in layer) / 7)
        assert stats["mass_kept"][number] == pytest.approx(sum(kept) / 7, rel=1e-5)
    assert stats["mean"]["experts_active"] == pytest.approx(sum(stats["experts_active"]) / 2)
    assert stats["mean"]["experts_active"] < stats["mean"]["experts_native"]
    assert stats["top1_kept"] == [1, 1]  # k0=1 sees to it
    assert stats["excluded"] == [0, 0]


def _mass(routed):
    ids, weights = routed.native
    inside = torch.tensor([[expert in routed.selected[0] for expert in row] for row in ids.tolist()])
    return float((weights * inside).sum() / weights.sum())
