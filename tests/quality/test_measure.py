import pytest

from xshare import Policy
from xshare.engines.transformers.step_rows import Places
from xshare.engines.transformers.teacher_forcing import lay_out
from xshare.quality.answering import Outcome, agreement, answer, diverged_at, ordered, row_of, unsettled_share
from xshare.quality.task_files import Task

OPTIONS = {"batch": 4, "limit": 12}


@pytest.fixture(scope="module")
def tasks():
    kinds = {"a": "Compute 12 + 7", "b": "Spell badore backwards", "c": "Sort 5 3 9"}
    return [Task(f"{text} {i}", "x", kind) for kind, text in kinds.items() for i in range(3)]


@pytest.fixture
def native(engine, tasks):
    return answer(engine, None, tasks, **OPTIONS)


def test_an_answer_ends_with_a_stop_word(engine):
    prompts = [engine.encode(f"what is {number}?") for number in range(3)]
    whole = engine.run(prompts, limit=24, batch=2, to_the_end=True).answers
    word = whole[1].text.split()[2]
    stopped = engine.run(prompts, limit=24, batch=2, to_the_end=True, stop=["@@", word]).answers
    for before, after in zip(whole, stopped, strict=True):
        assert after.tokens == before.tokens[: len(after.tokens)]
        assert (word in after.text) == (word in before.text)
        assert (len(after.tokens) < 24) == (word in engine.tokenizer.decode(before.tokens[:-1]))


def test_a_budget_of_n_changes_no_token(engine, tasks, native):
    noop = answer(engine, Policy.parse("k0=1,m=16"), tasks, **OPTIONS)
    assert noop.tokens == native.tokens
    row = row_of(noop, native)
    assert row["agreement"] == 1
    assert row["diverged"] == row["change"] == 0
    assert row["diverged_at"] is None
    assert row["active"] == pytest.approx(row["active_native"])


def test_times_of_some_batches_are_times_of_none(engine, tasks, monkeypatch):
    monkeypatch.setattr(engine, "lanes", 2)
    outcome = answer(engine, None, [*tasks, Task("Sort 2 1", "x", "d")], batch=2, limit=6, alike=True)
    assert outcome.run.decode_s == 0  # the last, alone in a pass, was timed
    assert row_of(outcome, outcome)["tokens_per_s"] is None


def test_a_small_budget_is_seen_in_every_figure(engine, tasks, native):
    outcome = answer(engine, Policy.parse("k0=1,m=0"), tasks, **OPTIONS)
    row = row_of(outcome, native)
    assert row["policy"] == "k0=1,m=0"
    assert row["active"] < row["active_native"]
    assert row["mass"] < 1
    assert row["agreement"] < 1
    assert 0 < row["diverged"] <= 1
    assert 0 <= row["diverged_at"] < 12
    forced = engine.diverge([engine.encode(t.prompt) for t in tasks], native.tokens, batch=4)
    assert forced.tokens == sum(len(tokens) - 1 for tokens in native.tokens)
    assert forced.kl > 0
    assert forced.surprise > forced.surprise_native  # native's own text
    assert forced.same < forced.tokens


def test_forced_natively_nothing_diverges(engine, tasks, native):
    engine.use(None)
    forced = engine.diverge([engine.encode(t.prompt) for t in tasks], native.tokens, batch=4)
    assert forced.kl == pytest.approx(0, abs=1e-9)
    assert forced.same == forced.tokens
    assert forced.surprise == pytest.approx(forced.surprise_native)


def test_teacher_forcing_chooses_the_sets_of_decoding(engine, tasks):
    """Sequences that begin and end together: decoded and forced, every step has the same rows."""
    few = tasks[:4]
    policy = Policy.parse("k0=1,m=2")
    outcome = answer(engine, policy, few, batch=4, limit=12)
    decoded = outcome.stats.mean
    engine.use(policy)
    lengths = {len(tokens) for tokens in outcome.tokens}
    assert lengths == {12}
    engine.diverge([engine.encode(t.prompt) for t in few], outcome.tokens, batch=4)
    forced = engine.stats().mean
    assert forced["experts_active"] == pytest.approx(decoded["experts_active"])
    assert forced["mass_kept"] == pytest.approx(decoded["mass_kept"], abs=1e-5)


def test_kinds_alone_or_mixed(engine, tasks):
    mixed = ordered(tasks, mixed=True)
    alike = ordered(tasks, mixed=False)
    assert sorted(map(str, mixed)) == sorted(map(str, alike)) == sorted(map(str, tasks))
    assert [task.kind for task in alike] == ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    assert [task.kind for task in mixed] != [task.kind for task in alike]
    policy = Policy.parse("k0=1,m=0")
    together = answer(engine, policy, mixed, alike=True, **OPTIONS)
    apart = [answer(engine, policy, [t for t in mixed if t.kind == kind], **OPTIONS) for kind in "abc"]
    by_task = {task.prompt: tokens for task, tokens in zip(mixed, together.tokens, strict=True)}
    for kind, outcome in zip("abc", apart, strict=True):
        for task, tokens in zip([t for t in mixed if t.kind == kind], outcome.tokens, strict=True):
            assert by_task[task.prompt] == tokens  # no neighbour of another kind


def test_where_answers_part():
    assert diverged_at([1, 2, 3], [1, 2, 3]) is None
    assert diverged_at([1, 2, 3], [1, 9, 3]) == 1
    assert diverged_at([1, 2], [1, 2, 3]) == 2
    assert agreement([[1, 2, 3, 4]], [[1, 2, 9, 4]]) == 0.5
    assert agreement([[1, 2], [3, 4]], [[1, 2], [5]]) == 0.5
    assert unsettled_share(Outcome(None, [], [[1], [2]], {}), Outcome(None, [], [[1], [3]], {})) == 0.5


def test_forced_rows_are_laid_out_as_decoding_reads_them():
    tokens, mask, whose, when = lay_out([[1, 2, 3], [4], [5, 6]], [0, 0, 1])
    assert tokens.tolist() == [[1, 2], [0, 0], [5, 0]]
    assert mask.tolist() == [[1, 1], [0, 0], [1, 0]]  # the last token of an answer is not read
    places = Places.of_steps(when.flatten())
    assert places.requests(whose.flatten()).tolist() == [[0, -1], [0, 2]]
    assert places.rows.tolist() == [[0, 0], [1, 4]]
    assert [int(places.back[row]) for row in (0, 1, 4)] == [0, 2, 3]
    tokens, _, whose, when = lay_out([[1, 2, 3, 4], [5, 6]], [0, 1], width=2)
    assert tokens.tolist() == [[1, 2, 3], [5, 0, 0]]
    # A step is two tokens of the first, two of the second.
    assert Places.of_steps(when.flatten()).requests(whose.flatten()).tolist() == [[0, 0], [0, 1]]


def test_answers_that_ended_at_once_have_nothing_to_be_forced():
    tokens, mask, whose, when = lay_out([[1], [2]], [0, 0])
    assert tokens.shape == (2, 1)
    assert not mask.any()
    assert Places.of_steps(when.flatten()).requests(whose.flatten()).tolist() == [[-1]]
