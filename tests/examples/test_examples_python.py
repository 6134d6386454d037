"""examples/*.py and the notebook, run as they stand: what they print and draw."""

import json
import re
import runpy
from pathlib import Path

import pytest

from xshare.methods import METHODS
from xshare.policy import METHOD_KNOBS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_a_method_of_your_own(capsys):
    try:
        runpy.run_path(str(EXAMPLES / "own_policy.py"), run_name="__main__")
        assert "popular" in METHODS
    finally:
        METHODS.pop("popular", None), METHOD_KNOBS.pop("popular", None)
    title, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert title[:2] == ["policy", "experts"]
    two, three, balanced = ([float(cell.rstrip("%")) for cell in row[1:]] for row in rows)
    assert three[0] < two[0]
    assert balanced[3] >= 70 > two[3]  # what a guarantee is for
    lines = (EXAMPLES / "own_policy.py").read_text().splitlines()
    assert len(lines) <= 36  # thirty, and what it says of itself


def test_a_policy_on_a_transformers_model(capsys, monkeypatch):
    pytest.importorskip("transformers", reason="Transformers is not installed")
    monkeypatch.setattr("sys.argv", ["transformers_apply.py"])
    runpy.run_path(str(EXAMPLES / "transformers_apply.py"), run_name="__main__")
    printed = capsys.readouterr().out
    active, native = map(float, re.search(r"balanced: ([\d.]+) experts .* instead of ([\d.]+)", printed).groups())
    assert 4 <= active < native
    kept, least = map(int, re.search(r"(\d+)% of the routing weight kept, (\d+)% by", printed).groups())
    assert 70 <= least <= kept
    assert int(re.search(r"(\d) of 8 answers", printed)[1]) >= 4
    assert "    11 + 30 = 41\n" in printed


def test_the_notebook_draws_a_batch(capsys, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    monkeypatch.chdir(EXAMPLES)
    book = json.loads((EXAMPLES / "experts_of_a_batch.ipynb").read_text())
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)  # pictures are large
    names = {}
    for cell in cells:
        exec("".join(cell["source"]), names)
    loaded, least = capsys.readouterr().out.splitlines()
    native, balanced, budget = map(int, re.findall(r": (\d+) experts", loaded))
    assert 64 >= native > balanced > budget == 8
    assert int(re.search(r"balanced: (\d+)% at least", least)[1]) >= 70
    first, second = (plt.figure(number) for number in plt.get_fignums()[-2:])
    dots = first.axes[0].collections[0].get_offsets()
    assert len(dots) == 16 * 4  # a token's experts
    assert len(second.axes[0].patches) == 2 * 16
    plt.close("all")
