"""Other mates in the batch: shared sets follow them, native routing and topk do not."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
sys.path.append(str(ROOT / "tools" / "docs"))
neighbours, plots, quality_tables = map(importlib.import_module, ("neighbours", "plots", "quality_tables"))


def test_every_order_has_every_prompt():
    orders = neighbours.orders(40, 4, seed=0)
    assert orders[0] == list(range(40))
    assert len({tuple(order) for order in orders}) == 4
    assert all(sorted(order) == orders[0] for order in orders)


def test_spread_over_mates():
    row = neighbours.kl_row([[1.0, 3.0], [5.0, 5.0]])
    assert row == {"kl": 3.5, "kl_spread": 0.5, "kl_prompts": 1.5, "kl_worst": 4.0}
    row = neighbours.share("changed", [True, False, False, False])
    assert row["changed_low"] < row["changed"] == 0.25 < row["changed_high"]


def test_only_shared_sets_follow_the_mates(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(neighbours, "POLICIES", [(0, 1), "topk:k=2", "lynx:drop={quarter}"])
    path = tmp_path / "neighbours.json"
    options = {
        "prompts": 32,
        "sets": 2,
        "file": None,
        "tokens": 10,
        "jobs": 1,
        "threads": 1,
        "seconds": None,
        "seed": 0,
    }
    neighbours.main(str(small), '{"dtype": "float32"}', **options, json=path)
    rows = {row["policy"]: row for row in json.loads(path.read_text())["rows"]}
    assert set(rows) == {"native", "k0=1,m=0,score=full", "topk:k=2", "lynx:drop=4"}
    for name, row in rows.items():
        control = name in ("native", "topk:k=2")
        assert row["control"] == control
        assert (row["changed"] == 0) == control, name
        assert (row["distinct"] == 1) == control, name
        assert (row["kl_spread"] < 1e-8) == control, name
        assert row["accuracy_least"] <= row["accuracy"] <= row["accuracy_most"]
        assert row["prompts"] == 32
        assert row["mixed"]
    assert rows["native"]["kl"] == pytest.approx(0, abs=1e-9)
    assert rows["topk:k=2"]["kl"] > 1e-5
    assert "batches of one kind are left out" in capsys.readouterr().out
    titles, cells = quality_tables.neighbours(json.loads(path.read_text()))
    assert cells[0][0] == "`native`"
    assert all(len(line) == len(titles) for line in cells)
    assert [plot.stem for plot in plots.draw([path], tmp_path)] == ["neighbours"]
