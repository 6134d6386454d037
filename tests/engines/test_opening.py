"""What every engine is opened with, and what it leaves when a run breaks off."""

import pytest

from xshare.engines.base import Answer, leaving, left
from xshare.engines.vllm.engine import CPU_CACHE, VllmEngine, for_device
from xshare.errors import ModelError


def test_vllm_on_a_cpu_starts_without_a_memory_setting(monkeypatch):
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    assert for_device({"seed": 0}, "cpu") == {"seed": 0, "kv_cache_memory_bytes": CPU_CACHE}
    for options in ({"kv_cache_memory_bytes": 1 << 26}, {"gpu_memory_utilization": 0.5}):
        assert for_device(options, "cpu") == options
    assert for_device({"device": "cuda"}, "cuda") == {}
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    assert for_device({}, "cpu") == {}


def test_a_device_that_vllm_does_not_have():
    with pytest.raises(ModelError, match="vllm runs on cpu here, not on 'cuda': leave the device out"):
        for_device({"device": "cuda"}, "cpu")
    with pytest.raises(ModelError, match="which GPU by CUDA_VISIBLE_DEVICES"):
        for_device({"device": "cuda:1"}, "cuda")


def test_of_a_run_in_vllm_that_breaks_off_the_answers_that_had_ended_are_left(monkeypatch):
    monkeypatch.setattr(VllmEngine, "_add_texts", lambda self, answers: None)
    engine = VllmEngine.__new__(VllmEngine)
    answers = [Answer([5, 0], "done"), Answer([5], "under way"), Answer([], "not begun")]
    with pytest.raises(KeyboardInterrupt) as caught, leaving(lambda _: engine._finished_answers(answers, {"1-1": 1})):
        raise KeyboardInterrupt
    assert left(caught.value) == [answers[0], None, None]
