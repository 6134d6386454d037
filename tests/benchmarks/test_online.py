"""The benchmark of requests that come and go is cut off and goes on. Its engine: online.py --tiny."""

import json
import sys
from math import inf
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import online

from xshare.engines.base import About
from xshare.errors import XShareError
from xshare.results import Results

SETTINGS = {"tiny": True, "layers": 4, "regime": "carried"}


class Described:
    """An engine that is only asked what it is."""

    about = About("none", None, "none", "none", experts=8)


class Compared:
    """In place of `compare`: as many repeats as it is allowed, which it notes."""

    def __init__(self, allowed):
        self.allowed, self.repeats = allowed, []

    def __call__(self, engine, variants, workload, repeats, advance, keep):
        for repeat in repeats:
            if len(self.repeats) == self.allowed:
                raise KeyboardInterrupt
            self.repeats.append(repeat)
            keep([{"policy": way.name, "repeat": repeat, "otps": 9.0 + repeat} for way in variants])


def run(path, monkeypatch, allowed=99, rate=4.0, seconds=4.0, repeats=6):
    """One cell in a run of its own -> the repeats that it measured."""
    compared = Compared(allowed)
    monkeypatch.setattr(online, "compare", compared)
    results = Results(path, SETTINGS, {"allowed": allowed})
    try:
        online.measure(Described(), results, rate, 16, seconds, repeats, True)
    except KeyboardInterrupt:
        assert len(compared.repeats) == allowed
    return compared.repeats


def test_a_cell_that_was_cut_off_goes_on_and_says_which_run_measured_what(tmp_path, monkeypatch):
    path = tmp_path / "online.json"
    assert run(path, monkeypatch, allowed=2) == [0, 1]
    first = json.loads(path.read_text())
    assert {row["repeats"] for row in first["rows"]} == {2}
    assert run(path, monkeypatch, rate=inf, repeats=1) == [0]  # another cell
    assert run(path, monkeypatch) == [2, 3, 4, 5]
    assert run(path, monkeypatch) == []
    content = json.loads(path.read_text())
    assert [stamp["allowed"] for stamp in (content["provenance"], *content["stamps"])] == [2, 99, 99]
    assert [(row["rate"], row["repeats"], row["stamp"]) for row in content["rows"]] == 3 * [(None, 1, 1)] + 3 * [
        (4, 6, 2)
    ]
    samples = [sample for sample in content["samples"] if sample["rate"] == 4]
    assert [sample["repeat"] for sample in samples] == [repeat for repeat in range(6) for _ in range(3)]
    assert samples[:6] == first["samples"]
    assert {sample["repeat"]: sample.get("stamp") for sample in samples} == {0: None, 1: None} | dict.fromkeys(
        range(2, 6), 2
    )


def test_other_requests_are_not_added_to_a_cell(tmp_path, monkeypatch):
    path = tmp_path / "online.json"
    run(path, monkeypatch, allowed=2)
    with pytest.raises(XShareError, match="was measured with"):
        run(path, monkeypatch, seconds=8.0)
    assert run(path, monkeypatch, seconds=8.0, repeats=2) == []  # nothing is added


def test_the_stored_cells_are_complete(monkeypatch, tmp_path):
    """Nothing of evidence/online.json is measured again."""
    path = tmp_path / "online.json"
    path.write_bytes((online.EVIDENCE / "online.json").read_bytes())
    monkeypatch.setattr(online, "compare", lambda *args: pytest.fail("a cell is measured again"))
    results = Results(path, SETTINGS | {"tiny": False, "layers": 36}, {})
    for rate, tokens in dict.fromkeys((row["rate"] or inf, row["tokens"]) for row in results.rows):
        online.measure(Described(), results, rate, tokens, 4.0, 6, False)
    assert path.read_bytes() == (online.EVIDENCE / "online.json").read_bytes()
