"""SGLang's real scheduler and model on nano, step by step in this process: what was selected, routed and answered."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sglang_probes import InProcess, check

import xshare
from xshare.engines.serving.settings import SettingsError
from xshare.quality.task_files import built_in

pytestmark = [pytest.mark.engine, pytest.mark.sglang]
PRUNED, HARD = "k0=1,m=8", "k0=0,m=4"


@pytest.fixture(scope="module")
def engine(nano):
    return InProcess({"policy": PRUNED, "gates": {"bypass": False}, "live": "any", "metrics": {"every": 1}}, nano)


@pytest.fixture(scope="module")
def prompts(engine):
    return [engine.scheduler.tokenizer.encode(task.prompt) for task in built_in(2)]


@pytest.fixture(scope="module")
def native(engine, prompts):
    """Answers with the routers that SGLang made, as they are without a plugin."""
    engine.answers(prompts[:1], tokens=1, name="first")  # which makes sure that all layers are asked
    wrapped = []
    for layer in engine.state.layers:
        topk = layer.site.topk
        wrapped.append({name: vars(topk).pop(name) for name in ("forward_native", "forward_cuda", "forward_cpu")})
        topk._forward_method = None
    answers = engine.answers(prompts[:8], name="native")
    for layer, methods in zip(engine.state.layers, wrapped, strict=True):
        vars(layer.site.topk).update(methods, _forward_method=None)
    engine.scheduler.flush_cache()
    engine.take()
    return answers


def use(engine, policy):
    assert engine.change(f"xshare_set {policy}", 1)
    assert engine.change("xshare_switch", 1)
    engine.take()


def acted(engine):
    return [step for step in engine.take() if step.acted]


def test_it_says_that_it_is_attached(engine):
    assert engine.info["xshare"] == {"policy": PRUNED, "layers": 6}
    assert all(layer.mode == "logits" for layer in engine.state.layers)


def test_a_budget_of_all_experts_gives_the_tokens_of_sglang_without_it(engine, prompts, native):
    use(engine, "k0=1,m=64")
    assert engine.answers(prompts[:8]) == native
    steps = acted(engine)
    assert len(steps) == 11
    for step in steps:
        check(step, "k0=1,m=64")
    assert len({tuple(answer) for answer in native}) == 8


@pytest.mark.parametrize(
    "policy", [PRUNED, "k0=1,m=4,score=full", "k0=1,rho=0.7", "k0=1,m=0,mr=2", "k0=1,lam=0.04,p=2"]
)
def test_sets_and_routing_are_those_of_the_reference(engine, prompts, policy):
    use(engine, policy)
    engine.answers(prompts[:8])
    steps = engine.take()
    assert [step.mode for step in steps if not step.acted] == ["EXTEND"]
    assert all(step.mode == "DECODE" and len(step.rids) == 8 for step in steps if step.acted)
    for step in steps:
        if step.acted:
            check(step, policy)


def test_pruned_answers_are_others_and_what_is_off_is_native(engine, prompts, native):
    use(engine, HARD)
    assert engine.answers(prompts[:8]) != native
    assert acted(engine)
    assert engine.change("xshare_switch", 0)
    assert engine.answers(prompts[:8]) == native  # nothing that was pruned is left in the radix cache
    assert not acted(engine)


def test_steps_are_counted_by_reason(engine, prompts):
    use(engine, PRUNED)
    before = engine.stats()
    engine.answers(prompts[:3], tokens=5)
    after = engine.stats()
    assert after["steps_pruned"] - before["steps_pruned"] == 4
    assert after["steps_bypassed"]["prefill"] - before["steps_bypassed"]["prefill"] == 1
    assert after["samples"] == 4
    assert all(s <= n for s, n in zip(after["experts_active"], after["experts_native"], strict=True))


def test_protected_rows_keep_their_experts_and_their_blocks_are_apart(engine, prompts, native):
    use(engine, HARD)
    for place, ids in enumerate(prompts[:8]):
        engine.add(f"p{place}", ids, 12, **({"xshare": "exact"} if place % 2 else {}))
    engine.run()
    answers = [list(engine.requests.pop(f"p{place}").output_ids) for place in range(8)]
    assert answers[1::2] == native[1::2]
    for step in acted(engine):
        exact = [row for row, rid in enumerate(step.rids) if int(rid[1:]) % 2]
        layout = xshare.BatchLayout(torch.arange(len(step.rids)), torch.tensor(exact))
        check(step, HARD, layout)
    # What others have decoded is not handed to a protected request, though it begins with the same tokens.
    cached = {}
    for kind in ("shared", "exact"):
        engine.add(kind, prompts[0] + answers[0][:6], 2, xshare=kind)
        engine.run()
        cached[kind] = engine.requests.pop(kind).cached_tokens
    assert cached["shared"] == len(prompts[0]) + 5
    assert cached["exact"] < len(prompts[0])
    assert engine.answers(prompts[:8], xshare="exact") == native


def test_a_change_has_running_requests_computed_again(engine, prompts, native):
    assert engine.change("xshare_switch", 0)
    for place, ids in enumerate(prompts[:8]):
        engine.add(f"c{place}", ids, 12)
    for _ in range(6):
        engine.step()
    assert engine.change("xshare_set k0=1,m=64", 1)
    assert engine.change("xshare_switch", 1)
    engine.run()
    assert [list(engine.requests.pop(f"c{place}").output_ids) for place in range(8)] == native
    assert [step.mode for step in engine.take()].count("EXTEND") >= 2


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("xshare_set k0=x", 1, "warmup (k0) must be a valid integer"),
        ("xshare_set oea:k0=1", 1, "method cannot change while serving"),
        ("xshare_set", 1, "takes a policy behind a blank"),
        ("xshare_switch", 2, "takes 0 or 1, not 2"),
        ("xshare_cost", 1, "needs an engine that was started with cost"),
        ("xshare_count", -3, "takes a number of steps from 1"),
        ("xshare_stop", 1, "is no name that xshare takes"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_sentence(engine, name, value, says):
    assert not engine.change(name, value)
    assert says in engine.stats()["refused"]


def test_what_is_no_business_of_ours_is_sglangs(engine):
    assert not engine.change("pp_max_micro_batch_size", 1000)


def test_200_requests_join_and_leave_while_the_policy_changes(engine, prompts):
    dice = random.Random(0)
    policies, running, added = [PRUNED, "k0=1,m=4", "k0=1,m=64", "k0=1,rho=0.7"], set(), 0
    lengths, now, changes = {}, PRUNED, 0
    use(engine, now)
    while added < 200 or running:
        for _ in range(dice.randrange(4)):
            if added < 200:
                lengths[f"s{added}"] = dice.randrange(2, 12)
                engine.add(f"s{added}", dice.choice(prompts), lengths[f"s{added}"])
                running.add(f"s{added}")
                added += 1
        engine.step()
        for step in engine.take():
            if step.acted:
                check(SimpleNamespace(layers=step.layers[:1]), now)
        if running and dice.random() < 0.15:
            engine.abort(dice.choice(sorted(running)))
        if dice.random() < 0.03:
            now, changes = dice.choice(policies), changes + 1
            use(engine, now)
        scheduled = {req.rid for req in (*engine.scheduler.waiting_queue, *engine.scheduler.running_batch.reqs)}
        running = {rid for rid in running & scheduled if not engine.requests[rid].finished()}
    engine.run()
    ended = [engine.requests.pop(rid) for rid in lengths]
    whole = [req for req in ended if len(req.output_ids) == lengths[req.rid]]
    assert 100 < len(whole) < 200
    assert changes
    assert engine.scheduler.is_fully_idle()
    assert engine.stats()["steps_bypassed"].get("mismatch", 0) == 0


# What no CPU has run: drafts that are verified


def verify(**spec):
    mode = SimpleNamespace(is_target_verify=lambda: True)
    return SimpleNamespace(batch_size=3, forward_mode=mode, spec_info=SimpleNamespace(**spec))


def test_drafts_belong_to_their_request(engine):
    from xshare.engines.sglang.runner import rows_of

    decoding, starts, on_device = rows_of(verify(draft_token_num=4, ragged_verify_layout=None), engine.state)
    assert decoding
    assert starts.tolist() == [0, 4, 8, 12]
    assert on_device is None


def test_ragged_drafts_belong_to_their_request(engine):
    from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

    from xshare.engines.sglang.runner import rows_of

    ends = torch.tensor([0, 2, 3, 7], dtype=torch.int32)
    layout = RaggedVerifyLayout(
        verify_lens=torch.tensor([2, 1, 4]),
        graph_num_tokens=8,
        extend_start_loc=ends[:3],
        qo_indptr_device=ends,
        verify_lens_cpu=[2, 1, 4],
        total_verify_tokens=7,
    )
    decoding, starts, on_device = rows_of(verify(ragged_verify_layout=layout), engine.state)
    assert decoding
    assert starts.tolist() == [0, 2, 3, 7]
    assert on_device is ends
    unknown = SimpleNamespace(verify_lens_cpu=None)
    assert rows_of(verify(ragged_verify_layout=unknown), engine.state)[1] is None


def test_a_step_of_which_too_little_is_known_is_left_alone(engine):
    before = engine.stats()["steps_bypassed"].get("mismatch", 0)
    engine.state.bypass("mismatch")
    assert engine.stats()["steps_bypassed"]["mismatch"] == before + 1
    assert not engine.state.now.gate
    engine.state.tally.bypassed["mismatch"] = before


# Layers


def test_rows_behind_the_voting_ones_change_nothing(engine):
    """Padding, as decode graphs have it."""
    layer = engine.state.layers[0]
    logits = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    state = engine.state
    use(engine, PRUNED)
    state.step(True, state.one_row_per_request(4))
    topk = layer.site.topk
    padded = topk(torch.zeros(6, 256), logits.clone())
    keep = layer.buffers.keep.clone()
    logits[4:] = logits[4:].flip(-1) * 50
    state.step(True, state.one_row_per_request(4))
    other = topk(torch.zeros(6, 256), logits.clone())
    assert keep.equal(layer.buffers.keep)
    assert padded.topk_ids[:4].equal(other.topk_ids[:4])
    state.step(False, state.one_row_per_request(4))


@pytest.mark.parametrize("groups", [1, 4])
def test_routers_with_a_bias_and_groups_are_replaced(engine, groups):
    """SGLang's own TopK, as DeepSeek-V3's layers have it."""
    from sglang.srt.layers.moe.topk import TopK

    from xshare.engines.serving.build_state import build_state
    from xshare.engines.serving.step_sizes import Sizes
    from xshare.engines.sglang.layer import make_layers
    from xshare.engines.sglang.routers import router_of
    from xshare.engines.sglang.site import Site

    dice = torch.Generator().manual_seed(groups)
    bias = torch.rand(32, generator=dice)
    grouped = {"use_grouped_topk": True, "num_expert_group": groups, "topk_group": 2 if groups > 1 else 1}
    topk = TopK(4, layer_id=0, renormalize=True, scoring_func="sigmoid", correction_bias=bias, **grouped)
    site = Site(0, "model.layers.0.mlp.experts", topk, torch.nn.Module(), router_of(topk), 32, None)
    assert (site.mode(engine.state.policy), site.router.n_group, site.router.scoring) == ("reroute", groups, "sigmoid")
    log = SimpleNamespace(warning=lambda *args: None)
    settings = engine.state.settings
    state = build_state([site], settings, torch.device("cpu"), Sizes(16), 16, None, make_layers, log)
    logits, hidden = torch.randn(6, 32, generator=dice), torch.zeros(6, 8)
    own = topk(hidden, logits)
    (layer,) = state.layers
    layer.attach()
    for budget, acts in ((2, True), (32, True), (2, False)):
        state.set_policy(f"k0=1,m={budget}")
        state.step(acts, np.arange(7, dtype=np.int32))
        out = topk(hidden, logits)
        if not acts or budget == 32:
            assert out.topk_ids.equal(own.topk_ids)
            assert out.topk_weights.equal(own.topk_weights)
        else:
            wanted = xshare.route(logits, site.router, xshare.Policy.parse("k0=1,m=2"))
            assert layer.buffers.keep.equal(wanted.selected)
            assert out.topk_ids.sort(-1).values.equal(wanted.ids.sort(-1).values.to(out.topk_ids.dtype))
            assert set(own.topk_ids.flatten().tolist()) - set(out.topk_ids.flatten().tolist())


def test_a_layer_whose_router_is_not_asked_ends_the_engine(engine):
    from xshare.engines.sglang.runner import check_called

    called, around = (SimpleNamespace(called=c, site=SimpleNamespace(name=n)) for c, n in ((True, "a"), (False, "b")))
    with pytest.raises(SettingsError, match="xshare is attached to b, whose routing passes it by"):
        check_called([called, around])
    assert all(layer.called for layer in engine.state.layers)
