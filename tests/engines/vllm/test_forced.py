"""Text forced on vLLM while it decodes: what it measures is what the Transformers engine measures."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from models import cleaned_up
from typer.testing import CliRunner

from xshare.cli import app
from xshare.engines.opening import open_engine
from xshare.engines.vllm.forced import KEY, Forcing, told_apart
from xshare.engines.vllm.runner import _reading_v2
from xshare.engines.vllm.settings import Settings
from xshare.engines.vllm.state import State
from xshare.policy import Policy

pytestmark = pytest.mark.engine

OPTIONS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "kv_cache_memory_bytes": 64 << 20}
CONTROL, PRUNED = Policy.parse("k0=1,m=16"), Policy.parse("k0=1,m=2")
ANSWERS = [[900 + 7 * who + 31 * place for place in range(9 + who)] for who in range(6)]  # none as long as another


@pytest.fixture(scope="module")
def vllm(small):
    cleaned_up()
    found = open_engine("vllm", str(small), options=OPTIONS)
    yield found
    found.close()


@pytest.fixture(scope="module")
def prompts(vllm):
    return [vllm.encode(f"what is {number} and {number * number}{' or so' * number}?") for number in range(6)]


def forced(engine, policy, prompts, answers=ANSWERS, batch=4):
    engine.use(policy)
    return engine.diverge(prompts, answers, batch)


def test_native_against_native_is_nothing(vllm, prompts):
    found = forced(vllm, None, prompts)
    assert found.tokens == found.same == sum(len(answer) - 1 for answer in ANSWERS)
    assert found.kl == 0
    assert found.top is None  # all of the vocabulary
    assert found.surprise == found.surprise_native > 0
    assert vllm.stats()["steps_pruned"] == 0


def test_the_control_is_native(vllm, prompts):
    found = forced(vllm, CONTROL, prompts)
    assert vllm.stats()["steps_pruned"] == sum(max(map(len, ANSWERS[some])) - 1 for some in (slice(4), slice(4, 6)))
    assert found.kl == pytest.approx(0, abs=1e-6)
    assert found.surprise == pytest.approx(found.surprise_native, rel=1e-6)


def test_a_policy_is_measured_as_in_transformers(vllm, prompts, engine):
    ours, theirs = forced(vllm, PRUNED, prompts), forced(engine, PRUNED, prompts)
    assert (ours.tokens, ours.same) == (theirs.tokens, theirs.same)
    assert theirs.kl > 0.01
    assert ours.kl == pytest.approx(theirs.kl, rel=1e-4)
    assert ours.surprise == pytest.approx(theirs.surprise, rel=1e-5)
    assert ours.surprise_native == pytest.approx(theirs.surprise_native, rel=1e-5)
    assert vllm.stats()["mean"]["experts_active"] < vllm.stats()["mean"]["experts_native"]


def test_of_a_large_vocabulary_the_likeliest_tokens_are_told_apart(vllm, prompts, monkeypatch):
    exact = forced(vllm, PRUNED, prompts)
    monkeypatch.setattr("xshare.engines.vllm.forced.TOP", 1024)
    some = forced(vllm, PRUNED, prompts)
    assert some.top == 1024
    assert 0.1 * exact.kl < some.kl < exact.kl  # its distribution is flat: nothing was learnt
    assert (some.same, some.surprise) == (exact.same, exact.surprise)


def test_the_second_model_runner_is_read_as_well():
    """It needs a GPU: here a step of it as its code has it, rows in another order than the scheduler's."""
    new = [
        SimpleNamespace(req_id=name, num_computed_tokens=0, prompt_token_ids=[0] * length,
                        sampling_params=SimpleNamespace(extra_args={KEY: [number, answer]}))
        for number, (name, length, answer) in enumerate([("a", 3, [5, 6]), ("b", 4, [7, 8])])
    ]  # fmt: skip
    none, both = SimpleNamespace(req_ids=[], num_computed_tokens=[]), {"a": 3, "b": 4}
    read = SimpleNamespace(scheduled_new_reqs=new, scheduled_cached_reqs=none, num_scheduled_tokens=both)
    cached = SimpleNamespace(req_ids=["a", "b"], num_computed_tokens=[3, 4])
    decoded = SimpleNamespace(
        scheduled_new_reqs=[], scheduled_cached_reqs=cached, num_scheduled_tokens={"a": 1, "b": 1}
    )
    rows = {"num_reqs": 2, "req_ids": ["b", "a"], "query_start_loc": None}
    batches = iter(
        [
            SimpleNamespace(**rows, is_prefilling_np=np.ones(2, bool), query_start_loc_np=np.array([0, 4, 7])),
            SimpleNamespace(**rows, is_prefilling_np=np.zeros(2, bool), query_start_loc_np=np.array([0, 1, 2])),
        ]
    )
    model = Model()
    state = State(Settings(policy=PRUNED), torch.device("cpu"), 0, 16)
    state.layers = [SimpleNamespace(router=SimpleNamespace(top_k=4), follow_replicas=lambda: None)]
    state.forcing = Forcing(model)
    prepare_inputs = _reading_v2(SimpleNamespace(prepare_inputs=lambda *given: next(batches)), state)
    found = []
    for step in (read, decoded):
        prepare_inputs(step, "batch_desc")
        found.append(model.compute_logits(torch.zeros(2, 1)).argmax(-1).tolist())
    assert found == [[7, 5], [8, 6]]
    assert list(state.forcing.first) == [(1, 1), (0, 1)]  # the decode step alone


class Model(torch.nn.Module):
    def compute_logits(self, hidden):
        return torch.zeros(len(hidden), 16)


def test_the_other_tokens_are_taken_as_one():
    log = torch.tensor([0.1, 0.4, 0.2, 0.3]).double().log()
    assert told_apart(log, torch.tensor([1, 3])).exp().tolist() == pytest.approx([0.4, 0.3, 0.3])


def test_nothing_is_forced_afterwards(vllm, prompts):
    vllm.use(None)
    before = [answer.tokens for answer in vllm.run(prompts, limit=8, batch=4).answers]
    forced(vllm, PRUNED, prompts)
    model = vllm.llm.llm_engine.model_executor.driver_worker.model_runner.get_model()
    assert "compute_logits" not in vars(model)
    vllm.use(None)
    assert [answer.tokens for answer in vllm.run(prompts, limit=8, batch=4).answers] == before


def test_beside_a_prompt_that_is_read_nothing_is_compared(vllm, prompts, monkeypatch):
    """Half of the prompts come in a second step: the others' first decode step goes with it."""
    scheduler = vllm.llm.llm_engine.engine_core.engine_core.scheduler
    whole = forced(vllm, PRUNED, prompts[:4], ANSWERS[:4])
    monkeypatch.setattr(scheduler, "max_num_scheduled_tokens", len(prompts[0]) + len(prompts[1]))
    found = forced(vllm, PRUNED, prompts[:4], ANSWERS[:4])
    assert 0 < found.tokens < whole.tokens
    assert found.kl > 0


def test_quality_has_its_columns(vllm, tmp_path, monkeypatch):
    monkeypatch.setattr("xshare.cli.quality.open_engine", lambda *args, **options: vllm)
    monkeypatch.setattr(vllm, "close", lambda: None)
    path = tmp_path / "quality.json"
    words = ["quality", "--engine", "vllm", "--policy", str(PRUNED), "--questions", "1", "--tokens", "8"]

    def rows(*more):
        result = CliRunner().invoke(app, [*words, *more, "--json", str(path)])
        assert result.exit_code == 0, result.output
        return json.loads(path.read_text())["rows"]

    native, pruned = rows()
    assert native["kl"] == pytest.approx(0, abs=1e-6)
    assert pruned["kl"] > 0
    assert pruned["perplexity"] > native["perplexity"]
    monkeypatch.setattr(vllm, "forces", False)
    assert rows()[1]["kl"] == pruned["kl"]  # kept, not measured again
    path.unlink()
    assert rows()[1]["kl"] is None
