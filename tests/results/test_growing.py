"""A result file that grows over several runs: what each of them made stays known."""

import json

import pytest

from xshare.errors import XShareError
from xshare.results import Results, check_resumable, write_result
from xshare.results import resumable as growing

SETTINGS = {"tokens": 8, "batch": 4}


@pytest.fixture
def run(monkeypatch):
    """A run of its own: its commit, and its time."""

    def begin(path, name, **options):
        stamp = {"git": name, "time": f"at {name}", "versions": {"torch": name}}
        monkeypatch.setattr(growing, "provenance", lambda **more: stamp | more)
        return Results(path, SETTINGS, {"device": f"device of {name}"}, **options)

    return begin


def sample(number):
    return {"policy": "native", "repeat": number}


def add(results, number):
    results.samples.append(sample(number))
    results.rows = [{"policy": "native", "repeats": len(results.samples)}]
    results.write()


def test_one_run_leaves_records_as_they_are(tmp_path, run):
    path = tmp_path / "r.json"
    results = run(path, "first")
    add(results, 0)
    results.write(verdict="worth it")
    content = json.loads(path.read_text())
    assert list(content) == ["format", "provenance", "rows", "samples"]
    assert content["samples"] == [sample(0)]
    assert content["provenance"]["fingerprint"] == SETTINGS
    assert content["provenance"]["verdict"] == "worth it"


def test_two_runs_leave_two_stamps(tmp_path, run):
    path = tmp_path / "r.json"
    add(run(path, "first"), 0)
    before = json.loads(path.read_text())
    second = run(path, "second")
    assert second.samples == before["samples"]
    add(second, 1)
    add(second, 2)
    content = json.loads(path.read_text())
    assert json.dumps(content["provenance"]) == json.dumps(before["provenance"])
    assert [stamp["git"] for stamp in content["stamps"]] == ["second"]
    assert content["stamps"][0]["device"] == "device of second"
    assert content["samples"] == [sample(0), sample(1) | {"stamp": 1}, sample(2) | {"stamp": 1}]
    assert content["rows"] == [{"policy": "native", "repeats": 3, "stamp": 1}]
    add(run(path, "third"), 3)
    third = json.loads(path.read_text())
    assert third["stamps"][0] == content["stamps"][0]
    assert third["samples"] == [*content["samples"], sample(3) | {"stamp": 2}]
    assert [stamp["time"] for stamp in third["stamps"]] == ["at second", "at third"]


def test_a_run_that_adds_nothing_changes_nothing(tmp_path, run):
    path = tmp_path / "r.json"
    add(run(path, "first"), 0)
    add(run(path, "second"), 1)
    before = path.read_bytes()
    idle = run(path, "third")
    idle.put([{"policy": "native", "repeats": 2}], by=["policy"])  # the same again
    idle.write()
    assert path.read_bytes() == before


def test_a_file_without_stamps_keeps_its_own(tmp_path, run):
    path = tmp_path / "r.json"
    old = {"argv": ["xshare", "bench"], "git": "long ago", "fingerprint": SETTINGS, "complete": False}
    write_result(path, [{"policy": "native", "repeats": 1}], old, samples=[sample(0)])
    add(run(path, "now"), 1)
    content = json.loads(path.read_text())
    assert content["provenance"] == old
    assert content["samples"] == [sample(0), sample(1) | {"stamp": 1}]
    assert content["stamps"][0]["git"] == "now"


def test_a_record_is_put_in_place_of_its_like(tmp_path, run):
    results = run(tmp_path / "r.json", "first", lists=("runs",))
    results.put([{"cell": 1, "ms": 1}, {"cell": 2, "ms": 2}], by=["cell"], into="runs")
    results.put([{"cell": 1, "ms": 3}], by=["cell"], into="runs")
    assert results.lists["runs"] == [{"cell": 2, "ms": 2}, {"cell": 1, "ms": 3}]


def test_other_settings_are_refused_and_left_alone(tmp_path, run):
    path = tmp_path / "r.json"
    add(run(path, "first"), 0)
    before = path.read_bytes()
    with pytest.raises(XShareError, match=r"measured with other settings, tokens 8 instead of 9: name another file"):
        Results(path, SETTINGS | {"tokens": 9}, {})
    with pytest.raises(XShareError, match=r"other settings, batch 4 instead of 5"):
        check_resumable(path, {"batch": 5})
    check_resumable(path, {"batch": 4})  # as far as is known
    with pytest.raises(XShareError, match="holds no results that could be gone on with"):
        run(path, "second", lists=("runs",))
    assert path.read_bytes() == before


def test_without_settings_a_file_is_replaced(tmp_path, run):
    path = tmp_path / "r.json"
    add(run(path, "first"), 0)
    fresh = Results(path, None, {"seed": 0}, lists=())
    fresh.rows.append({"n": 1})
    fresh.write()
    content = json.loads(path.read_text())
    assert content["rows"] == [{"n": 1}]
    assert "fingerprint" not in content["provenance"]


def test_without_a_path_nothing_is_written(run):
    add(run(None, "first"), 0)


def test_a_run_that_is_killed_leaves_a_whole_file(tmp_path, run, monkeypatch):
    path = tmp_path / "r.json"
    results = run(path, "first")
    add(results, 0)
    before = path.read_bytes()

    def half(text, *_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", half)  # the file is written, and has not taken its place
    with pytest.raises(KeyboardInterrupt):
        add(results, 1)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]


def test_policies_of_a_file_of_before_keep_their_meaning(tmp_path, run):
    """One without a format is from when a policy without a score summed all scores. New rows have today's meaning."""
    path = tmp_path / "r.json"
    results = run(path, "first")
    results.rows += [{"policy": "k0=1,m=8"}, {"policy": "k0=1,m=8,score=topk"}, {"policy": "native"}]
    results.write()
    content = json.loads(path.read_text())
    del content["format"]
    path.write_text(json.dumps(content))
    again = run(path, "second")
    assert [row["policy"] for row in again.rows[-3:]] == ["k0=1,m=8,score=full", "k0=1,m=8", "native"]
    again.rows.append({"policy": "k0=2,m=0"})
    again.write()
    assert [row["policy"] for row in run(path, "third").rows[-2:]] == ["native", "k0=2,m=0"]


def test_what_a_run_learns_of_itself_goes_into_its_own_stamp(tmp_path, run):
    path = tmp_path / "r.json"
    first = run(path, "first")
    first.add_to_stamp({"kernel": "A", "torch": "2.11"})
    add(first, 0)
    before = json.loads(path.read_text())
    assert before["provenance"]["kernel"] == "A"
    second = run(path, "second")
    second.add_to_stamp({"kernel": "B", "torch": "2.11"}, same=("torch", "unknown"))
    add(second, 1)
    content = json.loads(path.read_text())
    assert content["provenance"] == before["provenance"]
    assert [stamp["kernel"] for stamp in content["stamps"]] == ["B"]
    with pytest.raises(XShareError, match="was measured with other settings, kernel B instead of C: name"):
        run(path, "third").add_to_stamp({"kernel": "C"}, same=("kernel",))
    assert json.loads(path.read_text()) == content
