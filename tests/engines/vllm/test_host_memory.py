"""Experts in host memory, as a GPU engine marks them. On a GPU: benchmarks/vllm_check.py and offload.py."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from xshare.batch import Placement
from xshare.engines.gates import Gates
from xshare.engines.serving.state import State
from xshare.engines.vllm.expert_bytes import in_host_memory
from xshare.engines.vllm.runner import say_where_experts_are
from xshare.engines.vllm.site import Site
from xshare.router import RouterSpec

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


def layers_of(*places, experts=128, placement=None):
    """A layer of top-8 for each place: whether its experts lie in host memory."""
    sites = [Site(0, "", None, RouterSpec.softmax(8), experts, placement) for _ in places]
    for site, place in zip(sites, places, strict=True):
        site.in_host_memory = place
    return sites


@pytest.mark.parametrize(
    ("layers", "rows"),
    [
        (layers_of(True, True, False), 4),  # 4 * 8 * 4 = 128
        (layers_of(True, True, experts=512), 16),
        (layers_of(True, False), 0),  # from the GPU's own memory the second row finds them in the cache
        (layers_of(True, True, placement=Placement.contiguous(128, 2)), 0),  # vLLM sorts there
        ([], 0),
    ],
)
def test_steps_in_which_nothing_is_shared_are_left_alone(layers, rows):
    assert State.rows_unshared.func(SimpleNamespace(model=layers)) == rows
    reasons = [Gates().why_not(voting, within=2, unshared=rows) for voting in (2, max(3, rows), rows + 3)]
    assert reasons == ["within_budget", "unshared" if rows else None, None]
    assert Gates(bypass=False).why_not(max(1, rows), within=2, unshared=rows) is None


@pytest.mark.parametrize(
    ("gigabytes", "layers", "says"),
    [
        (8, 3, "INFO xshare: the experts of 3 of 4 layers lie in host memory, and are read from there"),
        (8, 0, "WARNING xshare: vLLM was given --cpu-offload-gb, but all experts lie on the GPU: --cpu-offload-params"),
        (0, 0, ""),
    ],
)
def test_the_log_says_where_experts_are(caplog, gigabytes, layers, says):
    config = SimpleNamespace(offload_config=SimpleNamespace(uva=SimpleNamespace(cpu_offload_gb=gigabytes)))
    with caplog.at_level(logging.INFO, "vllm.xshare"):
        logging.getLogger("vllm.xshare").addHandler(caplog.handler)
        state = SimpleNamespace(host_layers=layers, layers=[None] * 4, rows_unshared=4, gates=Gates())
        say_where_experts_are(state, config)
        logging.getLogger("vllm.xshare").removeHandler(caplog.handler)
    lines = list(dict.fromkeys(f"{record.levelname} {record.getMessage()}" for record in caplog.records))
    wanted = [says] * bool(says) + ["INFO xshare: steps of up to 4 rows are left alone"] * bool(layers)
    assert len(lines) == len(wanted)
    assert all(line.startswith(start) for line, start in zip(lines, wanted, strict=True))


def test_an_engine_without_offloading_says_nothing(caplog):
    say_where_experts_are(SimpleNamespace(host_layers=0, layers=[None]), SimpleNamespace())
    assert not caplog.records
