"""Protected requests inside the real engine: their rows are routed as natively, whatever becomes of the others."""

import pytest
import torch
from engine_probes import Recorder, dense, tolerance
from model_kinds import KINDS
from tiny_vllm_models import dtype_of, monolithic, prompts

from xshare.engines.serving.settings import SettingsError
from xshare.engines.vllm.protection import SALT, RequestError
from xshare.engines.vllm.settings import settings_of

pytestmark = pytest.mark.engine

POLICIES = [
    "k0=0,m=4",
    "k0=1,m=0",
    "k0=1,m=0,mr=1",
    "k0=1,tau=0.5",
    "k0=0,m=4,score=full",
    "k0=0,rho=0.3",
    "k0=0,lam=0.9",
]
BATCH, TOKENS = 8, 12


def ask(llm, prompts, kinds, tokens=TOKENS, **more):
    """Tokens of each prompt, asked for by requests of these kinds; None says nothing."""
    from vllm import SamplingParams

    extras = [None if kind is None else {"xshare": kind} for kind in kinds]
    params = [
        SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, extra_args=extra, **more)
        for extra in extras
    ]
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [[list(output.token_ids) for output in answer.outputs] for answer in answers]


def first_of(answers):
    return [outputs[0] for outputs in answers]


class Served:
    def __init__(self, kind, checkpoint, started, settings=None, **options):
        options = {"dtype": dtype_of(kind), "block_size": 32, "enable_prefix_caching": True} | options
        key = {"policy": POLICIES[0], "gates": {"bypass": False}, "metrics": {"every": 1}}
        self.llm = started(checkpoint(kind), key | (settings or {}), **options)
        self.recorder = Recorder(self.llm)
        self.state = self.recorder.state
        self.exact_dtype = options["dtype"] == "float32"

    def rpc(self, method, value):
        return self.llm.collective_rpc(method, args=(value,))[0]

    def run(self, policy, prompts, kinds, **more):
        """Tokens and steps under a policy, or with selection switched off."""
        self.rpc("xshare_switch", policy is not None)
        if policy is not None:
            self.rpc("xshare_set", policy)
        self.llm.reset_prefix_cache()
        self.recorder.take()
        return first_of(ask(self.llm, prompts, kinds, **more)), self.recorder.take()


@pytest.fixture(scope="module", params=KINDS)
def served(request, checkpoint, started):
    engine = Served(request.param, checkpoint, started)
    yield engine
    engine.__dict__.clear()


def assert_rows_are_native(step, rows):
    for routed in step.layers:
        weights, ids = routed.native
        native, N = dense(ids, weights, routed.logits.shape[-1]), routed.logits.shape[-1]
        got = dense(routed.ids, routed.weights, N)
        atol = 1e-6 if routed.logits.dtype == torch.float32 else tolerance(routed)["atol"]
        torch.testing.assert_close(got[rows], native[rows], rtol=0, atol=atol)
        if routed.logits.dtype == torch.float32:
            assert [set(row) for row in routed.ids[rows].tolist()] == [set(row) for row in ids[rows].tolist()]


def differ(step):
    """Rows that are routed otherwise than natively, in some layer."""
    rows = set()
    for routed in step.layers:
        chosen, native = routed.ids.sort(-1).values, routed.native[1].to(routed.ids.dtype).sort(-1).values
        rows |= set((chosen != native).any(-1).nonzero().flatten().tolist())
    return rows


@pytest.mark.parametrize("policy", POLICIES)
def test_the_rows_of_protected_requests_are_routed_as_natively(served, policy):
    kinds = ["exact" if number % 3 == 0 else None for number in range(BATCH)]
    protected = [row for row, kind in enumerate(kinds) if kind]
    _, steps = served.run(policy, prompts(BATCH), kinds)
    decoding = [step for step in steps if step.decoding and step.rows == BATCH]
    assert len(decoding) > 5
    if served.state.layers[0].site.num_experts > 8:  # eight are soon needed by somebody
        assert any(differ(step) - set(protected) for step in decoding)  # the others pay
    for step in decoding:
        assert step.acted
        assert served.state.tally.bypassed["mismatch"] == 0
        assert_rows_are_native(step, protected)
        for routed in step.layers:
            assert set(routed.ids.flatten().tolist()) <= routed.keep


def test_a_protected_request_says_what_it_says_natively(served):
    """In many batches, beside others that do not."""
    if not served.exact_dtype:
        pytest.skip("in bfloat16 another number of rows in an expert's product rounds otherwise")
    others_differ = 0
    for seed in range(16):
        batch, noise = prompts(BATCH, length=5 + seed, seed=seed), torch.Generator().manual_seed(seed)
        native, _ = served.run(None, batch, [None] * BATCH)
        protected = torch.randperm(BATCH, generator=noise)[: 1 + seed % 3].tolist()
        kinds = ["exact" if number in protected else "shared" for number in range(BATCH)]
        got, _ = served.run("k0=0,m=1", batch, kinds)
        assert [got[number] for number in protected] == [native[number] for number in protected]
        others_differ += got != native
    assert others_differ > 8  # or it would prove nothing


def test_with_all_protected_no_step_is_touched(served):
    native, _ = served.run(None, prompts(BATCH), [None] * BATCH)
    before = served.state.tally.bypassed["protected"]
    got, steps = served.run("k0=0,m=4", prompts(BATCH), ["exact"] * BATCH)
    assert got == native
    assert not any(step.acted for step in steps)
    assert served.state.tally.bypassed["protected"] - before == sum(step.decoding for step in steps) > 5
    for routed in (routed for step in steps for routed in step.layers):
        assert torch.equal(routed.weights, routed.native[0])
        assert torch.equal(routed.ids, routed.native[1])


def test_shared_is_what_a_request_is_that_says_nothing(served):
    silent, steps = served.run("k0=0,m=4", prompts(BATCH), [None] * BATCH)
    shared, others = served.run("k0=0,m=4", prompts(BATCH), ["shared"] * BATCH)
    assert shared == silent
    assert served.state.now.protected is None
    for step, other in zip(steps, others, strict=True):
        for a, b in zip(step.layers, other.layers, strict=True):
            assert torch.equal(a.ids, b.ids)
            assert torch.equal(a.weights, b.weights)


def test_what_is_counted_of_them(served):
    served.rpc("xshare_set", "k0=0,m=5")  # counts from zero
    served.run("k0=0,m=4", prompts(BATCH), [None] * BATCH)
    (nobody,) = served.llm.collective_rpc("xshare_stats")
    assert nobody["rows_protected"] == 0
    assert nobody["experts_protected"] == [0, 0]
    assert nobody["mass_shared"] == nobody["mass_kept"]
    served.rpc("xshare_set", "k0=0,m=5")
    _, steps = served.run("k0=0,m=4", prompts(BATCH), ["exact", *[None] * (BATCH - 1)])
    (stats,) = served.llm.collective_rpc("xshare_stats")
    acted = [step for step in steps if step.acted]
    assert stats["samples"] == len(acted)
    assert stats["rows_protected"] == 1
    for number, mean in enumerate(stats["experts_protected"]):
        routed = [step.layers[number] for step in acted]
        only = [set(routing.ids[0].tolist()) - set(routing.ids[1:].flatten().tolist()) for routing in routed]
        assert mean == pytest.approx(sum(map(len, only)) / len(acted), abs=0 if served.exact_dtype else 0.5)
    for number, mean in enumerate(stats["mass_shared"]):  # of the other rows
        kept = []
        for routed in (step.layers[number] for step in acted):
            weights, ids = routed.native[0][1:].double(), routed.native[1][1:].tolist()
            inside = torch.tensor([[expert in routed.keep for expert in row] for row in ids])
            kept.append(float((weights * inside).sum() / weights.sum()))
        assert mean == pytest.approx(sum(kept) / len(kept), abs=1e-5 if served.exact_dtype else 0.05)


@pytest.mark.parametrize("value", ["precise", "", 1, True, ["exact"]])
def test_any_other_value_is_refused(served, value):
    with pytest.raises(RequestError, match="xshare of a request must be 'exact' or 'shared', not "):
        ask(served.llm, prompts(1), [value])
    assert not served.llm.llm_engine.has_unfinished_requests()


def test_several_answers_to_a_protected_prompt_are_all_protected(served):
    from vllm import SamplingParams

    served.run("k0=0,m=4", prompts(1), [None])
    more = {"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 8, "ignore_eos": True, "detokenize": False}
    params = [SamplingParams(**more, extra_args={"xshare": "exact"}), *[SamplingParams(**more)] * 2]
    served.recorder.take()
    served.llm.generate([{"prompt_token_ids": prompt} for prompt in prompts(3)], params, use_tqdm=False)
    acted = [step for step in served.recorder.take() if step.acted]
    assert len(acted) > 3
    assert served.state.now.protected is not None
    for step in acted:
        assert len(served.state.now.protected) == 3
        assert_rows_are_native(step, served.state.now.protected.tolist())


def test_a_request_that_is_aborted_leaves_no_protection_behind(served):
    from vllm import SamplingParams

    served.run("k0=0,m=4", prompts(1), [None])
    engine = served.llm.llm_engine
    for number, prompt in enumerate(prompts(4)):
        extra = {"xshare": "exact"} if number == 0 else None
        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False, extra_args=extra)
        engine.add_request(f"r{number}", {"prompt_token_ids": prompt}, params)
    for _ in range(4):
        engine.step()
    assert served.state.now.protected.tolist() == [0]
    engine.abort_request(["r0"])
    while engine.has_unfinished_requests():
        engine.step()
        assert served.state.now.protected is None


# The prefix cache


def needs_a_cache(served):
    if not served.llm.llm_engine.vllm_config.cache_config.enable_prefix_caching:
        pytest.skip("vLLM has no prefix cache for this model here")


def rows_of_prompt(served, prompt, kind):
    served.recorder.take()
    ask(served.llm, [prompt], [kind], tokens=2)
    return served.recorder.take()[0].rows


def test_no_block_decoded_under_pruning_comes_to_a_protected_request(served):
    needs_a_cache(served)
    begun = prompts(BATCH, length=40, seed=3)
    tokens, _ = served.run("k0=0,m=4", begun, [None] * BATCH, tokens=70)
    longer = begun[0] + tokens[0] + [5]
    whole = len(longer)
    assert rows_of_prompt(served, longer, "exact") == whole  # none of the cached ones
    assert rows_of_prompt(served, longer, "exact") < whole  # its own
    assert rows_of_prompt(served, longer, "shared") < whole
    assert rows_of_prompt(served, [*longer, 7], None) < whole


def test_a_salt_of_the_users_own_stays_apart_too(served):
    needs_a_cache(served)
    served.run("k0=0,m=4", prompts(1), [None])
    prompt = {"prompt_token_ids": prompts(1, length=70, seed=11)[0]}
    from vllm import SamplingParams

    def rows(salt, kind):
        params = SamplingParams(temperature=0, max_tokens=2, detokenize=False, extra_args={"xshare": kind})
        served.recorder.take()
        served.llm.generate([prompt | ({"cache_salt": salt} if salt else {})], params, use_tqdm=False)
        return served.recorder.take()[0].rows

    assert [rows("mine", "exact"), rows("mine", "shared"), rows("yours", "exact"), rows(None, "exact")] == [70] * 4
    assert rows("mine", "exact") < 70
    with pytest.raises(RequestError, match="cache_salt must not begin with"):
        rows(SALT, "shared")


# Other engines


def test_the_settings_turn_it_round(checkpoint, started):
    served = Served("qwen3", checkpoint, started, {"default": "exact"})
    native, _ = served.run(None, prompts(BATCH), [None] * BATCH)
    got, steps = served.run("k0=0,m=4", prompts(BATCH), [None] * BATCH)
    assert got == native
    assert not any(step.acted for step in steps)
    mixed, steps = served.run("k0=0,m=4", prompts(BATCH), ["shared"] * 6 + [None] * 2)
    assert mixed[6:] == native[6:]
    assert mixed[:6] != native[:6]
    for step in steps:
        if step.acted:
            assert_rows_are_native(step, [6, 7])


def test_an_engine_without_protection_refuses_it(checkpoint, started):
    served = Served("qwen3", checkpoint, started, {"protect": False})
    with pytest.raises(RequestError, match="cannot be 'exact' here: this engine was started with protect false"):
        ask(served.llm, prompts(1), ["exact"])
    _, steps = served.run("k0=0,m=4", prompts(BATCH), ["shared"] * BATCH)
    assert any(step.acted for step in steps)


def test_settings_that_contradict_each_other():
    with pytest.raises(SettingsError, match="default in xshare cannot be 'exact' where protect is false"):
        settings_of({"xshare": {"policy": "k0=1,m=4", "default": "exact", "protect": False}})
    with pytest.raises(SettingsError, match="default in xshare"):
        settings_of({"xshare": {"policy": "k0=1,m=4", "default": "precise"}})


@pytest.mark.skipif(monolithic(), reason="experts that route by themselves leave no place for a rival")
@pytest.mark.parametrize("policy", ["oea:k0=1", "skip:beta=0.5"])
def test_rivals_protect_them_too(checkpoint, started, policy):
    served = Served("olmoe", checkpoint, started, {"policy": policy})
    kinds = ["exact" if number % 3 == 0 else None for number in range(BATCH)]
    _, steps = served.run(policy, prompts(BATCH), kinds)
    acted = [step for step in steps if step.acted and step.rows == BATCH]
    assert any(differ(step) for step in acted)
    for step in acted:
        assert_rows_are_native(step, [0, 3, 6])


def test_drafts_of_a_protected_request_are_protected(checkpoint, started):
    """Ragged ones, looked up in the prompt of every second request."""
    config = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1, "num_speculative_tokens": 3}
    served = Served("qwen3", checkpoint, started, speculative_config=config)
    batch = [prompts(1, length=4, seed=i)[0] * (5 if i % 2 else 1) for i in range(BATCH)]
    kinds = ["exact" if number in (3, 4, 5) else None for number in range(BATCH)]
    native, _ = served.run(None, batch, [None] * BATCH, tokens=30)
    got, steps = served.run("k0=0,m=4", batch, kinds, tokens=30)
    acted = [step for step in steps if step.acted and len(step.drafted) == BATCH]
    assert any(step.drafted[3] != step.drafted[5] > 0 for step in acted)
    for step in acted:
        rows = [row for row, request in enumerate(step.requests) if kinds[request]]
        assert_rows_are_native(step, rows)
    assert [got[number] for number in (3, 4, 5)] == [native[number] for number in (3, 4, 5)]


def test_a_protected_request_that_was_preempted_stays_protected(checkpoint, started):
    """Room for too few blocks: requests are thrown out and computed again."""
    served = Served("qwen3", checkpoint, started, num_gpu_blocks_override=10, enable_prefix_caching=True)
    scheduler = served.llm.llm_engine.engine_core.engine_core.scheduler
    preempted, native_preempt = [], scheduler._preempt_request

    def preempt(request, *args, **kwargs):
        preempted.append(request.request_id)
        return native_preempt(request, *args, **kwargs)

    scheduler._preempt_request = preempt
    batch = prompts(6, length=20)
    kinds = [None, "exact", None, None, "exact", "exact"]
    native, _ = served.run(None, batch, [None] * 6, tokens=60)
    preempted.clear()
    got, steps = served.run("k0=0,m=4", batch, kinds, tokens=60)
    assert len(preempted) > 1
    assert any(step.acted for step in steps)
    assert [got[number] for number in (1, 4, 5)] == [native[number] for number in (1, 4, 5)]
