"""Every router the plugin knows, inside the real engine: what its experts were given, at each step and layer."""

import numpy as np
import pytest
import torch
from engine_probes import Recorder, check, check_coverage, dense, tolerance
from model_kinds import KINDS
from tiny_vllm_models import dtype_of, generate, prompts

import xshare

pytestmark = pytest.mark.engine

POLICIES = ["k0=1,m=2", "k0=0,m=6", "k0=2,m=0", "k0=1,m=0,mr=1", "k0=1,tau=0.7", "k0=1,m=2,score=full"]
POLICIES += ["k0=0,rho=0.7", "k0=0,lam=0.3,p=2", "k0=0,mr=1,rho=0.5,lam=0.5"]
# Twenty requests for sixteen places, of many lengths: they leave midway and others join.
MIXED = [prompts(1, length=3 + 5 * i % 19, seed=i)[0] for i in range(20)]
LENGTHS = [4 + 7 * i % 17 for i in range(20)]


def retaining(kind):
    """Options by which vLLM caches the blocks that were decoded, too. Of a sliding window newer ones keep by default
    only those with which a prompt ends, and nothing would come from the cache that was computed under pruning."""
    from vllm import EngineArgs

    interval = "prefix_cache_retention_interval"
    return {interval: 32} if kind == "gpt_oss" and interval in EngineArgs.__dataclass_fields__ else {}


class Served:
    """An engine with XShare, what it routes, and what plain vLLM answers."""

    def __init__(self, kind, checkpoint, started):
        self.kind = kind
        options = {"dtype": dtype_of(kind), "block_size": 32, "enable_prefix_caching": True} | retaining(kind)
        plain = started(checkpoint(kind), **options)
        self.plain_tokens = generate(plain, MIXED, LENGTHS)
        del plain
        self.llm = started(checkpoint(kind), {"policy": POLICIES[0], "gates": {"bypass": False}}, **options)
        self.recorder = Recorder(self.llm)
        self.state = self.recorder.state

    def rpc(self, method, value):
        (changed,) = self.llm.collective_rpc(method, args=(value,))
        return changed

    def run(self, policy, prompts=MIXED, lengths=LENGTHS):
        """Tokens and steps under a policy, or with selection switched off; nothing is left over from earlier runs."""
        self.rpc("xshare_switch", policy is not None)
        if policy is not None:
            self.rpc("xshare_set", policy)
        self.llm.reset_prefix_cache()
        self.recorder.take()
        return generate(self.llm, prompts, lengths), self.recorder.take()


@pytest.fixture(scope="module", params=KINDS)
def served(request, checkpoint, started):
    engine = Served(request.param, checkpoint, started)
    yield engine
    engine.__dict__.clear()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_decoding_step_routes_inside_the_set_that_the_policy_names(served, policy):
    _, steps = served.run(policy)
    decoding = [step for step in steps if step.decoding]
    assert len(decoding) > 10
    assert len({step.rows for step in decoding}) > 4
    for step in decoding:
        assert step.acted
        assert len(step.layers) == len(served.state.layers) == 2
        for layer, routed in zip(served.state.layers, step.layers, strict=True):
            check(step, layer, routed, policy)
            check_coverage(layer, routed, policy)


def test_prefill_and_mixed_steps_are_left_alone_to_the_last_bit(served):
    _, steps = served.run(POLICIES[0])
    prefill = [step for step in steps if not step.decoding]
    assert len(prefill) > 1
    assert any(1 in torch.tensor(step.starts).diff() for step in prefill)  # some decode in a step with others' prompts
    for step in prefill:
        assert not step.acted
        for layer, routed in zip(served.state.layers, step.layers, strict=True):
            assert torch.equal(routed.weights, routed.native[0])
            assert torch.equal(routed.ids, routed.native[1])
            reference = xshare.route(routed.logits, layer.site.router, xshare.Policy(method="native"))
            torch.testing.assert_close(
                routed.dense, dense(reference.ids, reference.weights, layer.site.num_experts), **tolerance(routed)
            )


@pytest.mark.parametrize("length", [1, 4])
def test_a_short_prompt_that_joins_is_not_taken_for_decoding(served, length):
    served.run(POLICIES[0], MIXED[:1], 1)
    engine = served.llm.llm_engine
    for number, prompt in enumerate(prompts(4, length=6)):
        add(engine, f"first {length} {number}", prompt, 12)
    for _ in range(4):
        engine.step()
    add(engine, f"late {length}", prompts(1, length=length, seed=3)[0], 4)
    while engine.has_unfinished_requests():
        engine.step()
    steps = served.recorder.take()
    assert [step.acted for step in steps] == [step.decoding for step in steps]
    (joined,) = (step for step in steps[1:] if not step.decoding)
    assert joined.rows == 4 + length
    for routed in joined.layers:
        assert torch.equal(routed.weights, routed.native[0])
        assert torch.equal(routed.ids, routed.native[1])


def add(engine, name, prompt, tokens):
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    engine.add_request(name, {"prompt_token_ids": prompt}, params)


def test_a_budget_of_all_experts_really_runs_and_changes_no_bit(served):
    tokens, steps = served.run(f"k0=1,m={served.state.layers[0].site.num_experts}")
    assert tokens == served.plain_tokens
    assert sum(step.acted for step in steps) > 10
    for routed in (routed for step in steps for routed in step.layers):
        assert torch.equal(routed.weights, routed.native[0])
        assert torch.equal(routed.ids, routed.native[1])


def test_switched_off_it_is_plain_vllm_and_switched_on_it_is_not(served):
    assert served.run(None)[0] == served.plain_tokens
    pruned, _ = served.run("k0=1,m=0")
    assert pruned != served.plain_tokens  # or equal tokens would prove nothing
    assert [tokens[0] for tokens in pruned] == [tokens[0] for tokens in served.plain_tokens]  # prompts are untouched


def ask_by_hand(served, logits, rows):
    """What the first layer's router answers in a decoding step of `rows` requests with these logits."""
    if served.state.layers[0].site.monolithic:
        pytest.skip("the experts route by themselves here, and cannot be asked apart from them")
    layer = served.state.layers[0]
    served.rpc("xshare_switch", True)
    served.rpc("xshare_set", "k0=1,m=1")
    served.state.step(True, np.arange(rows + 1, dtype=np.int32))
    hidden = torch.zeros(len(logits), 64, dtype=logits.dtype)
    served.recorder.take()
    weights, ids = layer.site.runner.router.select_experts(hidden_states=hidden, router_logits=logits)
    served.state.step(False, np.array([0, 1], np.int32))
    return weights, ids, layer.buffers.keep.clone()


def test_padding_rows_do_not_vote_and_stay_inside_the_set(served):
    _, steps = served.run(POLICIES[0], MIXED[:8], 4)
    logits = steps[-1].layers[0].logits
    alone = ask_by_hand(served, logits, 8)
    padded = torch.cat([logits, 10 * torch.randn(8, logits.shape[-1], dtype=logits.dtype)])
    weights, ids, keep = ask_by_hand(served, padded, 8)
    assert torch.equal(keep, alone[2])
    assert torch.equal(ids[:8], alone[1])
    assert torch.equal(weights[:8], alone[0])
    assert keep[ids.long()].all()


def test_a_row_of_nan_does_not_vote_and_leaves_the_others_whole(served):
    _, steps = served.run(POLICIES[0], MIXED[:8], 4)
    logits = steps[-1].layers[0].logits.clone()
    logits[-1] = float("nan")
    weights, ids, keep = ask_by_hand(served, logits, 8)
    without = ask_by_hand(served, logits[:-1], 7)
    assert torch.equal(keep, without[2])
    assert torch.equal(ids[:-1], without[1])
    assert weights[:-1].isfinite().all()
    assert keep[ids.long()].all()


# Blocks that were computed under pruning


def decoded_under_pruning(served):
    """Prompts that hold what was generated under the tightest policy, whose blocks lie in the prefix cache."""
    begun = prompts(6, length=20, seed=7)
    tokens, _ = served.run("k0=1,m=0", begun, 60)
    return [prompt + generated for prompt, generated in zip(begun, tokens, strict=True)]


def continued(served, longer):
    """Tokens that follow, how many rows the prompts took, and the last layer's logits for their last tokens."""
    served.recorder.take()
    tokens = generate(served.llm, longer, 8)
    first = served.recorder.take()[0]
    return tokens, first.rows, first.layers[-1].logits[torch.tensor(first.starts[1:]) - 1]


def test_no_block_that_was_decoded_under_pruning_outlives_it(served):
    longer = decoded_under_pruning(served)
    served.rpc("xshare_switch", False)
    tokens, rows, logits = continued(served, longer)
    served.llm.reset_prefix_cache()
    fresh_tokens, _, fresh_logits = continued(served, longer)
    assert rows == sum(map(len, longer))
    assert tokens == fresh_tokens
    assert torch.equal(logits, fresh_logits)


def needs_a_cache(served):
    """Without a prefix cache nothing is reset, and requests under way go on with what they have."""
    if not served.llm.llm_engine.vllm_config.cache_config.enable_prefix_caching:
        pytest.skip("vLLM has no prefix cache for this model here: without AMX DeepSeek's attention is served so")


def test_that_would_be_seen_without_the_reset(served, monkeypatch):
    needs_a_cache(served)
    longer = decoded_under_pruning(served)
    with monkeypatch.context() as patched:
        patched.setattr("vllm.v1.engine.core.EngineCore.reset_prefix_cache", lambda *args, **kwargs: True)
        served.rpc("xshare_switch", False)
    _, rows, logits = continued(served, longer)
    served.llm.reset_prefix_cache()
    _, fresh_rows, fresh_logits = continued(served, longer)
    assert rows < fresh_rows  # taken from the cache
    if dtype_of(served.kind) == "float32":
        assert (logits - fresh_logits).abs().max() > 1e-4  # far more than the order of operations would do


def test_requests_under_way_are_computed_again_after_a_change(served):
    needs_a_cache(served)
    served.run("k0=1,m=0", MIXED[:1], 2)
    engine, begun = served.llm.llm_engine, prompts(4, length=20, seed=9)
    for number, prompt in enumerate(begun):
        add(engine, str(number), prompt, 24)
    so_far, answers = {}, {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            answers[output.request_id] = list(output.outputs[0].token_ids)
        if not so_far and all(len(answers.get(str(number), ())) >= 10 for number in range(4)):
            so_far = dict(answers)
            assert served.rpc("xshare_switch", False)
    longer = [prompt + so_far[str(number)] for number, prompt in enumerate(begun)]
    rest = served.run(None, longer, [24 - len(so_far[str(number)]) for number in range(4)])[0]
    assert [answers[str(number)] for number in range(4)] == [
        so_far[str(number)] + tokens for number, tokens in enumerate(rest)
    ]
