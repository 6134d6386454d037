"""`xshare doctor --stairs`: the file that engines and the report take."""

import json
from importlib import metadata

import pytest
from documented_columns import check_columns
from killed_command import killed
from typer.testing import CliRunner

from xshare.cli import app
from xshare.engines.cpu_name import cpu_name
from xshare.errors import XShareError
from xshare.report.result_files import read_result
from xshare.staircase import COLUMNS, WHERE, StairsError, read_stairs


def words(small, path, *more, options=None):
    options = json.dumps({"dtype": "float32"} | (options or {}))
    command = ["doctor", "--engine", "transformers", "--model", str(small), "--engine-args", options]
    return [*command, "--stairs", str(path), "--prompt-tokens", "8", "--rounds", "4", *more]


def done(words):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words):
    result = CliRunner().invoke(app, ["doctor", *words])
    assert isinstance(result.exception, XShareError), result.output
    return str(result.exception)


def test_the_file_and_what_is_said(small, tmp_path):
    path = tmp_path / "stairs.json"
    output = done(words(small, path, "--rows", "4", "--rows", "6"))
    assert "experts by grouped_mm" in output
    assert "4 rows: 4 to " in output
    assert "6 rows: 4 to " in output
    content = json.loads(path.read_text())
    assert {*WHERE} <= {*content["provenance"]}
    assert content["provenance"]["backend"] == "grouped_mm"
    assert content["provenance"]["cpu"] == cpu_name()
    assert content["provenance"]["version"] == metadata.version("transformers")
    rows = content["rows"]
    assert {*COLUMNS, "active", "cost", "rounds", "settled"} == {*rows[0]}
    for rows_of_a_step in (4, 6):  # both are said, or neither
        (settled,) = {row["settled"] for row in rows if row["batch"] == rows_of_a_step}
        said = output.partition(f"{rows_of_a_step} rows: ")[2].partition("6 rows: ")[0]
        assert settled == ("not settled: more --rounds" not in said)
    check_columns("doctor --stairs", rows)
    assert {row["batch"] for row in rows} == {4, 6}
    for rows_of_a_step in (4, 6):
        curve = [row for row in rows if row["batch"] == rows_of_a_step]
        sizes = [row["experts"] for row in curve]
        assert sizes == list(range(4, sizes[-1] + 1))
        assert all(row["experts"] - 0.5 <= row["active"] <= row["experts"] for row in curve)
        assert all(row["ms_low"] <= row["ms"] <= row["ms_high"] for row in curve)
        assert {row["rounds"] for row in curve} == {4}
        visits = [sample["experts"] for sample in content["samples"] if sample["batch"] == rows_of_a_step]
        assert sorted(visits) == sorted(4 * sizes)
    assert read_result(path).kind == "time of a step by the size of its set"
    # Only times that grow are a staircase, and the times of this small machine need not grow.
    for row in rows:
        row["ms"] = row["experts"]
    path.write_text(json.dumps(content))
    stairs = read_stairs(path)
    assert stairs.rows == [4, 6]
    stairs.check_conditions(content["provenance"])
    with pytest.raises(StairsError, match="measured with device 'cpu', and here it is 'cuda'"):
        stairs.check_conditions({"device": "cuda"})
    with pytest.raises(StairsError, match=r"measured with cpu '.*', and here it is 'another'"):
        stairs.check_conditions({"device": "cpu", "cpu": "another"})


def test_killed_and_gone_on_with(small, tmp_path):
    path = tmp_path / "stairs.json"
    before = killed(words(small, path, "--rows", "4", "--rounds", "1000"), path, lambda content: content["samples"])
    done(words(small, path, "--rows", "4"))
    after = json.loads(path.read_text())
    assert after["samples"][: len(before["samples"])] == before["samples"]
    assert after["counts"] == before["counts"]
    rounds = {sample["round"] for sample in after["samples"]}
    assert rounds == set(range(max(4, len({sample["round"] for sample in before["samples"]}))))
    done(words(small, path, "--rows", "4"))
    assert json.loads(path.read_text())["samples"] == after["samples"]  # nothing was measured twice
    done(words(small, path, "--batch", "3"))  # other rows join the file
    assert {row["batch"] for row in json.loads(path.read_text())["rows"]} == {3, 4}


def test_a_file_of_another_processor_is_not_gone_on_with(small, tmp_path, monkeypatch):
    path = tmp_path / "stairs.json"
    done(words(small, path, "--rows", "4"))
    monkeypatch.setattr("xshare.engines.transformers.routers.cpu_name", lambda: "another")
    result = CliRunner().invoke(app, words(small, path, "--rows", "6"))
    assert f"other settings, cpu {cpu_name()} instead of another: name another file" in str(result.exception)


def test_with_drafts_rows_are_those_of_a_step(small, tmp_path):
    path = tmp_path / "stairs.json"
    drafted = words(small, path, "--drafts", "2", options={"draft": str(small)})
    result = CliRunner().invoke(app, [*drafted, "--rows", "8"])
    assert str(result.exception) == "rows must be a multiple of 3, a token and its drafts each, not 8"
    done([*drafted, "--batch", "2", "--tokens", "40"])
    content = json.loads(path.read_text())
    assert {row["batch"] for row in content["rows"]} == {6}
    assert content["provenance"]["drafts"] == 2


def test_what_does_not_go_together_is_refused(small, tmp_path, monkeypatch):
    assert "--rows are those of the staircase" in refused("--rows", "4")
    assert "leave --policy and --out out" in refused("--stairs", str(tmp_path / "s"), "--policy", "k0=1,m=2")
    assert "leave --policy and --out out" in refused("--stairs", str(tmp_path / "s"), "--out", str(tmp_path / "o"))
    assert "not a server" in refused("--stairs", str(tmp_path / "s"), "--engine", "http://localhost:1")
    path = tmp_path / "doctor.json"
    fingerprint = {"engine": "transformers", "batch": 16}
    path.write_text(json.dumps({"provenance": {"fingerprint": fingerprint}, "rows": [], "samples": []}))
    assert "was measured with other settings" in refused("--stairs", str(path), "--engine", "transformers")
    result = CliRunner().invoke(app, words(small, tmp_path / "s", "--tokens", "5"))
    assert "an answer must have room for 11 tokens, not 5" in str(result.exception)


def test_a_batch_that_fills_one_size_alone_is_refused(small, tmp_path, monkeypatch):
    monkeypatch.setattr("xshare.cli.staircase.experts_by_size", lambda *args: {4: 4.0, 5: 4.2})
    result = CliRunner().invoke(app, words(small, tmp_path / "s", "--rows", "2"))
    assert str(result.exception) == "a step of 2 rows loads 4.2 experts: give it more --rows"
