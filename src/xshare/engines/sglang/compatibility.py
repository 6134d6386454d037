"""Whether XShare can be right in this engine: version, signatures, features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xshare.engines.serving import signatures
from xshare.engines.serving.settings import Settings, SettingsError
from xshare.engines.sglang.settings import VARIABLE
from xshare.kernels.limits import unsupported_policy
from xshare.profile import read_profile
from xshare.staircase import read_stairs

# How each version's path was checked. The others in the range were not looked at.
VERIFIED = {
    "0.5.16": "run on a GPU (H200) and signature-checked",
    "0.5.23": "run on a CPU and signature-checked",
}
FIRST, LAST = (0, 5, 16), (0, 5, 23)
WAY_OUT = f"or unset {VARIABLE}"
# Functions that are wrapped or called, and the parameters that XShare relies on.
SIGNATURES = {
    ("sglang.srt.layers.moe.topk", "TopK.forward_cuda"): ("hidden_states", "router_logits"),
    ("sglang.srt.layers.moe.topk", "TopK.forward_native"): ("hidden_states", "router_logits"),
    ("sglang.srt.model_executor.model_runner", "ModelRunner.load_model"): (),
    ("sglang.srt.model_executor.model_runner", "ModelRunner.forward"): ("forward_batch",),
    ("sglang.srt.model_executor.model_runner", "ModelRunner.decode_num_tokens_per_req"): (),
    ("sglang.srt.managers.scheduler", "Scheduler.get_init_info"): (),
    ("sglang.srt.managers.scheduler", "Scheduler.set_internal_state"): ("recv_req",),
    ("sglang.srt.managers.scheduler", "Scheduler.get_internal_state"): ("recv_req",),
    ("sglang.srt.managers.scheduler", "Scheduler.flush_cache"): (),
    ("sglang.srt.managers.scheduler", "Scheduler.pause_generation"): ("recv_req",),
    ("sglang.srt.managers.scheduler", "Scheduler.continue_generation"): ("recv_req",),
    ("sglang.srt.managers.scheduler", "Scheduler._add_request_to_queue"): ("req",),
    ("sglang.srt.managers.tokenizer_manager", "TokenizerManager._validate_one_request"): ("obj", "input_ids"),
    ("sglang.srt.entrypoints.engine", "_set_envs_and_config"): ("server_args",),
    ("sglang.srt.entrypoints.engine", "_wait_for_scheduler_ready"): (),
}
# Server arguments: the only value with which selection is right, and why.
SERVED = {
    "dp_size": (1, "each replica would choose a set of its own"),
    "enable_dp_attention": (False, "a rank would see a part of the rows only"),
    "pp_size": (1, "a stage would not know the step"),
    "attn_cp_size": (1, "a rank would see a part of the rows only"),
    "dcp_size": (1, "it was not looked at"),
    "moe_dp_size": (1, "a rank would see a part of the rows only"),
    "dwdp_size": (1, "a rank would see a part of the rows only"),
    "moe_a2a_backend": ("none", "a rank would see a part of the rows only"),
    "enable_attn_tp_input_scattered": (False, "a rank would see a part of the rows only"),
    "enable_layernorm_sp": (False, "a rank would see a part of the rows only"),
    "enable_two_batch_overlap": (False, "it splits a step in two"),
    "enable_single_batch_overlap": (False, "it was not looked at"),
    "enable_pdmux": (False, "prompts are read while others decode"),
    "enable_torch_compile": (False, "it compiles routing by itself"),
    "enable_deterministic_inference": (False, "a request's experts depend on its batch"),
    "enable_memory_saver": (False, "it discards what is kept beside the weights"),
    "enable_eplb": (False, "experts move while serving"),
    "ep_num_redundant_experts": (0, "ids are those of replicas"),
    "init_expert_location": ("trivial", "ids are those of places, not of experts"),
    "elastic_ep_backend": (None, "experts move while serving"),
    "dllm_algorithm": (None, "its steps are no decode steps"),
    "enable_hierarchical_cache": (False, "copies of pruned blocks would outlive a change of the policy"),
    "enable_lmcache": (False, "copies of pruned blocks would outlive a change of the policy"),
    "enable_flexkv": (False, "copies of pruned blocks would outlive a change of the policy"),
    "enable_unified_cache_external_linker": (False, "copies of pruned blocks would outlive a change of the policy"),
    "disaggregation_mode": ("null", "blocks come from a server that may prune otherwise"),
    "speculative_adaptive": (False, "the number of drafts changes while serving"),
}


def sglang_version() -> str:
    import sglang

    return str(sglang.__version__)


def verification() -> str:
    """How this version was checked; refuses a version out of the range."""
    version = sglang_version()
    parts = tuple(int(part) for part in version.split(".post")[0].split("rc")[0].split(".")[:3] if part.isdigit())
    if not FIRST <= parts <= LAST:
        raise SettingsError(
            f"xshare knows SGLang {'.'.join(map(str, FIRST))} to {'.'.join(map(str, LAST))}, not {version}: "
            f"install one of those, {WAY_OUT}"
        )
    return VERIFIED.get(version, "signature-checked only")


def check_signatures() -> None:
    verification()
    signatures.check_signatures(SIGNATURES, f"SGLang {sglang_version()}", WAY_OUT)


def check_server(args: Any, settings: Settings) -> None:
    """Refuse an engine in which selection would be wrong, with the reason and the way out. `args`: its ServerArgs."""
    checks = [(name, getattr(args, name, served), served, why) for name, (served, why) in SERVED.items()]
    prefill = getattr(getattr(args, "cuda_graph_config", None), "prefill", None)
    if args.device == "cuda" and getattr(prefill, "backend", None) == "tc_piecewise":  # 0.5.16 has it
        checks.append(("cuda_graph_backend_prefill", "tc_piecewise", "breakable", "it compiles routing by itself"))
    for name, value, served, why in checks:
        if value != served:
            raise SettingsError(f"xshare does not run with {name} {value!r}: {why}; leave it {served!r}, {WAY_OUT}")
    if args.device not in ("cuda", "cpu"):
        raise SettingsError(f"xshare runs in SGLang on CUDA and the CPU, not on {args.device}: unset {VARIABLE}")
    if args.device == "cuda" and (reason := unsupported_policy(settings.policy)):
        raise SettingsError(f"{reason}, {WAY_OUT}")
    if settings.policy.device_budget is not None and getattr(args, "ep_size", 1) < 2:
        raise SettingsError("device_budget (mg) in xshare needs expert parallelism: add --ep-size of at least 2")
    if settings.profile is not None:
        read_profile(Path(settings.profile))
    if settings.cost is not None:
        read_stairs(Path(settings.cost))
