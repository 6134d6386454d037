"""Tiny models of the real architectures with random weights, and each one's rule of routing in the oracle's words."""

import oracle
import torch
import transformers as t

SHARED = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
KINDS = ["gpt_oss", "qwen3", "qwen2", "olmoe", "mixtral", "deepseek"]


def configuration(kind):
    if kind == "llama":  # no experts
        return t.LlamaConfig(**SHARED, intermediate_size=32)
    if kind == "granite":  # experts, and a router nobody knows
        return t.GraniteMoeConfig(**SHARED, intermediate_size=16, num_local_experts=4, num_experts_per_tok=2)
    if kind == "gpt_oss":
        return t.GptOssConfig(
            **SHARED,
            head_dim=16,
            num_local_experts=16,
            num_experts_per_tok=4,
            intermediate_size=32,
            sliding_window=16,
            layer_types=["sliding_attention", "full_attention"],
        )
    if kind == "mixtral":
        return t.MixtralConfig(**SHARED, num_local_experts=8, num_experts_per_tok=2, intermediate_size=32)
    if kind == "olmoe":
        return t.OlmoeConfig(**SHARED, num_experts=16, num_experts_per_tok=4, intermediate_size=16)
    if kind == "qwen3":
        sizes = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 16}
        return t.Qwen3MoeConfig(**SHARED, **sizes, head_dim=16, norm_topk_prob=True)
    if kind == "qwen2":  # not renormalised, and with a shared expert
        sizes = {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 16}
        return t.Qwen2MoeConfig(**SHARED, **sizes, shared_expert_intermediate_size=16, intermediate_size=32)
    assert kind == "deepseek"
    return t.DeepseekV3Config(
        **(SHARED | {"num_hidden_layers": 3}),
        first_k_dense_replace=1,  # so the first MoE layer is the model's layer 1
        n_routed_experts=16,
        num_experts_per_tok=4,
        n_shared_experts=1,
        n_group=4,
        topk_group=2,
        moe_intermediate_size=16,
        intermediate_size=32,
        kv_lora_rank=16,
        q_lora_rank=None,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
        routed_scaling_factor=2.5,
    )


def make(kind, seed=0):
    """A model whose routers tell tokens apart, and whose tokens tell which experts were used."""
    torch.manual_seed(seed)
    model = t.AutoModelForCausalLM.from_config(configuration(kind), dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("mlp.gate.weight", "mlp.router.weight")):
                weight.normal_(0, 0.5)
            elif "experts" in name and "shared" not in name and weight.ndim > 1:
                weight.normal_(0, 0.3)
            elif name.endswith("embed_tokens.weight"):
                weight.normal_(0, 1)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.1)
    return model


def rule(model, layer):
    """The rule of the model's MoE layer number `layer`, from its configuration alone."""
    config = model.config
    k = config.num_experts_per_tok
    if config.model_type != "deepseek_v3":
        renormalize = {"gpt_oss": True, "mixtral": True}.get(config.model_type, getattr(config, "norm_topk_prob", None))
        return oracle.Router(k, "softmax", renormalize)
    bias = model.model.layers[layer + config.first_k_dense_replace].mlp.gate.e_score_correction_bias.tolist()
    groups = (config.n_group, config.topk_group)
    return oracle.Router(k, "sigmoid", config.norm_topk_prob, bias, *groups, scale=config.routed_scaling_factor)


def num_experts(model):
    return model.config.num_local_experts if hasattr(model.config, "num_local_experts") else model.config.num_experts


def prompts(count, length=6, seed=0):
    return torch.randint(3, 64, (count, length), generator=torch.Generator().manual_seed(seed))


def generate(model, tokens, new=8, **options):
    """Greedy, and no sequence ends before the others unless `eos_token_id` is given."""
    options = {"eos_token_id": None, "do_sample": False, "max_new_tokens": new} | options
    options.setdefault("attention_mask", torch.ones_like(tokens))
    return model.generate(tokens, **options)
