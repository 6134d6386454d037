"""Published shapes of real models, written as configurations that vLLM serves with random weights (`xshare_dummy`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Config = dict[str, Any]


def gpt_oss_120b(layers: int = 36, tiny: bool = False) -> Config:
    config: Config = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_hidden_layers": layers,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "experts_per_token": 4,
        "vocab_size": 201088,
        "sliding_window": 128,
        "layer_types": [("sliding_attention", "full_attention")[n % 2] for n in range(layers)],
        "rope_theta": 150000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "max_position_embeddings": 131072,
        "initial_context_length": 4096,
        "rms_norm_eps": 1e-5,
        "swiglu_limit": 7.0,
        "attention_bias": True,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 200002,
        "pad_token_id": 199999,
        "torch_dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        },
    }
    if tiny:  # the same code paths on a machine without a GPU
        del config["quantization_config"]
        config |= {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
        config |= {"head_dim": 32, "vocab_size": 4096, "num_local_experts": 32, "eos_token_id": 1, "pad_token_id": 2}
    return config


def eagle3_head(target: Config) -> Config:
    """A draft head in the form of nvidia/gpt-oss-120b-Eagle3: one dense layer, the target's embedding and head."""
    layers, hidden = target["num_hidden_layers"], target["hidden_size"]
    streams = [1, 17, 32] if layers == 36 else sorted({1, layers // 2, layers - 1})  # published for 36
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": hidden,
        "intermediate_size": 6 * hidden,  # 17280
        "num_attention_heads": target["num_attention_heads"],
        "num_key_value_heads": target["num_key_value_heads"],
        "head_dim": target["head_dim"],
        "vocab_size": target["vocab_size"],
        "max_position_embeddings": 131072,
        "rope_theta": 150000,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "norm_before_residual": True,
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": streams},
        "eagle_aux_hidden_state_layer_ids": streams,  # where the V2 runner looks for them
        "torch_dtype": target["torch_dtype"],
    }


def experts_of(config: Config) -> int:
    """The number of a layer's experts, which families call differently."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    return int(next(config[name] for name in names if name in config))


def expert_bytes(config: Config) -> float:
    """Bytes of one expert of one layer. MXFP4 has half a byte per weight, and one byte of scale per 32 weights."""
    width = config.get("moe_intermediate_size", config["intermediate_size"])
    packed = config.get("quantization_config", {}).get("quant_method") == "mxfp4"
    return float(3 * config["hidden_size"] * width * (0.5 + 1 / 32 if packed else 2.0))


def cache_bytes(config: Config, tokens: int, width: int = 2) -> int:
    """Bytes of the keys and values of one request of `tokens` tokens, at `width` bytes per number. A layer with a
    sliding window holds no more than the window."""
    kinds = config.get("layer_types", ["full_attention"] * config["num_hidden_layers"])
    positions = sum(min(tokens, config["sliding_window"]) if kind == "sliding_attention" else tokens for kind in kinds)
    return int(2 * positions * config["num_key_value_heads"] * config["head_dim"] * width)


def qwen3_30b_a3b(layers: int = 48, tiny: bool = False) -> Config:
    config: Config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": layers,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "eos_token_id": 151645,
        "bos_token_id": 151643,
        "torch_dtype": "bfloat16",
    }
    if tiny:
        config |= {"hidden_size": 64, "moe_intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
        config |= {"head_dim": 32, "vocab_size": 4096, "num_experts": 32, "eos_token_id": 1, "bos_token_id": 0}
    return config


def deepseek_v3(layers: int = 61, tiny: bool = False) -> Config:
    """In bfloat16, so 22.5 GB a layer; published weights have one byte each. All layers have experts, the first three
    too."""
    config: Config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_hidden_layers": layers,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 0,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 0,
        "vocab_size": 129280,
        "max_position_embeddings": 163840,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "eos_token_id": 1,
        "bos_token_id": 0,
        "torch_dtype": "bfloat16",
    }
    if tiny:
        config |= {"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
        config |= {"num_key_value_heads": 2, "q_lora_rank": None, "qk_nope_head_dim": 32, "v_head_dim": 32}
        config |= {"n_routed_experts": 32, "vocab_size": 4096}
    return config


def write(config: Config, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


SHAPES = {"gpt-oss-120b": gpt_oss_120b, "qwen3-30b-a3b": qwen3_30b_a3b, "deepseek-v3": deepseek_v3}
