import json

import pytest
from documented_columns import check_columns
from killed_command import killed
from typer.testing import CliRunner

import xshare.cli.doctor
from xshare import __version__
from xshare.cli import app
from xshare.errors import XShareError


def test_table_verdict_and_file(small, tmp_path):
    path = tmp_path / "doctor.json"
    words = ["doctor", "--engine", "transformers", "--model", str(small), "--engine-args", '{"dtype": "float32"}']
    words += ["--batch", "6", "--tokens", "6", "--repeats", "2", "--prompt-tokens", "8", "--json", str(path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    before = json.loads(path.read_text())
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0, again.output
    after = json.loads(path.read_text())
    assert after["samples"] == before["samples"]  # nothing was measured twice
    assert after["rows"] == before["rows"]
    assert "step = " in result.output
    assert "worth it: " in result.output
    content = json.loads(path.read_text())
    check_columns("doctor", content["rows"])
    assert set(content["provenance"]["law"]) == {"a", "b", "r2"}
    assert content["provenance"]["verdict"] in result.output.replace("\n", " ")
    policies = [row["policy"] for row in content["rows"]]
    assert policies[:3] == ["native", "k0=1,m=16", "k0=0,m=4"]
    assert {row["batch"] for row in content["rows"]} == {1, 3, 6}
    pruned = next(row for row in content["rows"] if row["policy"] == "k0=1,m=0")
    assert pruned["predicted"] is not None
    assert pruned["active"] < pruned["active_native"]
    # What a share of protected requests costs is said too.
    assert "what protected requests cost" in result.output
    tenth, half = (row for row in content["rows"] if row["policy"] == "k0=1,m=0" and "protected" in row)
    assert (tenth["protected"], half["protected"]) == (0.1, 0.5)
    assert pruned["active"] < tenth["active"] < half["active"]
    assert pruned["mass_shared"] == pruned["mass"] < half["mass_shared"] < half["mass"]
    assert half["nobody_ratio_low"] <= half["nobody_ratio"] <= half["nobody_ratio_high"]


def test_the_doctor_measures_with_drafts(small, tmp_path):
    path = tmp_path / "doctor.json"
    options = json.dumps({"dtype": "float32", "draft": str(small)})
    words = ["doctor", "--engine", "transformers", "--model", str(small), "--engine-args", options, "--drafts", "2"]
    words += ["--batch", "4", "--tokens", "6", "--repeats", "1", "--prompt-tokens", "8", "--json", str(path)]
    result = CliRunner().invoke(app, [*words, "--policy", "k0=1,mr=1,score=full"])
    assert result.exit_code == 0, result.output
    assert "batch 4, 2 drafts" in result.output
    content = json.loads(path.read_text())
    assert content["provenance"]["drafts"] == 2
    assert content["rows"][1]["policy"] == "k0=1,m=16"  # the control
    pruned = next(row for row in content["rows"] if row["policy"] == "k0=1,m=0,mr=1,score=full")
    assert pruned["active"] < pruned["active_native"]


def test_killed_and_gone_on_with(small, tmp_path):
    """A repeat is kept whole: native and the control of one are of one time."""
    path = tmp_path / "doctor.json"
    words = ["doctor", "--engine", "transformers", "--model", str(small), "--engine-args", '{"dtype": "float32"}']
    words += ["--batch", "4", "--tokens", "4", "--prompt-tokens", "8", "--json", str(path)]
    before = killed([*words, "--repeats", "1000"], path, lambda content: content["samples"])["samples"]
    repeats = max(sample["repeat"] for sample in before)
    assert [sample["repeat"] for sample in before].count(1) * repeats == len(before)
    result = CliRunner().invoke(app, [*words, "--repeats", str(repeats + 1)])
    assert result.exit_code == 0, result.output
    after = json.loads(path.read_text())
    assert after["samples"][: len(before)] == before
    assert len(after["samples"]) == len(before) // repeats * (repeats + 1)
    assert "worth it: " in result.output


def test_a_file_that_cannot_be_continued_is_refused_before_the_engine_is_up(tmp_path, monkeypatch):
    def never(*args, **options):
        raise AssertionError("an engine was started")

    monkeypatch.setattr("xshare.cli.doctor.open_engine", never)
    path = tmp_path / "doctor.json"

    def refused(text, *words):
        path.write_text(text)
        result = CliRunner().invoke(app, ["doctor", *words, "--json", str(path)])
        assert isinstance(result.exception, XShareError), result.exception
        assert path.read_text() == text
        return str(result.exception)

    def result_file(**fingerprint):
        return json.dumps({"provenance": {"fingerprint": fingerprint}, "rows": [], "samples": []})

    assert "holds no results that could be gone on with" in refused("no JSON")
    assert "holds no results that could be gone on with" in refused('{"rows": []}')
    assert "was measured with other settings" in refused(result_file(engine="vllm", tasks="nano's"))
    setting = {"batch": 16, "prompts": "questions", "prompt_tokens": 64, "tokens": 32, "seed": 0, "engine_args": {}}
    earlier = {"engine": "vllm", "model": "nano", "xshare": __version__} | setting
    assert "tokens 32 instead of 8" in refused(result_file(**earlier), "--tokens", "8")
    assert "engine vllm instead of transformers" in refused(result_file(**earlier), "--engine", "transformers")
    with pytest.raises(AssertionError, match="an engine was started"):  # the model is known only then
        CliRunner().invoke(app, ["doctor", "--json", str(path)], catch_exceptions=False)


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    def denied(self, *args, **options):
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "doctor.json"
    path.touch()
    monkeypatch.setattr("pathlib.Path.read_text", denied)  # root would read it whatever its mode
    result = CliRunner().invoke(app, ["doctor", "--json", str(path)])
    assert str(result.exception) == f"{str(path)!r} cannot be read: Permission denied"


def test_what_experts_weigh_is_said_to_be_unknown_where_it_is(small, monkeypatch):
    open_engine = xshare.cli.doctor.open_engine

    def opened(*args, **options):
        engine = open_engine(*args, **options)
        engine.about.expert_bytes = None
        return engine

    monkeypatch.setattr("xshare.cli.doctor.open_engine", opened)
    words = ["doctor", "--engine", "transformers", "--model", str(small), "--batch", "4", "--tokens", "4"]
    result = CliRunner().invoke(app, [*words, "--repeats", "1", "--prompt-tokens", "8"])
    assert result.exit_code == 0, result.output
    assert "bandwidth  not known" in result.output
    assert "GB/s" not in result.output
