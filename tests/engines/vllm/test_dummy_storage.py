"""Dummy weights in every form that vLLM stores them in, and what is refused."""

import math

import pytest
import torch
from torch import nn

from xshare.engines.vllm.dummy_weights import BLOCK, FP4_RMS, Filler, Role, Weights

VOCAB = 16 * BLOCK


class Layer(nn.Module):
    """Parameters as vLLM creates them, with nothing in them yet."""

    def __init__(self, **parameters):
        super().__init__()
        for name, (shape, dtype) in parameters.items():
            tensor = torch.full(shape, 1, dtype=torch.uint8).to(dtype) if dtype != torch.float32 else torch.empty(shape)
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4(weight, scale):
    values = torch.stack([E2M1[(weight & 15).long()], E2M1[(weight >> 4).long()]], -1).flatten(-2)
    return values * torch.exp2(scale.float() - 127).repeat_interleave(32, -1)


def test_mxfp4_experts_are_as_large_as_plain_ones():
    layer = Layer(
        w13_weight=((4, 128, 1440), torch.uint8),
        w13_weight_scale=((4, 128, 90), torch.uint8),
        w13_bias=((4, 128), torch.float32),
        w2_weight=((4, 128, 1440), torch.uint8),
        w2_weight_scale=((4, 128, 90), torch.uint8),
    )
    Filler(Weights(), layers=36, vocab=VOCAB).fill("experts", layer, Role("experts"))
    assert layer.w13_weight_scale.unique().tolist() == [120]
    assert len(layer.w13_weight.unique()) == 256
    assert not torch.equal(layer.w13_weight, layer.w2_weight)
    assert not torch.equal(layer.w13_weight[0], layer.w13_weight[1])
    assert layer.w13_bias.eq(0).all()
    std = mxfp4(layer.w13_weight, layer.w13_weight_scale).std().item()
    assert 2**-0.5 < std * math.sqrt(2880) < 2**0.5  # a power of two away at most by half an octave
    assert mxfp4(layer.w2_weight, layer.w2_weight_scale).std() < std / 16


def test_fp8_weights_and_their_scales_are_finite_and_as_large_as_plain_ones():
    layer = Layer(
        weight=((256, 512), torch.float8_e4m3fn),
        weight_scale_inv=((2, 4), torch.float32),
        input_scale=((1,), torch.float32),
    )
    Filler(Weights(), layers=36, vocab=VOCAB).fill("qkv_proj", layer, Role())
    weight = layer.weight.float()
    assert weight.isfinite().all()
    assert (weight * layer.weight_scale_inv[0, 0]).std().item() == pytest.approx(512**-0.5, rel=0.05)
    assert layer.input_scale.item() == 1


@pytest.mark.parametrize(("name", "dtype"), [("qweight", torch.int32), ("weight_scale", torch.float8_e4m3fn)])
def test_a_storage_it_does_not_know_is_refused_by_name(name, dtype):
    with pytest.raises(ValueError, match=rf"xshare_dummy cannot fill layers.0.mlp.{name}: .*{dtype}"):
        Filler(Weights(), 1, VOCAB).fill("layers.0.mlp", Layer(**{name: ((8, 8), dtype)}), Role())


def test_the_rms_of_random_fp4():
    assert E2M1.pow(2).mean().sqrt().item() == pytest.approx(FP4_RMS)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"skw": 1}, "'skw' is no key of xshare_dummy: it takes seed, skew, correlation, router_scale"),
        ({"seed": 1.5}, "seed of xshare_dummy must be a whole number from 0 to .*, not 1.5"),
        ({"seed": True}, "seed of xshare_dummy must be a whole number"),
        ({"skew": -1}, "skew of xshare_dummy must be a number from 0 to 10, not -1"),
        ({"skew": "much"}, "skew of xshare_dummy must be a number from 0 to 10, not 'much'"),
        ({"correlation": 1.1}, "correlation of xshare_dummy must be a number from 0 to 1, not 1.1"),
        ({"router_scale": 0}, "router_scale of xshare_dummy must be a number"),
        ({"router_scale": float("nan")}, "router_scale of xshare_dummy must be a number"),
        (["skew"], "model_loader_extra_config of xshare_dummy must be a mapping"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(config, sentence):
    with pytest.raises(ValueError, match=sentence):
        Weights.of(config)
