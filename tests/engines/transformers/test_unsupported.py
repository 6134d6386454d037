"""What is refused, in one sentence that says what was wrong and what was expected."""

import pytest
import torch
from tiny_models import generate, make, prompts

import xshare

FINE = "k0=1,m=2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "k0=1,q=2"}, "unknown letter 'q'"),
        ({"policy": "k0=17,m=0"}, r"warmup \(k0\) must be at most the number of experts \(16\)"),
        ({"policy": "k0=1,mg=2"}, "placement is required"),
        ({"policy": 3}, "must be a string or a mapping"),
        ({"layers": [2]}, "layers must be numbers from 0 to 1"),
        ({"layers": []}, "layers must be numbers from 0 to 1"),
        ({"min_rows": 0}, "min_rows must be a whole number from 1 up, not 0"),
        ({"max_rows": 1.5}, "max_rows must be a whole number from 1 up"),
        ({"min_rows": 2**31}, "min_rows must be at most 2147483647, not 2147483648"),
        ({"drafts": 10**5000}, "drafts must be at most 2147483647, not a number of 16610 bits"),
        ({"drafts": -1}, "drafts must be a whole number from 0 up"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_attached(tiny, options, message):
    with pytest.raises(xshare.XShareError, match=message):
        xshare.apply(tiny("qwen3"), **({"policy": FINE} | options))
    assert "_xshare" not in vars(tiny("qwen3").model)


def test_unknown_models_are_refused_with_the_supported_ones():
    supported = "supported are gpt-oss, Qwen3-MoE, Qwen2-MoE, OLMoE, Mixtral and DeepSeek-V3"
    with pytest.raises(xshare.ModelError, match=f"LlamaForCausalLM .* has no mixture-of-experts layer: {supported}"):
        xshare.apply(make("llama"), FINE)
    with pytest.raises(xshare.ModelError, match=f"its GraniteMoe.* is not known: {supported}"):
        xshare.apply(make("granite"), FINE)
    with pytest.raises(xshare.ModelError, match="must be a Transformers model, not str"):
        xshare.apply("gpt-oss-20b", FINE)


def test_nothing_at_work(tiny):
    for call in (xshare.remove, xshare.stats, lambda model: xshare.layout(model, xshare.BatchLayout([0]))):
        with pytest.raises(xshare.ModelError, match="has no policy at work"):
            call(tiny("qwen3"))


def test_a_layout_that_is_none(tiny):
    xshare.apply(tiny("qwen3"), FINE)
    with pytest.raises(xshare.LayoutError, match=r"must be an xshare\.BatchLayout, not list"):
        xshare.layout(tiny("qwen3"), [0, 1]).__enter__()
    xshare.remove(tiny("qwen3"))


def test_experts_spread_over_ranks():
    model = make("mixtral")
    model.model.layers[1].mlp.experts.num_experts = 4
    with pytest.raises(xshare.ModelError, match="spread over ranks"):
        xshare.apply(model, FINE)


def test_a_kernel_that_routes_by_itself_is_noticed():
    model = make("gpt_oss")
    for layer in model.model.layers:
        layer.mlp.forward = lambda hidden: (hidden, None)
    xshare.apply(model, FINE)
    with pytest.raises(xshare.ModelError, match="does not ask its routers"):
        generate(model, prompts(4))


def test_a_layer_that_gets_other_rows_routes_natively():
    model = make("mixtral")
    handle = xshare.apply(model, FINE)
    block = model.model.layers[1].mlp
    native = block.forward
    block.forward = lambda hidden: native(hidden[:1]).expand_as(hidden)
    generate(model, prompts(4), new=3)
    stats = handle.stats()
    assert stats["steps_bypassed"] == {"prefill": 1, "mismatch": 2}
    assert stats["layer_steps"] == [2, 0]


def test_a_placement_bounds_the_load_per_device(tiny):
    model = tiny("mixtral")
    spread = xshare.Placement.contiguous(num_experts=8, devices=4)
    handle = xshare.apply(model, "k0=0,mg=1", placement=spread)
    with torch.no_grad():
        cache = model(prompts(4)).past_key_values
        model(prompts(4)[:, :1], past_key_values=cache)
    assert handle.stats()["max_load"] == [1, 1]
    assert handle.stats()["experts_selected"] == [4, 4]
    xshare.remove(model)
