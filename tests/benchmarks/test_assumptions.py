"""The paper's assumptions on a small random model: correlations, layers, overlap, warm-up."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
sys.path.append(str(ROOT / "tools" / "docs"))
assumptions, correlation, plots, quality_tables = map(
    importlib.import_module, ("assumptions", "lib.correlation", "plots", "quality_tables")
)


def test_correlations_are_what_they_should_be():
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    row = correlation.correlate([np.stack([x, 2 * x + 1], 1)])
    assert row["pearson"] == pytest.approx(1)
    assert row["spearman"] == pytest.approx(1)
    row = correlation.correlate([np.stack([x, np.exp(3 * x)], 1)])
    assert row["spearman"] == pytest.approx(1)
    assert row["pearson"] < 0.9
    row = correlation.correlate([np.stack([x, rng.normal(size=400)], 1)])
    assert row["pearson_low"] < 0 < row["pearson_high"]
    assert correlation.pearson(np.stack([np.zeros(5), np.arange(5.0)], 1)) == 0
    assert correlation.ranks(np.array([3.0, 1, 3, 2])).tolist() == [3.5, 1, 3.5, 2]


def test_every_list_of_the_result_file_is_written(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(assumptions, "WARM", [(24, 1)])
    path = tmp_path / "assumptions.json"
    options = {"tasks": 60, "file": None, "forced": 40, "tokens": 12, "trace": None, "jobs": 1, "threads": 1}
    assumptions.main(str(small), '{"dtype": "float32"}', **options, seconds=None, seed=0, json=path)
    results = json.loads(path.read_text())
    policies = [f"{text},score=full" for text in ("k0=1,m=3", "k0=1,m=2", "k0=1,m=0", "k0=0,m=3", "random:m=6")]
    assert [(row["policy"], row["layer"]) for row in results["layers"]] == [
        (policy, layer) for policy in policies for layer in (0, 1, None)
    ]
    at = {(row["policy"], row["layer"]): row for row in results["layers"]}
    for policy in policies:
        for layer in (0, 1):
            row = at[policy, layer]
            assert 0 < row["kl"] < at[policy, None]["kl"]
            assert row["same"] > at[policy, None]["same"]
            assert row["kl_low"] <= row["kl"] <= row["kl_high"]
        assert at[policy, None]["active"] < at[policy, None]["active_native"]
    assert at["k0=1,m=0,score=full", 0]["mass_lost"] > at["k0=1,m=3,score=full", 0]["mass_lost"]
    pooled = [row for row in results["correlation"] if row["policy"] is None]
    assert [row["layer"] for row in pooled] == [0, 1, None, None]
    assert pooled[-1]["steps"] is None  # the means of the layers
    assert all(row["spearman_low"] > 0.5 for row in pooled[:-1])  # losing all of the mass does harm
    assert {(point["policy"], point["layer"]) for point in results["points"]} == set(at)
    pairs = {(row["pair"], row["top"]) for row in results["overlap"]}
    assert pairs == {(p, n) for p in ("consecutive", "same domain", "different domains") for n in (5, 10, 15)}
    assert {row["rival"] for row in results["matched"]} == {"k0=0"}
    assert {row["mixed"] for row in results["matched"]} == {True, False}
    (mixed,) = (row for row in results["matched"] if row["mixed"])
    assert mixed["policy"].startswith("k0=0,m=")
    assert abs(mixed["active"] - mixed["active_reference"]) < 1.5
    assert "Spearman" in capsys.readouterr().out
    for name, (file, table) in quality_tables.tables().items():
        if file == "assumptions":
            titles, cells = table(results)
            assert cells, name
            assert all(len(line) == len(titles) for line in cells)
    plot_files = plots.draw([path], tmp_path)
    assert {plot.stem for plot in plot_files} == {"mass_and_kl", "token_overlap", "pruned_layers"}
