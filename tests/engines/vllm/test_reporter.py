"""The report lies where everybody may write: whatever is not ours is neither read nor written, nor waited for."""

import errno
import json
import os
import threading
import time

import pytest

pytest.importorskip("prometheus_client")

from xshare.engines.vllm import private_folder as own_folder
from xshare.engines.vllm import reporter

SNAPSHOT = {"policy": "k0=1", "on": True, "cost": False, "steps_pruned": 7, "steps_bypassed": {}, "pid": os.getpid()}


class State:
    """Figures that differ every time."""

    pruned = 0

    def snapshot(self):
        self.pruned += 1
        return SNAPSHOT | {"steps_pruned": self.pruned}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the report goes; nothing is there yet."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(reporter, "_warnings", set())
    return tmp_path / f"xshare-{os.getuid()}"


@pytest.fixture
def warnings(monkeypatch):
    """Warnings in the log: vLLM keeps its loggers' records from pytest."""
    messages = []
    monkeypatch.setattr(reporter.log, "warning", lambda text, *more: messages.append(text % more))
    return messages


def scraped(path):
    """What /metrics would show, refused if it takes too long: a pipe would be waited for."""
    pytest.importorskip("vllm")
    from xshare.engines.vllm.stat_logger import Figures

    scrapes = []
    thread = threading.Thread(target=lambda: scrapes.append(list(Figures(path, 0).collect())), daemon=True)
    thread.start()
    thread.join(10)
    assert scrapes, "the scrape hangs, or has failed"
    return scrapes[0]


def reported(path, times=3):
    """Whether there is a report after `times` tries to write it."""
    state = State()
    writer = reporter.Reporter(state.snapshot, path, interval=0.01)
    writer.start()
    try:
        end = time.monotonic() + 20
        while state.pruned <= times and time.monotonic() < end:
            time.sleep(0.01)
        return path.is_file() and not path.is_symlink()
    finally:
        writer.stop()
        writer.join(10)


def test_what_is_written_is_read(folder, warnings):
    path = reporter.report_path("one/../two")
    assert path == folder / "one____two.json"
    reporter.write_report(path, json.dumps(SNAPSHOT))
    assert (folder.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    assert {family.name for family in scraped(path)} >= {"xshare:on", "xshare:steps_pruned"}
    assert [file.name for file in folder.iterdir()] == ["one____two.json"]
    assert not warnings


def test_stages_and_ranks_have_files_of_their_own(folder):
    pytest.importorskip("vllm")
    from xshare.engines.serving.metrics import SAMPLED
    from xshare.engines.vllm.stat_logger import Figures

    first, second = (reporter.report_path("one", stage, rank=2) for stage in (0, 1))
    assert (first.name, second.name) == ("one-rank2.json", "one-rank2-stage1.json")
    assert reporter.report_path("one_dp2", rank=2) == first
    more = {"experts": 8, "top_k": 2, "expert_bytes": None, "samples": 3, "rows_protected": 0.0}
    for path, number in ((first, 4), (second, 9)):
        assert list(Figures(first, 2, [second]).collect()) == []  # not of some layers alone
        figures = {name: [float(number)] for name in (*SAMPLED, "experts_protected", "mass_shared")}
        report = SNAPSHOT | more | figures | {"layers": [f"model.layers.{number}.mlp"], "host_layers": 0}
        reporter.write_report(path, json.dumps(report | {"routed_layers": 0, "backend": "A"}))
    families = {family.name: family for family in Figures(first, 2, [second]).collect()}
    samples = {sample.labels["layer"]: sample.value for sample in families["xshare:experts_active"].samples}
    assert samples == {"4": 4.0, "9": 9.0}
    assert len(families["xshare:steps_pruned"].samples) == 1


def test_a_link_in_place_of_the_file_is_not_followed(folder, warnings, tmp_path):
    victim = tmp_path / "victim.json"
    victim.write_text(json.dumps(SNAPSHOT))
    folder.mkdir(mode=0o700)
    path = reporter.report_path("one")
    path.symlink_to(victim)
    assert scraped(path) == []
    assert "cannot be opened as a file of ours" in warnings[0]
    reporter.write_report(path, "{}")
    assert json.loads(victim.read_text()) == SNAPSHOT
    assert path.read_text() == "{}"
    assert not path.is_symlink()


def test_a_link_in_place_of_what_is_written_first_is_not_followed(folder, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("dear")
    folder.mkdir(mode=0o700)
    (folder / f".one.json.{os.getpid()}").symlink_to(victim)
    (folder / f".one.{os.getpid()}.json").symlink_to(victim)
    reporter.write_report(reporter.report_path("one"), "{}")
    assert victim.read_text() == "dear"


def test_a_link_in_place_of_the_folder_is_refused(folder, warnings, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "one.json").write_text(json.dumps(SNAPSHOT))
    folder.symlink_to(elsewhere)
    path = reporter.report_path("one")
    assert scraped(path) == []
    reported(path)
    reporter.remove_stale(folder)
    assert json.loads((elsewhere / "one.json").read_text()) == SNAPSHOT
    assert len(warnings) == 1
    assert "is a link or no folder" in warnings[0]


def test_a_folder_that_is_open_to_others_is_refused(folder, warnings):
    folder.mkdir()
    folder.chmod(0o777)
    path = reporter.report_path("one")
    path.write_text(json.dumps(SNAPSHOT))
    assert scraped(path) == []
    reported(path)
    assert json.loads(path.read_text()) == SNAPSHOT
    assert len(warnings) == 1
    assert "is open to others (mode 0777)" in warnings[0]


def test_a_folder_of_another_user_is_refused(folder, warnings, monkeypatch):
    folder.mkdir(mode=0o700)
    path = reporter.report_path("one")
    path.write_text(json.dumps(SNAPSHOT))
    monkeypatch.setattr(own_folder.os, "getuid", lambda: folder.stat().st_uid + 1)
    assert scraped(path) == []
    reported(path)
    assert len(warnings) == 1
    assert "belongs to another user: remove it, or set metrics in xshare to false" in warnings[0]
    monkeypatch.undo()
    assert json.loads(path.read_text()) == SNAPSHOT


def test_a_file_of_another_user_is_refused(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    (folder / "one.json").write_text(json.dumps(SNAPSHOT))
    with own_folder.own_folder(folder) as opened:
        monkeypatch.setattr(own_folder.os, "getuid", lambda: folder.stat().st_uid + 1)
        with pytest.raises(own_folder.NotOurs, match=r"one.json belongs to another user"):
            own_folder.read_own(opened, "one.json")


def test_a_pipe_is_not_waited_for(folder, warnings):
    folder.mkdir(mode=0o700)
    path = reporter.report_path("one")
    os.mkfifo(path)
    assert scraped(path) == []
    assert "one.json is no regular file" in warnings[0]
    stale = threading.Thread(target=lambda: reporter.remove_stale(folder), daemon=True)
    stale.start()
    stale.join(10)
    assert not stale.is_alive()


NO_REPORTS = {"huge": "huge", "deep": "deep", "list": "[]", "empty": "{}", "none": "none"}
NO_REPORTS["wrong"] = json.dumps(SNAPSHOT | {"on": {}})


@pytest.mark.parametrize("content", NO_REPORTS.values(), ids=NO_REPORTS)
def test_a_file_that_is_no_report_is_not_shown(folder, warnings, content):
    folder.mkdir(mode=0o700)
    path = reporter.report_path("one")
    path.write_text(
        {"deep": "[" * 100_000, "huge": json.dumps(SNAPSHOT | {"more": " " * (1 << 20)})}.get(content, content)
    )
    assert scraped(path) == []
    assert scraped(path) == []
    assert len(warnings) <= 1


def test_a_huge_file_is_not_read(folder, warnings):
    folder.mkdir(mode=0o700)
    path = reporter.report_path("one")
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it would not fit into memory
    assert scraped(path) == []
    assert "one.json has more than 1048576 bytes" in warnings[0]


def test_files_of_workers_that_were_killed_are_removed(folder):
    reporter.write_report(reporter.report_path("live"), json.dumps(SNAPSHOT))
    reporter.write_report(reporter.report_path("dead"), json.dumps(SNAPSHOT | {"pid": 1 << 30}))
    (folder / f".dead.json.{1 << 30}").write_text("half")
    (folder / "other").write_text("not ours to remove")
    reporter.remove_stale(folder)
    assert sorted(file.name for file in folder.iterdir()) == ["live.json", "other"]


def test_a_full_disk_is_told_once_and_then_every_minute(folder, warnings, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path, clock = reporter.report_path("one"), [1000.0]
    writer = reporter.Reporter(State().snapshot, path, interval=10)
    with monkeypatch.context() as patched:
        patched.setattr(reporter, "write_own", full)
        patched.setattr(reporter.time, "monotonic", lambda: clock[0])
        for seconds in range(130):
            clock[0] = 1000.0 + seconds
            assert not writer.write(str(seconds))
    assert warnings == [f"xshare: cannot write {path}: No space left on device"] * 3
    assert writer.write("{}")
    assert path.read_text() == "{}"


def test_what_could_not_be_written_is_written_when_it_can_be(folder, warnings, monkeypatch):
    class Idle:
        def snapshot(self):
            return SNAPSHOT

    tries = []

    def first_full(*args):
        tries.append(args)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return own_folder.write_own(*args)

    monkeypatch.setattr(reporter, "write_own", first_full)
    path, state = reporter.report_path("one"), Idle()
    writer = reporter.Reporter(state.snapshot, path, interval=0.01)
    writer.start()
    end = time.monotonic() + 20
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert json.loads(path.read_text()) == SNAPSHOT
    writer.stop()
    writer.join(10)
    assert len(tries) == 3
    assert len(warnings) == 1
    assert not path.exists()
