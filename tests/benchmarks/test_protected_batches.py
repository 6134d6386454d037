"""Protected requests in fixed batches: what the benchmark records, on a small model."""

import importlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
sys.path.append(str(ROOT / "docs"))
protected, protected_tables = map(importlib.import_module, ("protected", "protected_tables"))


def test_other_requests_are_protected_in_every_batch():
    guarded_sets = [protected.guarded(number, 8, 0.25) for number in range(20)]
    assert all(len(guarded) == 2 and guarded <= set(range(8)) for guarded in guarded_sets)
    assert len({frozenset(guarded) for guarded in guarded_sets}) > 10


def test_protected_answers_are_native(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(protected, "BLOCK", 2)
    path = tmp_path / "protected.json"
    options = {"policy": "k0=0,m=4", "share": 0.3, "batch": 4, "tokens": 6, "json": path}
    protected.main("transformers", str(small), batches=2, **options)
    protected.main("transformers", str(small), batches=3, **options)  # goes on
    results = json.loads(path.read_text())
    (row,) = results["rows"]
    assert [sample["number"] for sample in results["samples"]] == [0, 1, 2]
    assert (row["batches"], row["answers_protected"], row["answers_others"]) == (3, 3, 9)
    assert [row[f"{name}_same"] for name in ("protected", "everybody", "nobody", "halves")] == [3] * 4
    assert row["others_moved"] > 3
    assert row["active_nobody"] < row["active_some"] < row["active_native"]
    assert "others moved" in capsys.readouterr().out
    titles, cells = protected_tables.batches(results, None)
    assert [len(line) for line in cells] == [len(titles)]
    assert cells[0][1:5] == ["3 of 3"] * 4
