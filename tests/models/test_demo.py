import json
from contextlib import nullcontext
from functools import partial

import pytest
from typer.testing import CliRunner

import xshare.models
from xshare.cli import app, demo
from xshare.errors import PolicyError, XShareError
from xshare.policy import RECOMMENDED, Policy

COLUMNS = {"policy", "active", "active_native", "mass", "accuracy", "agreement", "tokens_per_s"}


@pytest.fixture
def in_the_box(small, monkeypatch):
    monkeypatch.setattr(xshare.models, "folder", lambda name="nano": small)


def test_one_table_and_one_file(in_the_box, tmp_path):
    path = tmp_path / "demo.json"
    words = [
        "demo",
        "--questions",
        "1",
        "--tokens",
        "12",
        "--jobs",
        "1",
        "--policy",
        "k0=1,m=2",
        "--policy",
        "k0=1,m=16",
        "--no-speed",
        "--json",
        str(path),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "8 held-out questions of 8 kinds" in result.output
    assert f"results: {path}" in result.output
    content = json.loads(path.read_text())
    assert content["provenance"]["model"] == "nano"
    native, pruned, all_kept = content["rows"]
    assert set(native) >= COLUMNS
    assert native["policy"] == "native"
    assert native["mass"] == pytest.approx(1)
    assert native["active"] == pytest.approx(native["active_native"])
    assert native["agreement"] == all_kept["agreement"] == 1  # a budget of N changes no token
    assert pruned["active"] < native["active"]
    assert pruned["mass"] < 1
    assert all(row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"] for row in content["rows"])
    again = CliRunner().invoke(app, words)
    assert isinstance(again.exception, XShareError)
    assert "is there already: remove it, or name another file" in str(again.exception)
    assert json.loads(path.read_text()) == content


def test_a_policy_that_cannot_be_read_is_refused_before_anything_runs(in_the_box, tmp_path):
    result = CliRunner().invoke(app, ["demo", "--policy", "k0=x", "--json", str(tmp_path / "demo.json")])
    assert isinstance(result.exception, PolicyError)
    assert not (tmp_path / "demo.json").exists()


def test_both_parts_and_what_to_type_next(in_the_box, tmp_path, monkeypatch):
    path = tmp_path / "demo.json"
    small = partial(demo.time_presets, steps=3, repeats=3, hidden=64, width=32)
    monkeypatch.setattr(demo, "time_presets", lambda batch: small(4))
    monkeypatch.setattr(demo, "POLICIES", [*RECOMMENDED, "topk:k=2"])
    words = ["demo", "--questions", "1", "--tokens", "6", "--jobs", "1", "--json", str(path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "speed on this machine: 4 rows, experts of 0.0 MB" in result.output
    assert "of a step here" in result.output
    last = " ".join(result.output.strip().splitlines()[-3:])
    assert "next: xshare.apply(model, " in last or "none of the presets is worth it" in last
    rows = json.loads(path.read_text())["rows"]
    timed = [row for row in rows if row["model"] == "large"]
    assert [row["policy"] for row in timed] == ["native", "k0=0,rho=0.8", "k0=0,rho=0.7", "k0=0,rho=0.6"]
    native, *others = timed
    assert (native["ratio"], native["ratio_low"], native["ratio_high"]) == (1, 1, 1)
    assert native["active"] == native["active_native"]
    assert all(row["active"] < row["active_native"] == native["active"] for row in others)
    assert [row["active"] for row in others] == sorted((row["active"] for row in others), reverse=True)


def timed_row(policy, ratio, low):
    return {"policy": str(Policy.parse(policy)), "ratio": ratio, "ratio_low": low}


def answered(policy, change):
    return {"policy": str(Policy.parse(policy)), "change": change, "questions": 40}


@pytest.mark.parametrize(
    ("changes", "ratios", "name"),
    [
        ((0, 0, -0.1), (1.2, 1.4, 1.6), "balanced"),  # fast loses answers
        ((0, 0, 0), (1.2, 1.4, 1.6), "fast"),
        ((-0.025, -0.05, -0.1), (1.2, 1.4, 1.6), "careful"),  # one answer of forty
        ((-0.1, -0.1, -0.1), (1.2, 1.4, 1.6), "careful"),  # none keeps them: the mildest
        ((0, 0, 0), (1.0, 1.01, 1.02), None),
    ],
)
def test_the_preset_that_the_measurements_favour(changes, ratios, name):
    answers = [answered(preset, change) for preset, change in zip(RECOMMENDED, changes, strict=True)]
    timed = [timed_row(preset, ratio, ratio) for preset, ratio in zip(RECOMMENDED, ratios, strict=True)]
    advice = demo.advice(answers, timed)
    assert f'"{name}"' in advice if name else "none of the presets is worth it" in advice


def test_where_onednn_has_a_cliff_the_demo_goes_without_and_says_so(in_the_box, monkeypatch):
    monkeypatch.setattr(demo, "find_cliff", lambda: "nine rows take ten times as long")
    words = ["demo", "--questions", "1", "--tokens", "3", "--jobs", "1", "--policy", "k0=1,m=2", "--no-speed"]
    switched = []
    monkeypatch.setattr(demo, "onednn", lambda on: switched.append(on) or nullcontext())
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "oneDNN is switched off for this demo: nine rows take ten times as long" in result.output
    assert switched == [False, False]
