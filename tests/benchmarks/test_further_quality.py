"""Answers in larger batches, under thresholds and under budgets per device, on a small random model."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from xshare.engines.by_name import open_engine
from xshare.errors import ModelError
from xshare.policy import Policy

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
further_quality = importlib.import_module("further_quality")


def test_every_kind_of_policy_is_asked(small, tmp_path, monkeypatch):
    monkeypatch.setattr(further_quality, "MAIN", [(24, 1)])
    monkeypatch.setattr(further_quality, "DEVICE_BUDGETS", [1])
    monkeypatch.setattr(further_quality, "THRESHOLDS", {"full": [0.5], "topk": [0.8]})
    path = tmp_path / "further.json"
    options = {"tasks": 8, "file": None, "forced": 8, "tokens": 4, "jobs": 1, "threads": 1, "seconds": None, "seed": 0}
    further_quality.main(str(small), '{"dtype": "float32"}', devices=2, together=64, **options, json=path)
    results = json.loads(path.read_text())
    assert results["provenance"]["complete"]
    assert results["provenance"]["devices"] == 2
    at = {(row["batch"], row["policy"]): row for row in results["rows"]}
    assert {batch for batch, _ in at} == {16, 32, 64}
    assert {policy for batch, policy in at if batch == 16} >= {"k0=1,m=0,mg=1", "k0=1,tau=0.5,score=full"}
    assert at[64, "k0=0,rho=0.7"]["active"] <= at[64, "k0=0,rho=0.7"]["active_native"]


def test_a_budget_per_device_needs_devices(small):
    policy = Policy.parse("k0=0,mg=2")
    with pytest.raises(ModelError, match="devices, over which the experts are taken to be spread, must be a whole"):
        open_engine("transformers", str(small), options={"devices": 0})
    engine = open_engine("transformers", str(small), options={"devices": 2}, policies=[policy])
    engine.use(policy)
    engine.run([[1, 2, 3], [4, 5, 6]], limit=4, batch=2)
    assert engine.stats().mean["experts_active"] <= 4  # two on each
    engine.close()
