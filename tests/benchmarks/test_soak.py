"""The campaign: a few seconds of it against a real server, and each of its checks on what it must not let pass."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("psutil", reason="comes with vLLM")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import httpx
import soak
from lib.soak_checks import ENDED, TOKENS, Scrapes, counter_mismatches, growth, problems_text, steps_of
from lib.soak_load import Outcomes
from lib.soak_requests import ANSWERED, REFUSED, Counted, WrongAnswer, kinds
from lib.soak_server import Server, read_metrics

from xshare import models

METRICS = """
# HELP xshare:steps_pruned_total Steps on which selection acted
xshare:steps_pruned_total{engine="0"} 7.0
xshare:steps_bypassed_total{engine="0",reason="prefill"} 5.0
xshare:steps_bypassed_total{engine="0",reason="mismatch"} 2.0
xshare:on{engine="0",policy="k0=0,rho=0.7"} 1.0
xshare:experts_selected{engine="0",layer="0"} 20.0
xshare:experts_active{engine="0",layer="0"} 19.5
xshare:mass_kept{engine="0",layer="0"} 0.9
vllm:request_success_total{engine="0",finished_reason="length",model_name="soaked"} 4.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="soaked"} 1.0
vllm:generation_tokens_total{engine="0",model_name="soaked"} 50.0
vllm:num_requests_running{engine="0",model_name="soaked"} 0.0
vllm:num_requests_waiting{engine="0",model_name="soaked"} 0.0
process_resident_memory_bytes 1.5e+09
"""


@pytest.fixture
def metrics():
    return read_metrics(METRICS)


def test_metrics_are_read_by_name_and_labels(metrics):
    assert metrics["xshare:on", "policy=k0=0,rho=0.7"] == 1
    assert metrics["process_resident_memory_bytes", ""] == 1.5e9
    assert metrics[ENDED, "finished_reason=stop"] == 1
    assert len(metrics) == 13
    assert steps_of(metrics) == 12  # a mismatch is a layer's


def test_a_counter_that_falls_and_a_share_above_one_are_told(metrics):
    scrapes = Scrapes()
    for _ in range(2):
        scrapes.add(metrics, with_xshare=True)
    assert (scrapes.count, scrapes.problems) == (2, [])
    fewer = metrics | {("xshare:steps_pruned_total", ""): 6.0, ("xshare:mass_kept", "layer=0"): 1.2}
    fewer |= {("xshare:experts_active", "layer=0"): 21.0}
    del fewer[TOKENS, ""]
    scrapes.add(fewer, with_xshare=True)
    assert [problem.partition("{")[0] for problem in scrapes.problems] == [
        "xshare:steps_pruned_total", TOKENS, "xshare:experts_active", "xshare:mass_kept"
    ]  # fmt: skip
    scrapes.add({}, with_xshare=True)
    assert "xshare:on is missing" in scrapes.problems


def test_what_clients_have_counted_must_agree_with_the_server(metrics):
    assert counter_mismatches({}, metrics, Counted(ended=5, tokens=50)) == []
    assert counter_mismatches({}, metrics, Counted(ended=3, tokens=20, given_up=2, tokens_given_up=40)) == []
    assert counter_mismatches(metrics, metrics, Counted()) == []
    (wrong,) = counter_mismatches({}, metrics, Counted(ended=6, tokens=50))
    assert wrong == f"{ENDED} grew by 5, expected 6 to 6"
    busy = metrics | {("vllm:num_requests_running", ""): 1.0}
    assert counter_mismatches({}, busy, Counted(ended=5, tokens=50)) == [
        "vllm:num_requests_running is 1 when all have ended"
    ]


def test_memory_counts_after_the_warm_up():
    """It doubles before, and grows by 5 % after."""
    samples = [{"seconds": n, "APIServer": 100 + min(n, 40) * 5, "Worker": 300 + (n >= 90) * 15} for n in range(100)]
    api, worker = growth(samples, 100)
    assert (api["process"], api["bytes_warm"], api["growth"]) == ("APIServer", 300, 0)
    assert (worker["process"], worker["growth"]) == ("Worker", 0.05)
    assert not soak.memory_check([api, worker])["passed"]
    assert soak.memory_check([api])["passed"]


def test_a_lost_request_is_none_that_was_answered_wrongly():
    async def fail(error):
        raise error

    async def all_of_them():
        outcomes = Outcomes()
        for error in (WrongAnswer("7 tokens, expected 8"), httpx.ReadTimeout("nothing came"), KeyError("choices")):
            await outcomes.of("whole", fail(error))
        await outcomes.of("whole", asyncio.sleep(0))
        return outcomes

    outcomes = asyncio.run(all_of_them())
    assert outcomes.rows["whole"] == {"kind": "whole", "sent": 4, "right": 1, "lost": 1, "wrong": 2}
    assert outcomes.examples[0] == "whole, wrong: 7 tokens, expected 8"
    assert problems_text(["a", "b", "c", "d"], "fine") == "a; b; c; and 1 more"
    assert problems_text([], "fine") == "fine"


def test_a_load_that_breaks_off_is_told():
    async def broken():
        raise WrongAnswer("status 500: EngineCore encountered an issue")

    assert soak.load_error(broken()) == "WrongAnswer: status 500: EngineCore encountered an issue"
    assert soak.load_error(asyncio.sleep(0)) is None


def test_tracebacks_of_bodies_that_vllm_refuses_are_its_own(tmp_path):
    server = SimpleNamespace(log=tmp_path / "log")
    kinds_of_it = ("(APIServer pid=1) ERROR [validation.py:151] ", "(Worker pid=2) ERROR [multiproc_executor.py:1063] ")
    server.log.write_text("".join(f"{begin}Traceback (most recent call last):\n" for begin in kinds_of_it))
    assert Server.tracebacks(server) == (1, 1)


def test_without_xshare_nobody_refuses_what_it_alone_would():
    assert set(kinds(True)) == {*ANSWERED, *REFUSED}
    assert {*kinds(True)} - {*kinds(False)} == {
        "xshare of no kind", "xshare a number", "protected beams", "the salt of protected ones"
    }  # fmt: skip


@pytest.mark.engine
def test_a_few_seconds_of_it(tmp_path, monkeypatch):
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    monkeypatch.setattr(soak, "PROMPTS", 1)
    for name in ("TRITON_INTERPRET", "VLLM_ENABLE_V1_MULTIPROCESSING"):  # of other tests' engines, in this process
        monkeypatch.delenv(name, raising=False)
    campaign = soak.soak(models.folder(), 3.0, soak.KEY, [], tmp_path / "log")
    assert [row for row in campaign["checks"] if not row["passed"]] == [], campaign["examples"]
    assert len(campaign["checks"]) == 11
    by_kind = {row["kind"]: row for row in campaign["requests"]}
    assert {*ANSWERED, *REFUSED, "control: another policy", "control: refused"} <= set(by_kind)
    assert all(row["right"] == row["sent"] > 0 for row in by_kind.values())
    assert {"APIServer", "EngineCore", "Worker"} <= {row["process"] for row in campaign["memory"]}
