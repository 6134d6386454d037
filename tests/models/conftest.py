"""A small model in the form of nano, for what does not need a trained one."""

import pytest
import torch

import xshare.models

WORDS = xshare.models.folder("nano")


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A folder with a model of two layers and nano's tokenizer."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=3072,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=32,
        intermediate_size=64,
        norm_topk_prob=True,
        tie_word_embeddings=True,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = transformers.Qwen3MoeForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)  # routers and tokens that differ from each other
    path = tmp_path_factory.mktemp("models") / "nano"
    model.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_bytes((WORDS / name).read_bytes())
    xshare.models.write_sums(path)
    return path
