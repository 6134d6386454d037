"""The tasks are native's own answers, so native routing is always right and any harm shows."""

import functools
import itertools
import json

import pytest
import staircase_files
from documented_columns import check_columns
from killed_command import killed
from typer.testing import CliRunner

from xshare.cli import app
from xshare.cli.tune import parse_share
from xshare.engines.transformers.engine import TransformersEngine
from xshare.errors import XShareError
from xshare.models.loading import load
from xshare.profile import read_profile
from xshare.quality.answering import answer
from xshare.quality.paired import change_bounds
from xshare.quality.task_files import Task, TaskError

TOKENS = 6


@pytest.fixture(scope="module", autouse=True)
def short():
    """Looks and timings are as short as they can be: what is decided, and how, stays."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("xshare.tune.tuning.TIMED", 6)  # tokens
        patched.setattr("xshare.tune.scan.COVERAGES", (0.6, 0.7, 0.8))
        patched.setattr("xshare.tune.scan.PRICES", (0.3, 0.6, 0.9))
        patched.setattr("xshare.tune.scan.WEIGHED", (0.6,))
        patched.setattr("xshare.tune.scan.REQUESTED", (2, 4))
        patched.setattr("xshare.tune.speed.REPEATS", 2)
        # asked for again at every row written
        patched.setattr("xshare.tune.search.change_bounds", functools.cache(change_bounds))
        yield


@pytest.fixture(scope="module")
def model(small):
    return ["--model", str(small), "--engine-args", '{"dtype": "float32"}', "--batch", "4", "--tokens", str(TOKENS)]


@pytest.fixture(scope="module")
def task_file(small, tmp_path_factory):
    engine = TransformersEngine(*load(small, dtype="float32"), "small")
    tasks = [Task(f"Compute {i} + {2 * i}", "x", "sums") for i in range(160)]
    texts = engine.tokenizer.batch_decode(
        answer(engine, None, tasks, batch=4, limit=TOKENS).tokens, skip_special_tokens=True
    )
    engine.close()
    path = tmp_path_factory.mktemp("tasks") / "own.jsonl"
    lines = [
        {"question": t.prompt, "answer": text, "compare": "contains"} for t, text in zip(tasks, texts, strict=True)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines if line["answer"]))
    return path


def ask(tmp_path, model, *words):
    files = ["--json", str(tmp_path / "tune.json"), "--profile", str(tmp_path / "profile.yaml")]
    return CliRunner().invoke(app, ["tune", "--objective", "experts", *model, *files, *words])


def test_a_strict_bound_is_undecided_or_has_no_window_and_says_so(tmp_path, model, task_file):
    result = ask(tmp_path, model, "--tasks", str(task_file), "--max-drop", "0.5%", "--questions", "16")
    assert result.exit_code == 0, result.output
    assert "undecided: " in result.output or "no operating window" in result.output
    assert not (tmp_path / "profile.yaml").exists()
    rows = json.loads((tmp_path / "tune.json").read_text())["rows"]
    check_columns("tune", rows)
    tried = [row for row in rows if row["state"] != "not tried"]
    assert tried
    assert all(row["state"] in ("fails", "undecided") and row["search_low"] < -0.005 for row in tried)


WIDE = ["--max-drop", "60%", "--questions", "32"]


@pytest.fixture(scope="module")
def tuned(model, task_file, tmp_path_factory):
    """One search, killed while policies are looked at, killed again while they answer, and then let through: the
    folder, the files that the killed ones left, and how the last one ended."""
    folder = tmp_path_factory.mktemp("tuned")
    path = folder / "tune.json"
    files = ["--json", str(path), "--profile", str(folder / "profile.yaml")]
    words = ["tune", "--objective", "experts", *model, *files, "--tasks", str(task_file), *WIDE]
    left = []
    for what in ("scan", "right"):
        left.append(
            killed(words, path, lambda content, what=what: sum(what in sample for sample in content["samples"]) > 2)
        )
        assert not (folder / "profile.yaml").exists()
    return folder, left, ask(folder, model, "--tasks", str(task_file), *WIDE)


def test_killed_and_gone_on_with(tuned):
    folder, left, result = tuned
    assert result.exit_code == 0, result.output
    for before, after in itertools.pairwise([*left, json.loads((folder / "tune.json").read_text())]):
        assert len(after["samples"]) > len(before["samples"]) > 2
        assert after["samples"][: len(before["samples"])] == before["samples"]
    assert read_profile(folder / "profile.yaml").measured["unseen_questions"] >= 8


def test_a_wide_bound_is_met_on_unseen_questions_and_gone_on_with(tuned, model, task_file):
    folder, _, result = tuned
    assert result.exit_code == 0, result.output
    profile = read_profile(folder / "profile.yaml")
    assert profile.measured["unseen_questions"] >= 8
    assert profile.measured["change_95"][0] >= -0.6
    assert profile.measured["active"] < profile.measured["active_native"]
    words = ["--tasks", str(task_file), *WIDE]
    before = json.loads((folder / "tune.json").read_text())
    assert ask(folder, model, *words).exit_code == 0
    after = json.loads((folder / "tune.json").read_text())
    assert after["samples"] == before["samples"]  # nothing was measured twice
    assert after["rows"] == before["rows"]
    other = ask(folder, model, *words, "--tokens", str(TOKENS + 1))
    assert "other settings, tokens 6 instead of 7" in str(other.exception)


def test_answers_that_were_cut_off_are_named(tuned):
    assert f"100% of the answers of native were cut off at {TOKENS} tokens" in tuned[2].output


@pytest.mark.parametrize("words", [["--questions", "16"], ["--questions", "63"]])
def test_fewer_questions_than_a_first_round_are_refused_at_once(words, tmp_path, monkeypatch):
    monkeypatch.setattr("xshare.cli.tune.open_engine", lambda *args, **options: pytest.fail("an engine was started"))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["tune", *words])
    assert isinstance(result.exception, XShareError), result.exception
    assert str(result.exception) == f"questions must be at least 64, the first round of a policy, not {words[1]}"
    assert not list(tmp_path.iterdir())


def test_speed_as_the_objective(tmp_path, model, task_file):
    """By the law of this machine, on which perhaps no policy is faster."""
    files = ["--json", str(tmp_path / "tune.json"), "--profile", str(tmp_path / "profile.yaml")]
    words = ["--tasks", str(task_file), "--max-drop", "60%", "--questions", "16"]
    result = CliRunner().invoke(app, ["tune", "--objective", "otps", *model, *files, *words])
    assert result.exit_code == 0, result.output
    assert any(verdict in result.output for verdict in ("holds on", "undecided: ", "no operating window: "))
    content = json.loads((tmp_path / "tune.json").read_text())
    assert all(row["predicted"] > 0 for row in content["rows"])
    check_columns("tune", content["rows"])
    assert any("step_ms" in sample for sample in content["samples"])


def test_sets_weighed_by_what_they_cost(small, tmp_path, model, task_file, monkeypatch):
    engine = TransformersEngine(*load(small, dtype="float32"), "small")
    names = ("engine", "device", "dtype", "experts", "top_k", "layers", "config")
    where = {name: getattr(engine.about, name) for name in names}
    stairs = staircase_files.write(tmp_path / "stairs.json", where, {4: (6, 10, 13)})
    with_stairs = set()
    use = TransformersEngine.use

    def watched(self, policy, timed=False, cost=None):
        use(self, policy, timed, cost)
        if policy is not None:
            with_stairs.add(self.attached.state.stairs is not None)

    monkeypatch.setattr(TransformersEngine, "use", watched)
    words = ["--tasks", str(task_file), *WIDE, "--cost", str(stairs)]
    result = ask(tmp_path, model, *words)
    assert result.exit_code == 0, result.output
    assert with_stairs == {True}
    assert "sets weighed by what they cost" in result.output
    assert all(row["cost"] for row in json.loads((tmp_path / "tune.json").read_text())["rows"])
    profile = read_profile(tmp_path / "profile.yaml")
    assert profile.cost.file == "stairs.json"  # beside it
    assert profile.staircase_path(tmp_path / "profile.yaml") == stairs
    larger = ask(tmp_path, model, *words, "--batch", "8")
    assert "has steps of up to 4 rows, and a batch of 8 here has steps of 8: measure those too" in str(larger.exception)
    plain = ask(tmp_path, model, *words[:-2])
    assert "other settings, cost" in str(plain.exception)


def test_with_drafts_request_budgets_are_tried_too(small, tmp_path, task_file):
    options = json.dumps({"dtype": "float32", "draft": str(small)})
    model = ["--model", str(small), "--engine-args", options, "--batch", "4", "--tokens", str(TOKENS), "--drafts", "2"]
    words = ["--tasks", str(task_file), "--max-drop", "60%", "--questions", "32"]
    result = ask(tmp_path, model, *words)
    assert result.exit_code == 0, result.output
    content = json.loads((tmp_path / "tune.json").read_text())
    wanted = {"k0=1,m=0,mr=2,score=full", "k0=1,m=0,mr=2,p=3", "k0=2,m=0,mr=4,p=3", "k0=0,rho=0.7"}
    assert wanted <= {row["policy"] for row in content["rows"]}
    profile = read_profile(tmp_path / "profile.yaml")
    assert (profile.batch, profile.drafts) == (4, 2)
    assert profile.measured["drafter"] == str(small)


def test_tasks_that_cannot_show_harm_are_refused(tmp_path, model):
    result = ask(tmp_path, model, "--max-drop", "10%")  # nano's tasks, to a model that learnt nothing
    assert isinstance(result.exception, TaskError)
    assert "harm could not be seen" in str(result.exception)
    assert json.loads((tmp_path / "tune.json").read_text())["samples"]  # what was measured stays


@pytest.mark.parametrize(("text", "value"), [("2%", 0.02), ("0.5%", 0.005), ("0.02", 0.02)])
def test_shares_are_read_in_percent_and_as_numbers(text, value):
    assert parse_share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["2", "0", "-1%", "much", "100%"])
def test_what_is_no_share(text):
    with pytest.raises(XShareError, match="max-drop must be a share"):
        parse_share(text)
