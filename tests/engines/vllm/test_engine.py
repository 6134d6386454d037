"""vLLM as an engine in process, and `xshare bench` on it. Behind HTTP: test_server."""

import json

import pytest
import staircase_files
from engine_contract import PRUNED, assert_compared, bench, checked
from tiny_vllm_models import cleaned_up, prepared

from xshare.engines.by_name import moe_backends, open_engine
from xshare.engines.serving.settings import SettingsError
from xshare.errors import ModelError, PolicyError
from xshare.policy import Policy
from xshare.profile import model_hash
from xshare.tune.scan import Scan

pytestmark = pytest.mark.engine

OPTIONS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 128, "kv_cache_memory_bytes": 64 << 20}
OPTIONS |= {"additional_config": {"xshare": {"metrics": {"every": 1}}}}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """One or two policies of every kind from tune's grid."""
    texts = ["k0=0,rho=0.7", "k0=0,lam=0.04,p=2", "k0=1,m=0", "k0=1,m=2,p=3", "k0=1,m=4,p=3", "k0=1,m=4,score=full"]
    requested = ["k0=1,m=0,mr=2", "k0=1,m=0,mr=8"]
    kinds = lambda experts, top_k, drafts: [Policy.parse(text) for text in texts + (requested if drafts else [])]  # noqa: E731
    monkeypatch.setattr("xshare.tune.scan.grid", kinds)


def scanned(engine):
    """Every candidate of tune has seen the same steps, however seldom the engine counts otherwise."""
    engine.llm.collective_rpc("xshare_count", args=(1000,))
    prompts = [engine.encode(f"what is {number} and {3 * number}?") for number in range(4)]
    engine.use(PRUNED)
    engine.run(prompts, limit=4, batch=4, to_the_end=True)
    assert engine.stats().samples == 1  # the first step after a change
    candidates = Scan(engine, prompts, batch=4, limit=8).run()
    # The first layer alone: later layers see what became of the first.
    assert len({round(candidate.native[0], 6) for candidate in candidates}) == 1
    assert all(0 < a <= n for candidate in candidates for a, n in zip(candidate.active, candidate.native, strict=True))
    assert engine.llm.collective_rpc("xshare_stats")[0]["samples"] > 1
    with pytest.raises(SettingsError, match="xshare_count takes a number of steps from 1 to 2147483647"):
        engine.llm.collective_rpc("xshare_count", args=(0,))


def test_an_engine_in_this_process_keeps_the_contract(small):
    prepared()
    cleaned_up()
    engine = open_engine("vllm", str(small), options=OPTIONS | {"max_num_seqs": 8})
    try:
        run = checked(engine)
        scanned(engine)
        with pytest.raises(ModelError, match="decodes 8 requests at once, not 9: raise its max_num_seqs"):
            engine.run([[5]] * 9, limit=2, batch=9)
    finally:
        engine.close()
    # Four requests and then three: the first token of each comes with its prompt, the others in steps of their own.
    assert (run.steps, run.rows) == (22, 77)
    assert 0 < run.decode_s < run.answers[-1].times_s[-1]
    assert (run.drafted, run.accepted) == (0, 0)


def test_opened_with_a_staircase(small, tmp_path):
    config = model_hash(json.loads((small / "config.json").read_text()))
    where = {"engine": "vllm", "device": "cpu", "dtype": "float32", "experts": 16, "top_k": 4, "layers": 2}
    path = staircase_files.write(
        tmp_path / "s.json", where | {"config": config, "tensor_parallel": 1}, {4: (7, 11, 14)}
    )
    prepared()
    cleaned_up()
    engine = open_engine("vllm", str(small), options=OPTIONS, cost=path)
    names = ("engine", "device", "dtype", "experts", "top_k", "layers", "config", "tensor_parallel")
    assert {name: getattr(engine.about, name) for name in names} == where | {"config": config, "tensor_parallel": 1}
    try:
        prompts = [engine.encode(f"what is {number} and {3 * number}?") for number in range(4)]
        active = {}
        for cost in (None, True, False):
            engine.use(PRUNED, cost=cost)
            engine.run(prompts, limit=8, batch=4, to_the_end=True)
            active[cost] = engine.stats().mean["experts_active"]
        assert active[None] == active[True] > active[False]
    finally:
        engine.close()


@pytest.fixture(scope="module")
def started(small):
    prepared()
    policies = [Policy.parse("k0=1,mr=1")]
    engine = open_engine("vllm", str(small), drafts=2, policies=policies, options=OPTIONS)
    yield engine
    engine.close()


def test_in_process_with_drafts(started):
    assert started.about.experts == 16
    assert started.about.expert_bytes == 2 * 3 * 64 * 32 * 4  # layers, matrices, float32
    assert (started.about.top_k, started.about.layers, started.about.drafts) == (4, 2, 2)
    run = checked(started)
    assert run.drafted == pytest.approx(2 * 7 * 11, abs=14)  # none for the last token
    assert 0 <= run.accepted < run.drafted
    assert run.steps * 4 * 3 >= run.rows  # at most four requests in a step, at most three tokens each
    scan = Scan(started, [[number] for number in range(5, 9)], batch=4, limit=8)
    scans = {str(candidate.policy): candidate for candidate in scan.run()}
    assert scans["k0=1,m=0"].mean_active <= scans["k0=1,m=0,mr=2"].mean_active <= scans["k0=1,m=0,mr=8"].mean_active
    assert all(candidate.kl is None for candidate in scans.values())


def test_a_policy_changes_between_the_steps_of_a_run(started):
    prompts = [started.encode(f"what is {number} and {3 * number}?") for number in range(4)]
    started.use(Policy(batch_budget=4))
    steps = []

    def before(step):
        steps.append(step)
        started.change(Policy(batch_budget=4 if step < 3 else 9))

    run = started.run(prompts, limit=16, batch=4, to_the_end=True, before=before)
    assert sorted(set(steps)) == list(range(run.steps))
    assert len(run.timed) == run.steps
    assert sum(step.seconds for step in run.timed) == pytest.approx(run.decode_s)
    assert {step.requests for step in run.timed} <= {1, 2, 3, 4}
    assert 8 < started.stats().mean["experts_active"] <= 9  # counters began anew with the last change
    started.use(None)


def test_the_kernel_of_the_experts_is_named(started):
    assert started.about.backend == started.llm.collective_rpc("xshare_stats")[0]["backend"]
    assert started.about.backend.isidentifier()
    assert moe_backends()[0] == "auto"
    assert {"triton", "marlin"} <= set(moe_backends())


def test_one_engine_follows_policies_of_every_kind(started):
    """From any to any other, and every one leaves what it promises."""
    prompts = [started.encode(f"what is {number} and {3 * number}?") for number in range(4)]
    for text in ("k0=1,m=1,score=full", "k0=0,rho=0.6", "k0=1,m=1,p=3", "k0=0,lam=0.4,p=2", "k0=0,rho=0.9,w=0:2"):
        started.use(Policy.parse(text))
        started.run(prompts, limit=4, batch=4, to_the_end=True)
        stats = started.stats()
        assert stats.mean["experts_active"] < stats.mean["experts_native"], text
        assert 0 < stats.mean["smallest_kept"] <= stats.mean["mass_kept"] < 1, text
        for layer, own in enumerate(Policy.parse(text).by_layer([0, 1])):
            assert stats.by_layer["smallest_kept"][layer] >= (own.coverage or 0) - 1e-6, text
    started.use(None)


def test_what_cannot_be_changed_or_read(started):
    with pytest.raises(PolicyError, match="method cannot change while serving"):
        started.use(Policy.parse("oea:k0=1"))
    with pytest.raises(ModelError, match="cannot be forced beside drafts: measure KL and perplexity without them"):
        started.diverge([[5]], [[5, 6]], 1)
    with pytest.raises(ModelError, match="a prompt of 500 tokens does not fit this engine: its max_model_len is 128"):
        started.run([[5] * 500], limit=2, batch=1)
    assert [len(answer.tokens) for answer in started.run([[5]], limit=2, batch=1, to_the_end=True).answers] == [2]


def test_without_a_staircase_no_costs_are_weighed(started):
    with pytest.raises(ModelError, match=r"open the engine with a staircase \(--cost FILE\)"):
        started.use(PRUNED, cost=True)
    started.use(PRUNED, cost=False)
    started.use(None)


def test_a_wrong_argument_is_one_sentence(small):
    with pytest.raises(ModelError, match="vLLM runs XShare's own policies, not oea:k0=1: take the transformers engine"):
        open_engine("vllm", str(small), policies=[Policy.parse("oea:k0=1")])
    with pytest.raises(ModelError, match=r"vllm cannot serve .*unexpected keyword argument 'dtyp'"):
        open_engine("vllm", str(small), options={"dtyp": "float32"})
    with pytest.raises(ModelError, match="no folder of a model"):
        open_engine("vllm", "nowhere")


def test_bench_in_process(started, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("xshare.cli.bench.open_engine", lambda *args, **options: started)
    monkeypatch.setattr(started, "close", lambda: None)
    code, out, rows = bench(monkeypatch, capsys, tmp_path / "b.json", "--repeats", "2")
    assert code == 0
    assert "16 experts, top-4, 2 layers" in out
    assert "4 requests, 4 at a time, prompts of 9 tokens, answers of 8, 2 drafts" in out
    assert "Drafts are made up" in out
    assert_compared(rows)
    assert all(row["step_ms"] > 0 and row["step_ratio"] > 0 and row["accepted_length"] >= 1 for row in rows)
