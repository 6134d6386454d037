"""Text forced on vLLM while it decodes: what it measures is what the Transformers engine measures."""

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_vllm_models import cleaned_up, prepared
from typer.testing import CliRunner

from xshare.cli import app
from xshare.engines.by_name import open_engine
from xshare.engines.gates import Tally
from xshare.engines.serving.settings import Settings
from xshare.engines.serving.state import State
from xshare.engines.serving.step import Step
from xshare.engines.serving.step_sizes import Sizes
from xshare.engines.vllm.runner import _watch_steps_v2
from xshare.engines.vllm.teacher_forcing import KEY, Forcing, Row
from xshare.policy import Policy

pytestmark = pytest.mark.engine

OPTIONS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "kv_cache_memory_bytes": 64 << 20}
CONTROL, PRUNED = Policy.parse("k0=1,m=16"), Policy.parse("k0=1,m=2")
# No answer is as long as another.
ANSWERS = [[900 + 7 * number + 31 * place for place in range(9 + number)] for number in range(6)]


@pytest.fixture(scope="module")
def vllm(small):
    prepared()
    cleaned_up()
    opened = open_engine("vllm", str(small), options=OPTIONS)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def prompts(vllm):
    return [vllm.encode(f"what is {number} and {number * number}{' or so' * number}?") for number in range(6)]


def forced(engine, policy, prompts, answers=ANSWERS, batch=4):
    engine.use(policy)
    return engine.diverge(prompts, answers, batch)


def test_native_against_native_is_nothing(vllm, prompts):
    divergence = forced(vllm, None, prompts)
    assert divergence.tokens == divergence.same == sum(len(answer) - 1 for answer in ANSWERS)
    assert divergence.kl == 0
    assert divergence.surprise == divergence.surprise_native > 0
    assert vllm.stats().steps_pruned == 0


def test_the_control_is_native(vllm, prompts):
    divergence = forced(vllm, CONTROL, prompts)
    assert vllm.stats().steps_pruned == sum(max(map(len, ANSWERS[part])) - 1 for part in (slice(4), slice(4, 6)))
    assert divergence.kl == pytest.approx(0, abs=1e-6)
    assert divergence.surprise == pytest.approx(divergence.surprise_native, rel=1e-6)


def test_a_policy_is_measured_as_in_transformers(vllm, prompts, engine):
    ours, theirs = forced(vllm, PRUNED, prompts), forced(engine, PRUNED, prompts)
    assert (ours.tokens, ours.same) == (theirs.tokens, theirs.same)
    assert theirs.kl > 0.01
    assert ours.kl == pytest.approx(theirs.kl, rel=1e-4)
    assert ours.surprise == pytest.approx(theirs.surprise, rel=1e-5)
    assert ours.surprise_native == pytest.approx(theirs.surprise_native, rel=1e-5)
    assert vllm.stats().mean["experts_active"] < vllm.stats().mean["experts_native"]


def test_a_large_vocabulary_is_compared_in_parts_and_whole(vllm, prompts, monkeypatch):
    whole = forced(vllm, PRUNED, prompts)
    monkeypatch.setattr("xshare.engines.vllm.teacher_forcing.AT_ONCE", 3 * 3072)  # three rows: the last part is smaller
    parts = forced(vllm, PRUNED, prompts)
    assert (parts.tokens, parts.same) == (whole.tokens, whole.same)
    assert parts.kl == pytest.approx(whole.kl, rel=1e-9)
    assert parts.surprise == pytest.approx(whole.surprise, rel=1e-9)


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
    site = SimpleNamespace(top_k=4, number=0, in_host_memory=False)
    layer = SimpleNamespace(site=site, follow_replicas=lambda: None)
    state = State(
        Settings(policy=PRUNED),
        PRUNED,
        [layer],
        Step(torch.device("cpu")),
        Sizes(16),
        Tally(logging.getLogger("xshare")),
    )
    state.forcing = Forcing(model, state.device)
    prepare_inputs = _watch_steps_v2(SimpleNamespace(prepare_inputs=lambda *args: next(batches)), state)
    tokens = []
    for step in (read, decoded):
        prepare_inputs(step, "batch_desc")
        tokens.append(model.compute_logits(torch.zeros(2, 1)).argmax(-1).tolist())
    assert tokens == [[7, 5], [8, 6]]
    assert list(state.forcing.first) == [(1, 1), (0, 1)]  # the decode step alone


class Model:
    def __init__(self, head=None):
        self.head, self.calls = torch.zeros(1, 16) if head is None else head, 0

    def compute_logits(self, hidden_states):
        self.calls += 1
        return hidden_states @ self.head


def pass_over(forcing, hidden, tokens):
    """A decode step of two answers, rows of other requests between them."""
    forcing.decoding = True
    forcing.rows = [Row(1, tokens[0], (0, 1)), Row(3, tokens[1], (1, 1))]
    return forcing.model.compute_logits(hidden)


def test_the_numbers_are_those_of_the_whole_distributions():
    head = torch.randn(8, 500)
    model = Model(head)
    forcing = Forcing(model, torch.device("cpu"))
    first, second = torch.randn(2, 4, 8).unbind()
    p, q = ((hidden[[1, 3]] @ head).double().softmax(-1) for hidden in (first, second))
    pass_over(forcing, first, [7, 300])
    assert [len(state) for state in forcing.first.values()] == [8, 8]  # hidden states, whatever the vocabulary
    logits = pass_over(forcing, second, [7, 300])
    assert logits[[1, 3]].argmax(-1).tolist() == [7, 300]
    assert torch.equal(logits[[0, 2]], second[[0, 2]] @ head)  # rows of other requests: not forced
    assert not forcing.first
    totals = forcing.end()
    assert totals["tokens"] == 2
    assert totals["kl"] == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-5)
    assert totals["surprise"] == pytest.approx(-float(q[0, 7].log() + q[1, 300].log()), rel=1e-5)
    assert totals["surprise_native"] == pytest.approx(-float(p[0, 7].log() + p[1, 300].log()), rel=1e-5)
    assert totals["same"] == int((p.argmax(-1) == q.argmax(-1)).sum())


def test_nothing_is_read_back_while_it_is_forced():
    """Tensors of no device refuse to be read: what waits for the device would fail here."""
    forcing = Forcing(Model(torch.empty(8, 500, device="meta")), torch.device("meta"))
    for _ in range(2):
        pass_over(forcing, torch.empty(4, 8, device="meta"), [7, 300])
    assert forcing.tokens == 2


def test_a_rank_without_logits_takes_part():
    """Logits are gathered from all ranks: each must ask for them as often as the one that gets them."""

    class Elsewhere(Model):
        def compute_logits(self, hidden_states):
            super().compute_logits(hidden_states)

    with_logits, without_logits = Model(torch.randn(8, 16)), Elsewhere(torch.randn(8, 16))
    for model in (with_logits, without_logits):
        forcing = Forcing(model, torch.device("cpu"))
        for _ in range(2):
            pass_over(forcing, torch.randn(4, 8), [3, 4])
    assert with_logits.calls == without_logits.calls == 3


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
    divergence = forced(vllm, PRUNED, prompts[:4], ANSWERS[:4])
    assert 0 < divergence.tokens < whole.tokens
    assert divergence.kl > 0


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
