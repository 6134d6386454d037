"""What an expert weighs, in the forms that engines keep one."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from xshare.engines.gates import Tally
from xshare.engines.serving.state import State
from xshare.engines.serving.step import Step
from xshare.engines.serving.step_sizes import Sizes
from xshare.engines.vllm.expert_bytes import backend, expert_bytes
from xshare.engines.vllm.settings import settings_of

EXPERTS, HIDDEN, WIDTH = 4, 64, 96
WEIGHTS = 3 * HIDDEN * WIDTH


def layer(parameters, method=None, attributes=None, gated=True):
    """Parameters by name, (shape, dtype) without the experts; a runner as vLLM has it."""
    experts = nn.Module()
    for name, (shape, dtype) in parameters.items():
        experts.register_parameter(name, nn.Parameter(torch.empty(EXPERTS, *shape, dtype=dtype), requires_grad=False))
    experts.__dict__.update(attributes or {})
    experts.quant_method = method or SimpleNamespace()
    moe = SimpleNamespace(
        num_local_experts=EXPERTS,
        hidden_dim=HIDDEN,
        intermediate_size_per_partition=WIDTH,
        is_act_and_mul=gated,
        in_dtype=torch.bfloat16,
    )
    return SimpleNamespace(routed_experts=experts, moe_config=moe)


def matrices(dtype, gated=True):
    return {"w13_weight": ((2 * WIDTH if gated else WIDTH, HIDDEN), dtype), "w2_weight": ((HIDDEN, WIDTH), dtype)}


def swizzled(*shape):
    """A triton_kernels Tensor: it holds its storage, and that a torch.Tensor."""
    return SimpleNamespace(storage=SimpleNamespace(data=torch.empty(EXPERTS, *shape, dtype=torch.uint8)), shape=None)


def test_unquantised_experts_are_counted_in_bytes():
    assert expert_bytes(layer(matrices(torch.bfloat16))) == 2 * WEIGHTS
    assert expert_bytes(layer(matrices(torch.bfloat16, gated=False), gated=False)) == 2 * WEIGHTS * 2 / 3


def test_fp8_with_its_scales():
    scales = {"w13_weight_scale": ((2,), torch.float32), "w2_weight_scale": ((1,), torch.float32)}
    assert expert_bytes(layer(matrices(torch.float8_e4m3fn) | scales)) == WEIGHTS + 12


@pytest.mark.parametrize("wrapped", [False, True])
def test_mxfp4_swizzled_by_triton(wrapped):
    """As vLLM 0.26 leaves it on a GPU: of the parameters, the biases alone are left."""
    biases = {"w13_bias": ((2 * WIDTH,), torch.float32), "w2_bias": ((HIDDEN,), torch.float32)}
    weights = {"w13_weight": swizzled(HIDDEN // 2, 2 * WIDTH), "w2_weight": swizzled(WIDTH // 2, HIDDEN)}
    method = SimpleNamespace(
        w13_precision_config=SimpleNamespace(weight_scale=swizzled(HIDDEN // 32, 2 * WIDTH), act_scale=None),
        w2_precision_config=SimpleNamespace(weight_scale=swizzled(WIDTH // 32, HIDDEN), act_scale=None),
    )
    if wrapped:
        method = SimpleNamespace(old_quant_method=method)
    size = expert_bytes(layer(biases, method, weights))
    assert size == WEIGHTS * 4.25 / 8 + 4 * (2 * WIDTH + HIDDEN)


def test_weights_that_are_elsewhere_or_there_twice_are_not_known():
    biases = {"w13_bias": ((2 * WIDTH,), torch.float32), "w2_bias": ((HIDDEN,), torch.float32)}
    assert expert_bytes(layer(biases)) is None
    repacked = {f"{name}_packed": shape for name, shape in matrices(torch.bfloat16).items()}
    assert expert_bytes(layer(matrices(torch.bfloat16) | repacked)) is None


class Kernel:
    pass


def test_the_kernel_is_named_by_what_computes_or_will():
    kernel = SimpleNamespace(fused_experts=Kernel())
    assert backend(layer({}, SimpleNamespace(moe_kernel=kernel, experts_cls=int))) == "Kernel"
    assert backend(layer({}, SimpleNamespace(moe_kernel=None, experts_cls=Kernel))) == "Kernel"
    assert backend(layer({}, SimpleNamespace(experts_cls=None))) == "SimpleNamespace"  # the method's own


@pytest.mark.parametrize(("sizes", "whole"), [([10, 20], 30), ([10, None], None)])
def test_all_layers_together(sizes, whole):
    settings = settings_of({"xshare": {"policy": "k0=1,m=2"}})
    sites = [SimpleNamespace(expert_bytes=size, number=place, top_k=4) for place, size in enumerate(sizes)]
    layers = [SimpleNamespace(site=site) for site in sites]
    state = State(
        settings, settings.policy, layers, Step(torch.device("cpu")), Sizes(4), Tally(logging.getLogger("xshare"))
    )
    assert state.expert_bytes == whole
