"""Ctrl-C, as a real SIGINT to a real process: says which file holds what and how to go on, and keeps answers."""

import json
import os
import shlex
import signal
from contextlib import contextmanager

import pytest
from killed_command import stopped
from typer.testing import CliRunner

from xshare.cli import app, doctor, tune
from xshare.cli.interrupted import says_what_is_kept

STOPPED = 130


def quality_words(small, path):
    words = [
        "quality",
        "--model",
        str(small),
        "--dtype",
        "float32",
        "--questions",
        "1",
        "--batch",
        "2",
        "--tokens",
        "8",
    ]
    return [*words, "--policy", "k0=1,m=2", "--out", str(path)]


def test_bench_names_the_file_and_the_command(small, tmp_path):
    path = tmp_path / "b.json"
    words = ["bench", "--model", small, "--policy", "k0=1,m=2", "--batch", 2, "--prompt-tokens", 8, "--tokens", 4]
    words = [*map(str, words), "--repeats", "1000", "--out", str(path)]
    content, output, code = stopped(words, path, lambda content: len(content["samples"]) > 3)
    assert code == STOPPED, output
    repeats = 1 + max(sample["repeat"] for sample in content["samples"])
    (line,) = [line for line in output.splitlines() if line.startswith("interrupted: ")]
    assert line == f"interrupted: {path} holds {repeats} repeats of every policy; to go on: xshare {shlex.join(words)}"
    assert "Traceback" not in output
    assert "(control)" in output  # what was measured is shown


def test_quality_keeps_what_had_been_answered(small, tmp_path, monkeypatch):
    """The signal comes when some answers of the second cell have ended."""
    path = tmp_path / "q.json"
    words = quality_words(small, path)

    @contextmanager
    def progress(what, total):
        state = {"done": 0}

        def advance(count):
            state["done"] += count
            if state["done"] >= 8 + 8 + 5:  # native's answers, those forced, and four of the next, at least
                os.kill(os.getpid(), signal.SIGINT)

        yield advance

    monkeypatch.setattr("xshare.cli.quality.progress_bar", progress)
    content, output, code = stopped(words, path, lambda content: False)
    assert code == STOPPED, output
    begun = next(sample for sample in content["samples"] if sample["order"] == "begun 0")
    ended = begun["ended"]
    assert begun["policy"] == "k0=1,m=2"
    assert 3 <= len(ended) < 8
    assert (
        f"interrupted: {path} holds 1 finished policy and {len(ended)} answers of k0=1,m=2; to go on: xshare" in output
    )

    monkeypatch.undo()
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0, again.output
    content = json.loads(path.read_text())
    assert [row["policy"] for row in content["rows"]] == ["native", "k0=1,m=2"]
    assert not any("ended" in sample for sample in content["samples"])
    (sample,) = [record for record in content["samples"] if record["policy"] == "k0=1,m=2" and record["order"] == 0]
    assert all([sample["right"][int(place)], sample["answers"][int(place)]] == pair for place, pair in ended.items())
    assert sample["run"]["rows"] < sum(map(len, sample["answers"]))  # those that were kept were not decoded again


def test_nothing_to_keep_and_nothing_kept_yet(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["xshare", "bench", "--policy", "k0=1,m=2"])

    def message(out, **more):
        with pytest.raises(BaseException, match=str(STOPPED)), says_what_is_kept(out, lambda content: "1 row", **more):
            raise KeyboardInterrupt
        return capsys.readouterr().err

    assert message(None).startswith("interrupted: nothing was kept; with --out FILE the same command goes on")
    assert message(None, goes_on=False) == "interrupted: nothing was kept\n"
    path = tmp_path / "r.json"
    assert message(path).endswith(f"{path} was not written; to start again: xshare bench --policy k0=1,m=2\n")
    monkeypatch.setattr("sys.argv", ["xshare", "bench", "--api-key", "sk-1"])
    assert message(path).endswith("to start again: xshare bench --api-key '***'\n")
    path.write_text("{}")
    assert (
        message(path, goes_on=False)
        == f"interrupted: {path} holds 1 row; to start again, remove it or name another file\n"
    )


def test_a_command_that_keeps_nothing_says_so(monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("xshare.cli.replay.Trace.load", interrupted)
    result = CliRunner().invoke(app, ["replay", "t"])
    assert (result.exit_code, result.stderr) == (STOPPED, "interrupted: nothing was written\n")


def test_what_doctor_and_tune_hold():
    assert doctor.kept_text({"samples": [{"repeat": 0}, {"repeat": 0}]}) == "1 repeat of every number of experts"
    samples = [{"scan": "k0=1,m=0"}, {"scan": "k0=2,m=0"}, {"right": [True]}]
    assert tune.kept_text({"samples": samples}) == "a first look at 2 policies and 1 round of answers"
