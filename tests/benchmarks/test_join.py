"""Two result files as one: every record keeps the run that made it, and the file can be gone on from."""

import json
import sys
from pathlib import Path

import pytest

from xshare.errors import XShareError
from xshare.results import Results
from xshare.results.file import as_text

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from join import joined

FINGERPRINT = {"parts": ["model"]}


def measured(path, model, *runs):
    """A file that grew over several runs, a row each."""
    for run in runs:
        results = Results(path, FINGERPRINT, {"run": run})
        results.rows.append({"model": model, "of": run})
        results.samples.append({"model": model, "sample": run})
        results.write()
    return json.loads(path.read_text())


def test_every_record_keeps_its_run(tmp_path):
    a, b = measured(tmp_path / "a.json", "nano", "a1", "a2"), measured(tmp_path / "b.json", "lab", "b1", "b2", "b3")
    before = as_text(a), as_text(b)
    results = joined([a, b])
    assert (as_text(a), as_text(b)) == before
    runs = [results["provenance"], *results["stamps"]]
    assert [row["of"] for row in results["rows"]] == ["a1", "a2", "b1", "b2", "b3"]
    assert all(runs[row.get("stamp", 0)]["run"] == row["of"] for row in results["rows"])
    assert all(runs[sample.get("stamp", 0)]["run"] == sample["sample"] for sample in results["samples"])
    path = tmp_path / "joined.json"
    path.write_text(as_text(results))
    again = measured(path, "nano", "c")  # gone on from
    assert [run["run"] for run in [again["provenance"], *again["stamps"]]] == ["a1", "a2", "b1", "b2", "b3", "c"]
    assert again["rows"][-1] == {"model": "nano", "of": "c", "stamp": 5}


def test_files_of_two_benchmarks_are_refused(tmp_path):
    other = measured(tmp_path / "b.json", "lab", "b1")
    other["provenance"]["fingerprint"] = {"parts": []}
    with pytest.raises(XShareError, match="of one benchmark"):
        joined([measured(tmp_path / "a.json", "nano", "a1"), other])
