import json

import pytest
from documented_columns import check_columns
from fake_server import played  # noqa: F401
from killed_command import killed
from typer.testing import CliRunner

from xshare.cli import app
from xshare.cli.protection import control_text
from xshare.errors import XShareError

WORDS = ["quality", "--questions", "1", "--batch", "4", "--engine-args", '{"dtype": "float32"}']
POLICIES = ["--policy", "k0=1,m=2", "--policy", "k0=1,m=16"]


def ask(*words):
    return CliRunner().invoke(app, [*WORDS, *words])


def test_every_figure_of_every_policy(small, tmp_path):
    path = tmp_path / "quality.json"
    result = ask(
        "--model", str(small), "--tokens", "8", *POLICIES, "--mix", "both", "--neighbours", "--json", str(path)
    )
    assert result.exit_code == 0, result.output
    assert "change: against native" in result.output
    rows = json.loads(path.read_text())["rows"]
    check_columns("quality", rows)
    assert [(row["policy"], row["mixed"]) for row in rows] == [
        (policy, mixed) for mixed in (True, False) for policy in ("native", "k0=1,m=2", "k0=1,m=16")
    ]
    native, pruned, noop = rows[:3]
    for row in (native, noop):
        assert row["agreement"] == 1
        assert row["unsettled"] == row["change"] == 0
    assert rows[3]["unsettled"] is None  # one question of a kind has no neighbours of it
    for row in (native, noop):
        assert row["kl"] == pytest.approx(0, abs=1e-9)
    assert pruned["kl"] > 0
    assert pruned["perplexity"] != native["perplexity"]
    assert pruned["active"] < native["active"]
    assert pruned["accuracy sums"] == 0  # nothing is learnt in it


def test_task_files_of_ones_own(small, tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"question": "1 + 1 =", "answer": "2", "compare": "number"}\n' * 3)
    result = ask("--model", str(small), "--tokens", "4", "--policy", "k0=1,m=2", "--tasks", str(tasks))
    assert result.exit_code == 0, result.output
    assert "tasks.jsonl" in result.output


def test_killed_and_started_again(small, tmp_path):
    path = tmp_path / "quality.json"
    policies = [word for m in range(8) for word in ("--policy", f"k0=1,m={m}")]
    words = [*WORDS, "--model", str(small), "--tokens", "16", *policies, "--json", str(path)]
    before = killed(words, path, lambda content: content["rows"])
    assert 1 <= len(before["rows"]) <= 9
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    after = json.loads(path.read_text())
    assert len(after["rows"]) == 9
    assert all(row["tokens_per_s"] for row in after["rows"])
    fewer = CliRunner().invoke(app, [*words[:11], *policies[:2], "--json", str(path)])
    assert fewer.exit_code == 0, fewer.output
    assert len(json.loads(path.read_text())["rows"]) == 9  # those not asked for stay
    assert after["samples"][: len(before["samples"])] == before["samples"]  # as they were, not decoded again
    other = CliRunner().invoke(app, [*words, "--batch", "5"])
    assert isinstance(other.exception, XShareError)
    assert "batch 4 instead of 5" in str(other.exception)


def test_a_policy_that_is_refused_is_refused_first(small, tmp_path):
    path = tmp_path / "quality.json"
    result = ask("--model", str(small), *POLICIES, "--policy", "k0=30,m=2", "--json", str(path))
    assert isinstance(result.exception, XShareError)
    assert "at most the number of experts (16), not 30" in str(result.exception)
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--policy", "k0=1,m=2", "--engine", "tensorflow"], "engine 'tensorflow' is not known"),
        (["--policy", "k0=1,m=2", "--model", "/nowhere"], "'/nowhere' is no folder"),
        (["--policy", "k0=one"], "k0"),
        (["--policy", "k0=1,m=2", "--tasks", "/nowhere.jsonl"], "does not exist"),
    ],
)
def test_mistakes_are_one_sentence(words, sentence):
    result = ask(*words)
    assert isinstance(result.exception, XShareError)
    assert sentence in str(result.exception)


# Behind a server that answers "w w w", whatever it is asked


def served(played, tmp_path, *words):  # noqa: F811
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f'{{"question": "q{i}", "answer": "w", "compare": "contains"}}\n' for i in range(6)))
    common = ["quality", "--engine", played.url, "--tasks", str(tasks), "--batch", "2", "--tokens", "3"]
    return CliRunner().invoke(app, [*common, *words])


def test_a_server_that_stops_leaves_the_answers_so_far(played, tmp_path, monkeypatch):  # noqa: F811
    path = tmp_path / "q.json"
    played.left = 4
    result = served(played, tmp_path, "--json", str(path))
    assert isinstance(result.exception, XShareError)
    (begun,) = json.loads(path.read_text())["samples"]
    ended = len(begun["ended"])
    assert 3 <= ended <= 4  # the fifth is refused, and the fourth may be under way then
    played.left = None
    monkeypatch.setenv("OPENAI_API_KEY", "again")  # the last requests of the first run may come late
    again = served(played, tmp_path, "--json", str(path), "--engine-args", '{"timeout": 60}')  # waits longer, goes on
    assert again.exit_code == 0, again.output
    assert played.keys.count("Bearer again") == 6 - ended
    content = json.loads(path.read_text())
    assert [row["accuracy"] for row in content["rows"]] == [1.0]
    assert [sample["order"] for sample in content["samples"]] == [0]


def test_two_servers_are_held_against_each_other(played, tmp_path):  # noqa: F811
    native, pruned = tmp_path / "native.json", tmp_path / "pruned.json"
    assert served(played, tmp_path, "--json", str(native)).exit_code == 0
    played.metrics = 'xshare:on{engine="0",policy="k0=1,m=2"} 1.0\n'
    alone = served(played, tmp_path, "--json", str(pruned))
    assert alone.exit_code == 0, alone.output
    assert "Native routing was not measured" in alone.output
    (row,) = json.loads(pruned.read_text())["rows"]
    assert row["policy"] == "k0=1,m=2"
    assert row["change"] is row["p"] is row["agreement"] is None
    paired = served(played, tmp_path, "--json", str(pruned), "--against", str(native))
    assert paired.exit_code == 0, paired.output
    (row,) = json.loads(pruned.read_text())["rows"]
    assert (row["change"], row["agreement"]) == (0, 1)
    other = served(played, tmp_path, "--against", str(native), "--tokens", "2")
    assert "tokens 3 instead of 2" in str(other.exception)
    missing = served(played, tmp_path, "--against", str(tmp_path / "none.json"))
    assert "does not exist" in str(missing.exception)
    wrong = served(played, tmp_path, "--against", str(pruned))
    assert "holds no answers of native routing" in str(wrong.exception)


def test_answers_that_were_cut_off_are_named(small):
    result = ask("--model", str(small), "--tokens", "2")
    assert "were cut off at 2 tokens" in result.output


def test_with_a_draft_model(small, tmp_path):
    path = tmp_path / "q.json"
    options = json.dumps({"dtype": "float32", "draft": str(small)})
    words = ["quality", "--model", str(small), "--drafts", "2", "--questions", "1", "--batch", "4", "--tokens", "10"]
    result = CliRunner().invoke(app, [*words, "--policy", "k0=1,m=16", "--engine-args", options, "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert "accepted: tokens per request and step" in result.output
    native, noop = json.loads(path.read_text())["rows"]
    assert native["accepted"] == noop["accepted"] == 3  # it drafts for itself
    assert noop["agreement"] == 1
    assert noop["kl"] == pytest.approx(0, abs=1e-9)


def test_protected_answers_do_not_move(small, tmp_path):
    path = tmp_path / "quality.json"
    words = ["--model", str(small), "--tokens", "8", *POLICIES[:2], "--protect", "0.4", "--out", str(path)]
    result = ask(*words)
    assert result.exit_code == 0, result.output
    assert "fixed batches of 4, 40% of the requests protected" in result.output
    assert "With XShare off no answer changes with other mates." in result.output
    assert "With XShare off no answer changes in batches half as large." in result.output
    assert "of the answers of native were cut off at 8 tokens" in result.output
    content = json.loads(path.read_text())
    native, mates, half, pruned = content["rows"]
    assert [row["control"] for row in content["rows"]] == [None, "other mates", "half the batch", None]
    assert native["protected_questions"] + native["questions"] == len(content["samples"][0]["answers"])
    for row in (native, mates, half):
        assert row["same"] == row["questions"]
    for row in content["rows"]:
        assert row["protected_same"] == row["protected_questions"] > 2
    assert pruned["same"] < pruned["questions"]  # the others pay
    assert pruned["change"] is not None
    assert pruned["mass_shared"] < pruned["mass"] < 1
    again = ask(*words)
    assert again.exit_code == 0, again.output
    assert json.loads(path.read_text())["samples"] == content["samples"]  # not decoded again


def test_what_the_engine_does_by_itself_is_said():
    row = {"control": "half the batch", "protected_questions": 4, "protected_same": 3, "questions": 12, "same": 12}
    assert control_text(row).startswith(
        "With XShare off 1 of 16 answers change in batches half as large: that is the engine's"
    )
    assert control_text(row | {"protected_same": 4}) == "With XShare off no answer changes in batches half as large."


@pytest.mark.parametrize("words", [["--protect", "0"], ["--protect", "0.5", "--neighbours"]])
def test_what_cannot_be_protected(words):
    result = ask("--policy", "k0=1,m=2", *words)
    assert "--protect takes a share of the requests above 0" in str(result.exception)
