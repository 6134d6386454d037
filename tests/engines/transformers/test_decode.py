"""Continuous batching must not change an answer."""

import pytest
import torch

from xshare.engines.transformers.decode import decode

pytest.importorskip("transformers", reason="Transformers is not installed")


@pytest.fixture(scope="module")
def model():
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=97, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, intermediate_size=64,
    )  # fmt: skip
    qwen = transformers.Qwen3MoeForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in qwen.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return qwen


@pytest.fixture(scope="module")
def alone(model):
    """Each prompt decoded by itself, 24 tokens."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(1, 97, (3 + i % 9,), generator=generator).tolist() for i in range(14)]
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.inference_mode():
        return {
            tuple(prompt): model.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist()
            for prompt in prompts
        }


@pytest.mark.parametrize("slack", [0, 3, 64])
@pytest.mark.parametrize("batch", [1, 4, 32])
def test_answers_are_those_of_each_prompt_alone(model, alone, batch, slack, monkeypatch):
    monkeypatch.setattr("xshare.engines.transformers.decode.SLACK", slack)
    ends = next(iter(alone.values()))[7]  # some token that sequences do reach, at different times
    wanted = [answer[: answer.index(ends) + 1] if ends in answer else answer for answer in alone.values()]
    ended = []
    decoded = decode(model, list(alone), ends=ends, limit=24, batch=batch, advance=ended.append)
    assert decoded.tokens == wanted
    assert sum(ended) == pytest.approx(len(alone))
    assert len(ended) > decoded.steps  # it moves within an answer
    assert decoded.rows == sum(map(len, wanted)) - len(wanted)  # the first token of each comes from its prompt
    assert decoded.steps >= -(-decoded.rows // batch)


def test_a_batch_stays_full_while_prompts_wait(model, alone):
    decoded = decode(model, list(alone), ends=-1, limit=10, batch=7)
    assert decoded.rows == decoded.steps * 7
