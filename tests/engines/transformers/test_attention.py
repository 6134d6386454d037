"""The engine's attention and cache are Transformers' own, but for rounding, and a model gets its own back."""

import pytest
import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention

from xshare.engines.transformers.attention import OURS, folded, share
from xshare.engines.transformers.cache import ROOM, new_cache
from xshare.engines.transformers.engine import TransformersEngine


@pytest.fixture
def model():
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16, "intermediate_size": 64}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = transformers.Qwen3MoeConfig(**sizes, **experts, num_attention_heads=4, num_key_value_heads=2)
    return transformers.Qwen3MoeForCausalLM(config).eval()


def logits(model, cache, new):
    """Three sequences, two of them padded, `new` tokens per pass."""
    tokens = torch.randint(0, 97, (3, 10 + 3 * ROOM), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[1, :4], mask[2, :7], mask[0, 12:14] = 0, 0, 0  # on the left, and two holes
    passes, start = [], 0
    for end in range(10, tokens.shape[1] + 1, new):
        now = slice(start, end)
        at = (mask.cumsum(1) - 1).clamp(min=0)[:, now]
        options = {"attention_mask": mask[:, :end], "position_ids": at, "past_key_values": cache}
        passes.append(model(tokens[:, now], **options).logits)
        start = end
    return torch.cat(passes, dim=1)[mask[:, :start] == 1]


@pytest.mark.parametrize("new", [1, 3])
@torch.inference_mode()
def test_all_is_as_transformers_has_it(model, new):
    wanted = logits(model, transformers.DynamicCache(), new)
    torch.testing.assert_close(logits(model, new_cache(), new), wanted)
    share(model)
    assert model.config._attn_implementation == OURS
    torch.testing.assert_close(logits(model, new_cache(), new), wanted)
    share(model, False)
    assert torch.equal(logits(model, transformers.DynamicCache(), new), wanted)


def test_an_engine_gives_a_model_back_as_it_was(model, tiny):
    for subject in (model, tiny("gpt_oss")):  # which has attention of another kind
        before = subject.config._attn_implementation
        engine = TransformersEngine(subject, None, "tiny")
        assert (subject.config._attn_implementation == OURS) == (before == "sdpa")
        engine.close()
        assert subject.config._attn_implementation == before


@pytest.mark.parametrize("new", [1, 4])
def test_heads_folded_into_tokens_attend_as_they_did(new: int) -> None:
    torch.manual_seed(0)
    query, (key, value) = torch.randn(3, 8, new, 16), torch.randn(2, 3, 2, 9, 16)
    mask = torch.rand(3, 1, new, 9) < 0.7
    mask[..., -1] = True
    expected = scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(folded(query, key, value, mask), expected)
