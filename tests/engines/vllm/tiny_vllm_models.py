"""Tiny models of the real architectures with random weights, made by transformers; and engines that serve them."""

from __future__ import annotations

import functools
import gc
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace

import torch

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in process: which requests share a step is reproducible
    "NUMBA_THREADING_LAYER": "workqueue",  # n-gram drafts start threads; a fork with OpenMP's is ended
    "OMP_NUM_THREADS": "1",  # tests run in parallel processes, and these models are tiny
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)

SHARED = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
SHARED |= {
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def configuration(kind: str):
    import transformers as t

    if kind == "llama":  # no experts
        return t.LlamaConfig(**SHARED, intermediate_size=64)
    if kind == "qwen3":
        return t.Qwen3MoeConfig(
            **SHARED, head_dim=32, num_experts=32, num_experts_per_tok=4, moe_intermediate_size=32, norm_topk_prob=True
        )
    if kind == "partly_dense":  # the first of three layers has no experts
        return t.Qwen3MoeConfig(
            **SHARED | {"num_hidden_layers": 3}, head_dim=32, num_experts=32, num_experts_per_tok=4,
            moe_intermediate_size=32, intermediate_size=64, norm_topk_prob=True, mlp_only_layers=[0],
        )  # fmt: skip
    if kind == "olmoe":
        return t.OlmoeConfig(**SHARED, num_experts=16, num_experts_per_tok=4, intermediate_size=32)
    if kind == "mixtral":
        return t.MixtralConfig(**SHARED, num_local_experts=8, num_experts_per_tok=2, intermediate_size=64)
    if kind == "gpt_oss":
        shared = SHARED | {"num_hidden_layers": 2}
        return t.GptOssConfig(
            **shared,
            head_dim=32,
            num_local_experts=16,
            num_experts_per_tok=4,
            intermediate_size=64,
            sliding_window=64,
            layer_types=["sliding_attention", "full_attention"],
        )
    assert kind in ("deepseek", "deepseek_groups")
    groups = (4, 2) if kind == "deepseek_groups" else (1, 1)
    return t.DeepseekV3Config(
        **SHARED,
        n_routed_experts=16,
        num_experts_per_tok=4,
        n_shared_experts=1,
        n_group=groups[0],
        topk_group=groups[1],
        first_k_dense_replace=0,
        moe_intermediate_size=32,
        intermediate_size=64,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=32,
        v_head_dim=32,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        routed_scaling_factor=2.5,
        rope_theta=10000.0,
        rope_scaling={  # with plain rope vLLM's operator for the CPU computes wrong results
            "type": "yarn",
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    )


def make(kind: str, folder: Path) -> Path:
    """A checkpoint of that kind whose router tells tokens apart."""
    import transformers as t

    path = folder / kind
    if not path.exists():
        torch.manual_seed(0)
        model = t.AutoModelForCausalLM.from_config(configuration(kind), dtype=torch.float32)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(("mlp.gate.weight", "mlp.router.weight", "block_sparse_moe.gate.weight")):
                    weight.normal_(0, 0.5)
                elif "experts" in name and "shared" not in name and weight.ndim > 1:
                    weight.normal_(0, 0.3)  # large enough for tokens to tell which experts were used
                elif name.endswith("embed_tokens.weight"):
                    weight.normal_(0, 1)
            for name, buffer in model.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    buffer.normal_(0, 0.1)
        model.save_pretrained(path)
    return path


def engine(model: Path, xshare: dict | None = None, **options):
    from vllm import LLM

    prepared()
    defaults = {
        "dtype": "float32",
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "max_model_len": 256,
        "max_num_seqs": 16,
        "kv_cache_memory_bytes": 64 << 20,
        "disable_log_stats": True,
    }
    config = {} if xshare is None else {"xshare": xshare}
    return LLM(model=str(model), additional_config=config, **(defaults | options))


def monolithic() -> bool:
    """Whether this vLLM's experts on the CPU route by themselves: up to 0.29."""
    try:
        return tuple(int(part) for part in version("vllm-cpu").split(".")[:2]) < (0, 30)
    except PackageNotFoundError:
        return False


def serves_gpt_oss() -> bool:
    """Whether this vLLM can: on a CPU 0.29's attention takes the sinks of gpt-oss in bfloat16 alone, with XShare or
    without, and many Arm CPUs have no instructions for that."""
    return platform.machine() == "x86_64" or not monolithic()


def dtype_of(kind: str) -> str:
    """On x86 vLLM packs the weights of DeepSeek's attention for bfloat16 alone, and 0.29 those of gpt-oss. Everything
    else is exact in float32."""
    half = kind.startswith("deepseek") or (kind == "gpt_oss" and monolithic())
    return "bfloat16" if half and platform.machine() == "x86_64" else "float32"


def cleaned_up() -> None:
    """After the last reference to an engine in process has gone, and before the next one starts."""
    gc.collect()
    if "vllm" in sys.modules:
        from vllm.distributed import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()


@functools.cache
def prepared() -> None:
    """To be called before the first engine in process: what every engine would do again is done once."""
    from vllm.distributed import parallel_state
    from vllm.model_executor.models import registry
    from vllm.v1.engine import core
    from vllm.v1.worker import gpu_worker

    replace_kernels_once()
    registry._run_in_subprocess = lambda look: look()  # a new process would import vLLM to look at a model's class
    # An engine looks for garbage in all that was ever imported, several times. That is set aside, and stays there.
    ours = SimpleNamespace(**vars(gc) | {"unfreeze": lambda: None})
    for module in (core, gpu_worker, parallel_state):
        for name, value in {"gc": ours, "freeze_gc_heap": lambda: None}.items():
            if hasattr(module, name):
                setattr(module, name, value)
    gc.collect()
    gc.freeze()


def replace_kernels_once() -> None:
    """Each engine searches all modules for kernels to replace, and trips over llvmlite, which ngram drafts import."""
    from vllm.platforms import current_platform

    platform, name = type(current_platform), "register_triton_kernel_overrides"
    if name in vars(platform) and not isinstance(vars(platform)[name], staticmethod):
        setattr(platform, name, staticmethod(functools.cache(getattr(platform, name))))


def generate(llm, prompts: list[list[int]], tokens: int | list[int] = 12) -> list[list[int]]:
    from vllm import SamplingParams

    lengths = [tokens] * len(prompts) if isinstance(tokens, int) else tokens
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False) for length in lengths]
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def prompts(count: int, length: int = 8, seed: int = 0) -> list[list[int]]:
    noise = torch.Generator().manual_seed(seed)
    return torch.randint(3, 250, (count, length), generator=noise).tolist()
