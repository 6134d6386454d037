import json

import pytest
from typer.testing import CliRunner

import xshare.models
from xshare.cli import app
from xshare.errors import PolicyError

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
        "--json",
        str(path),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "8 held-out questions of 8 kinds" in result.output
    assert f"results: {path}" in result.output
    found = json.loads(path.read_text())
    assert found["provenance"]["model"] == "nano"
    native, pruned, all_kept = found["rows"]
    assert set(native) >= COLUMNS
    assert native["policy"] == "native"
    assert native["mass"] == pytest.approx(1)
    assert native["active"] == pytest.approx(native["active_native"])
    assert native["agreement"] == all_kept["agreement"] == 1  # a budget of N changes no token
    assert pruned["active"] < native["active"]
    assert pruned["mass"] < 1
    assert all(row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"] for row in found["rows"])


def test_a_policy_that_cannot_be_read_is_refused_before_anything_runs(in_the_box, tmp_path):
    result = CliRunner().invoke(app, ["demo", "--policy", "k0=x", "--json", str(tmp_path / "demo.json")])
    assert isinstance(result.exception, PolicyError)
    assert not (tmp_path / "demo.json").exists()
