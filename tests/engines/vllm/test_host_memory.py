"""Experts in host memory, as a GPU engine marks them. On a GPU: benchmarks/vllm_check.py and offload.py."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from xshare.engines.vllm.runner import say_where_experts_are
from xshare.engines.vllm.weights import in_host_memory

pytestmark = pytest.mark.engine


def moe_runner(*offloaded):
    """Two large weights and a small one, of which those by name lie in host memory."""
    experts = nn.Module()
    for name, size in (("w13_weight", 8), ("w2_weight", 4), ("w13_bias", 1)):
        weight = nn.Parameter(torch.zeros(size, 16))
        if name in offloaded:
            weight._vllm_is_uva_offloaded = True
        experts.register_parameter(name, weight)
    return SimpleNamespace(routed_experts=experts)


def test_a_layer_lies_in_host_memory_if_its_large_weights_do():
    assert in_host_memory(moe_runner("w13_weight", "w2_weight"))
    assert not in_host_memory(moe_runner("w13_weight"))
    assert not in_host_memory(moe_runner())
    assert not in_host_memory(SimpleNamespace(routed_experts=nn.Module()))  # swizzled: no parameters are left


@pytest.mark.parametrize(
    ("gigabytes", "layers", "says"),
    [
        (8, 3, "INFO xshare: the experts of 3 of 4 layers lie in host memory"),
        (8, 0, "WARNING xshare: vLLM was given --cpu-offload-gb, but all experts lie on the GPU: --cpu-offload-params"),
        (0, 0, ""),
    ],
)
def test_the_log_says_where_experts_are(caplog, gigabytes, layers, says):
    config = SimpleNamespace(offload_config=SimpleNamespace(uva=SimpleNamespace(cpu_offload_gb=gigabytes)))
    with caplog.at_level(logging.INFO, "vllm.xshare"):
        logging.getLogger("vllm.xshare").addHandler(caplog.handler)
        say_where_experts_are(SimpleNamespace(host_layers=layers, layers=[None] * 4), config)
        logging.getLogger("vllm.xshare").removeHandler(caplog.handler)
    said = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    assert all(line.startswith(says) for line in said)
    assert bool(said) == bool(says)


def test_an_engine_without_offloading_says_nothing(caplog):
    say_where_experts_are(SimpleNamespace(host_layers=0, layers=[None]), SimpleNamespace())
    assert not caplog.records
