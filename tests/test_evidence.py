"""Every file in evidence/ says which run made which record, and when, where and with which code that was."""

import importlib
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "evidence").glob("*.json"))


def content(path):
    return json.loads(path.read_text())


def stamps_of(results):
    """The stamps that records are judged by: by number, with None for the provenance."""
    return {None: results["provenance"]} | dict(enumerate(results.get("stamps", []), 1))


def judged(results):
    """-> (stamp, time) of every record: its stamp, and where a record has a time of its own, that."""
    stamps = stamps_of(results)
    for name, records in results.items():
        if name != "stamps" and isinstance(records, list):
            for record in records:
                stamp = stamps[record.get("stamp")]
                yield (stamp if "stamp" in record else stamp | record), record.get("time") or stamp["time"]


@pytest.fixture(scope="module")
def committed():
    """The time of a commit; without the whole history nobody knows."""

    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False).stdout.strip()

    if git("rev-parse", "--is-shallow-repository") != "false" or git("rev-parse", "--show-toplevel") != str(ROOT):
        pytest.skip("no git, or not the whole history")
    times = {}

    def time_of(commit):
        if commit not in times:
            times[commit] = git("log", "-1", "--format=%cI", commit, "--")
            assert times[commit], f"{commit} is no commit of this repository"
        return datetime.fromisoformat(times[commit])

    return time_of


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_stamp_has_time_machine_and_commit(path):
    for stamp in stamps_of(content(path)).values():
        assert datetime.fromisoformat(stamp["time"]).tzinfo
        assert stamp["machine"]
        if stamp["git"] is None:
            assert "The commit is not known" in stamp["corrects"]
    assert list(judged(content(path)))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_record_is_older_than_the_commit_that_made_it(path, committed):
    for stamp, time in judged(content(path)):
        if stamp["git"] is not None:
            assert committed(stamp["git"].removesuffix("+changes")) <= datetime.fromisoformat(time), stamp["git"]


@pytest.mark.parametrize("path", [path for path in FILES if "pooled" in content(path)], ids=lambda path: path.stem)
def test_a_pooled_row_names_the_runs_of_all_its_pairs(path):
    """One of them pooled it."""
    results = content(path)

    def cell(record):
        return [record.get(name) for name in ("piece", "regime", "batch", "layers")], record.get("prompt_tokens", 8)

    for row in results["pooled"]:
        runs = [run for run in results["runs"] if "start" in run and cell(run) == cell(row)]
        assert len(runs) == row["starts"]
        assert row["stamps"] == sorted({run.get("stamp", 0) for run in runs})
        assert row.get("stamp", 0) in row["stamps"]


def test_a_commit_that_was_written_over_another_is_judged_by_its_correction(committed):
    """evidence/paper_speed.json: the stamp that is wrong stays, and would fail."""
    results = content(ROOT / "evidence" / "paper_speed.json")
    wrong = results["provenance"]
    assert committed(wrong["git"]) > datetime.fromisoformat(wrong["time"])
    assert wrong not in [stamp for stamp, _ in judged(results)]
    named = [run for run in results["runs"] if run["git"] == wrong["git"]]
    assert len(named) == 12
    assert {results["stamps"][run["stamp"] - 1]["git"] for run in named} == {"eb3724d9ba4dae06a314cd18e742f68730371a66"}


def test_a_stamp_without_a_gpu_is_shown_with_that_of_its_records_or_of_the_file(tmp_path):
    """A GPU that a stamp does name, or names as none, is never that of another run."""
    sys.path.append(str(ROOT / "tools" / "docs"))
    stamp_tables = importlib.import_module("stamp_tables")
    stamp = {"time": "2026-11-18T00:00:00+00:00", "git": "0123456789", "machine": "Linux"}
    named = [{"gpu": "NVIDIA A"}, {"gpu": None}, {"device": "cpu"}, {"device": "NVIDIA B"}, {}, {}]
    rows = [{}, *({"stamp": number} for number in range(1, 7))]
    rows[-1]["gpu"] = "NVIDIA C"
    results = {"provenance": stamp | {"device": "NVIDIA H200"}, "stamps": [stamp | gpu for gpu in named], "rows": rows}
    (tmp_path / "file.json").write_text(json.dumps(results))
    _, cells = stamp_tables.stamps(tmp_path)
    assert [line[3].removeprefix("Linux").removeprefix(", ") for line in cells] == [
        "NVIDIA H200", "NVIDIA A", "", "", "NVIDIA B", "NVIDIA H200", "NVIDIA C"
    ]  # fmt: skip


def test_a_run_whose_device_went_into_another_stamp_is_judged_by_its_correction():
    """evidence/backends.json: the stamp without a device stays, and no record names it."""
    results = content(ROOT / "evidence" / "backends.json")
    without, corrected = results["stamps"]
    assert "device" not in without
    assert corrected | without == corrected
    assert {stamp["device"] for stamp, _ in judged(results)} == {"NVIDIA H200"}
    assert {stamp["version"] for stamp, _ in judged(results)} == {"0.26.0"}


def test_the_page_says_whether_kernels_are_those_that_a_gpu_checked(committed):
    """A change to a kernel takes the sentence away, until the checks have run on a GPU again."""
    page = (ROOT / "docs" / "kernels.md").read_text()
    checked = content(ROOT / "evidence" / "vllm_check.json")["provenance"]["git"]
    assert f"(commit {checked[:7]})" in page
    assert committed(checked)
    changed = subprocess.run(["git", "-C", ROOT, "diff", "--quiet", checked, "--", "src/xshare/kernels"], check=False)
    assert ("The kernels have not changed since." in page) == (changed.returncode == 0)
