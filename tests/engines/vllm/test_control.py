"""What a change of policy does to the engine's caches and requests."""

import shutil
import time
from types import SimpleNamespace

import pytest

from xshare.engines.vllm.control import reset_after_changes
from xshare.engines.vllm.reporter import Reporter
from xshare.engines.vllm.settings import SettingsError


def core(caching=True, connector=None, running=True, drafts=False, resets=(True,)):
    """An engine core that tells what was asked of it."""

    class Core:
        def __init__(self):
            self.asked, self.resets = [], list(resets)
            self.scheduler = SimpleNamespace(has_unfinished_requests=lambda: running)
            self.vllm_config = SimpleNamespace(
                cache_config=SimpleNamespace(enable_prefix_caching=caching),
                kv_transfer_config=connector,
                speculative_config=object() if drafts else None,
                scheduler_config=SimpleNamespace(async_scheduling=True),
            )

        def collective_rpc(self, method, *args):
            self.asked.append(method)
            return [True]

        def reset_prefix_cache(self, **options):
            self.asked.append(options)
            found = self.resets.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

    reset_after_changes(Core)
    return Core()


def test_a_change_resets_the_cache_and_then_the_running_requests():
    idle, busy = core(running=False), core(resets=(False, True))
    assert idle.collective_rpc("xshare_set", "k0=1") == [True]
    assert idle.asked == ["xshare_set", {}]
    busy.collective_rpc("xshare_switch", False)
    assert busy.asked == ["xshare_switch", {}, {"reset_running_requests": True}]
    busy.collective_rpc("xshare_stats")
    assert busy.asked[3:] == ["xshare_stats"]


def test_without_a_cache_there_is_nothing_to_reset():
    found = core(caching=False)
    found.collective_rpc("xshare_set", "k0=1")
    assert found.asked == ["xshare_set"]


def test_a_cache_that_is_not_reset_is_told(monkeypatch):
    told = []  # vLLM keeps its loggers' records from pytest
    monkeypatch.setattr("xshare.engines.vllm.control.log.warning", lambda text, *more: told.append(text % more))
    found = core(connector=object(), resets=(False, RuntimeError("blocks are held")))
    assert found.collective_rpc("xshare_set", "k0=1") == [True]
    assert told[0] == "xshare: blocks are held"
    assert "the prefix cache was not reset" in told[1]


@pytest.mark.parametrize(("version", "refused"), [("0.26.0", True), ("0.29.0", False)])
def test_a_change_that_would_lose_tokens_is_refused_before_it_is_made(monkeypatch, version, refused):
    monkeypatch.setattr("xshare.engines.vllm.control.vllm_version", lambda: version)
    for found in (core(drafts=True, running=False), core(), core(drafts=True, caching=False)):
        assert found.collective_rpc("xshare_set", "k0=1") == [True]
    found = core(drafts=True)
    if not refused:
        assert found.collective_rpc("xshare_set", "k0=1") == [True]
        return
    with pytest.raises(SettingsError, match=r"loses tokens of requests with drafts.*wait until none is running"):
        found.collective_rpc("xshare_set", "k0=1")
    assert found.asked == []


def test_the_report_goes_on_when_its_folder_was_cleaned(tmp_path):
    class State:
        pruned = 0

        def snapshot(self):
            self.pruned += 1
            return {"policy": "k0=1", "on": True, "cost": False, "steps_pruned": self.pruned, "steps_bypassed": {}}

    state = State()
    path = tmp_path / "xshare" / "one.json"
    reporter = Reporter(state.snapshot, path, interval=0.01)
    reporter.start()
    try:
        for _ in range(2):
            deadline = time.monotonic() + 20
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert path.exists()
            shutil.rmtree(path.parent, ignore_errors=True)
    finally:
        reporter.stop()
