"""Answers in larger batches, under thresholds and under budgets per device, on a small random model; and the table of
the paper's claims that is made of such files."""

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
sys.path.append(str(ROOT / "tools" / "docs"))
further_quality, claim_tables, claim_evidence = map(
    importlib.import_module, ("further_quality", "claim_tables", "claim_evidence")
)


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


def test_claims_are_judged_by_their_parts():
    def verdict(held):
        return claim_evidence.Claim("", "", "", held, "").verdict

    assert verdict((True, True)) == "holds"
    assert verdict((True, False)) == "holds in part"
    assert verdict((False,)) == "does not hold"
    assert verdict("nobody has the weights") == "open: nobody has the weights"


def test_a_policy_is_on_the_frontier_unless_another_is_no_worse_in_either_number():
    at = {"fast": (0.5, -10.0), "good": (0.2, -1.0), "beaten": (0.1, -1.0), "lost": (0.5, -11.0)}
    assert claim_evidence.undominated(at) == ["fast", "good"]


def test_claims_about_thresholds_and_devices_come_with_their_file(tmp_path):
    for file in (ROOT / "evidence").glob("*.json"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "further_quality.json").unlink(missing_ok=True)
    before = all_claims(tmp_path)
    rows = [
        {"policy": "k0=1,tau=0.8", "paper": "", "active": 23.0, "active_native": 35.0, "change": -0.02},
        {"policy": "k0=1,m=0,mg=2,fill=rounds,score=full", "paper": "k0=1,mg=2", "active": 18.0}
        | {"active_native": 36.0, "change": -0.3},
    ]
    (tmp_path / "further_quality.json").write_text(json.dumps({"rows": rows}))
    new = [line for line in all_claims(tmp_path) if line not in before]
    assert [line[3] for line in new] == ["does not hold", "does not hold"]
    assert new[0][2] == "50% of the experts -30.0"
    assert "`k0=1,tau=0.8` -2.0" in new[1][2]


def all_claims(folder):
    return [line for table in claim_tables.PARTS for line in claim_tables.claims(folder, table)[1]]
