"""The frontier on a small random model: its plan, what is chosen to be confirmed, and that it goes on where it was."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from xshare import Policy
from xshare.policy import RECOMMENDED

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
answer_bench, frontier, cells = map(importlib.import_module, ("lib.answer_bench", "frontier", "lib.cells"))
COLUMNS = "model batch drafts policy active active_native kl change change_low change_high questions weights set"
FEW = {frontier.PLAIN: "rho=0.7 rho=0.9 k0=1,m=8 oea:k0=2"}


def run(small, path, **options):
    usual = {"tasks": 48, "file": None, "forced": 12, "tokens": 6, "jobs": 1, "threads": 1, "together": 64}
    frontier.main(str(small), '{"dtype": "float32"}', **(usual | {"seconds": None} | options), json=path)
    return json.loads(path.read_text()) if path.exists() else None


def test_what_is_chosen_is_confirmed_on_other_questions(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(frontier, "PLAN", FEW)
    path = tmp_path / "frontier.json"
    assert run(small, path, seconds=0) is None  # no time for anything
    results = run(small, path)
    assert "no draft model" in capsys.readouterr().out
    rows = results["rows"]
    assert all(set(COLUMNS.split()) <= set(row) for row in rows)
    choosing, confirming = ([row for row in rows if row["set"] == name] for name in ("choosing", "confirming"))
    assert {row["questions"] for row in choosing} == {16}  # a quarter of each kind, rounded up
    assert {row["questions"] for row in confirming} == {32}
    planned = {str(policy) for policy in frontier.planned(frontier.PLAIN, 16)}
    assert {row["policy"] for row in choosing} == {"native", "k0=1,m=16,score=full"} | planned
    confirmed = {row["policy"] for row in confirming} - {"native"}
    assert confirmed == set(map(str, frontier.chosen(choosing, frontier.PLAIN)))
    assert set(map(str, map(Policy.parse, RECOMMENDED))) <= confirmed
    assert not list(tmp_path.glob("*.native.json"))
    before = path.read_bytes()
    run(small, path)
    assert path.read_bytes() == before


def test_weights_tell_one_training_from_another(small, tmp_path, monkeypatch):
    monkeypatch.setattr(frontier, "PLAN", FEW)
    path = tmp_path / "frontier.json"
    first = run(small, path)["rows"]
    other = tmp_path / "other" / small.name
    other.parent.mkdir()
    from xshare.models import write_sums
    from xshare.models.loading import load

    model, tokenizer = load(small, dtype="float32")
    model.get_input_embeddings().weight.data[0, 0] += 1
    model.save_pretrained(other)
    tokenizer.save_pretrained(other)
    write_sums(other)
    rows = run(other, path)["rows"]
    assert rows[: len(first)] == first
    assert {row["model"] for row in rows} == {small.name}
    assert len({row["weights"] for row in rows}) == 2


def test_the_sets_share_no_question():
    tasks = cells.tasks_of(None, 800, 0)
    sets = frontier.divided(tasks)
    prompts = {name: {task.prompt for task in questions} for name, questions in sets.items()}
    assert [len(texts) for texts in prompts.values()] == [200, 600]
    assert not prompts["choosing"] & prompts["confirming"]


def row(policy, share, change, method="xshare", paper=""):
    columns = {"batch": 16, "drafts": 0, "mixed": True, "policy": str(Policy.parse(policy)), "method": method}
    return columns | {"active": share, "active_native": 1, "change": change, "paper": paper}


def test_the_boldest_within_each_loss_are_chosen(monkeypatch):
    monkeypatch.setattr(frontier, "RECOMMENDED", {})
    rows = [
        row("native", 1, 0, "native"),
        row("k0=1,m=64,score=full", 0.1, 0, paper=cells.CONTROL),
        row("rho=0.9", 0.9, -0.001),
        row("lam=0.02", 0.8, -0.005),
        row("rho=0.7,w=0:4", 0.6, -0.015),
        row("rho=0.8", 0.7, -0.015),
        row("k0=1,m=4", 0.4, -0.06),
        row("rho=0.5", 0.5, -0.04),
        row("oea:k0=2", 0.59, -0.07, "oea"),
        row("oea:k0=3", 0.8, -0.01, "oea"),
    ]
    names = [str(policy) for policy in frontier.chosen(rows, frontier.PLAIN)]
    assert names == ["k0=0,lam=0.02", "k0=0,rho=0.9", "k0=0,rho=0.7,w=0:4", "k0=0,rho=0.8", "k0=0,rho=0.5", "oea:k0=2"]


@pytest.mark.parametrize("experts", [64, 128])
def test_every_policy_of_the_plan_is_one(experts):
    for setting in frontier.PLAN:
        policies = frontier.planned(setting, experts)
        assert len(set(policies)) == len(policies)
    assert {"k0=1,m=24", "k0=0,rho=0.7"} <= {str(p) for p in frontier.planned(frontier.PLAIN, 128)}
