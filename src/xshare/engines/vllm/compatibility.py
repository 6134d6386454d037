"""Whether XShare can be right in this engine: version, signatures, features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xshare.engines.serving import signatures
from xshare.engines.serving.settings import Settings, SettingsError
from xshare.engines.vllm.staircase_conditions import staircase_conditions
from xshare.kernels.limits import unsupported_policy
from xshare.profile import moe_layers, read_profile
from xshare.staircase import read_stairs

# How each version's path was checked. The others in the range were read, and their signatures compared.
VERIFIED = {
    "0.26": "run on a GPU (H200) and signature-checked",
    "0.27": "read and signature-checked only",
    "0.28": "read and signature-checked only",
    "0.29": "run on a CPU and signature-checked",
    "0.30": "read and signature-checked only",
    "0.31": "read and signature-checked only",
    "0.32": "run on a CPU and signature-checked",
}
FUSED_MOE = "vllm.model_executor.layers.fused_moe"
# Functions that are wrapped or called, and the parameters that XShare relies on.
SIGNATURES = {
    (f"{FUSED_MOE}.runner.moe_runner", "MoERunner._apply_quant_method"): ("hidden_states", "router_logits"),
    (f"{FUSED_MOE}.router.base_router", "BaseRouter._compute_routing"): (
        "hidden_states",
        "router_logits",
        "indices_type",
        "input_ids",
    ),
    (f"{FUSED_MOE}.routed_experts", "RoutedExperts.forward_monolithic"): ("x", "router_logits", "input_ids"),
    ("vllm.v1.engine.core", "EngineCore.collective_rpc"): ("method", "timeout", "args", "kwargs"),
    ("vllm.v1.engine.core", "EngineCore.preprocess_add_request"): ("request",),
    ("vllm.v1.engine.input_processor", "InputProcessor.process_inputs"): ("request_id", "prompt", "params"),
    ("vllm.v1.engine.core", "EngineCore.reset_prefix_cache"): ("reset_running_requests",),
    ("vllm.distributed.device_communicators.pynccl", "PyNcclCommunicator.all_reduce"): ("in_tensor", "out_tensor"),
}
V1 = {
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._prepare_inputs"): ("scheduler_output", "num_scheduled_tokens"),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._dummy_run"): ("num_tokens",),
}
V2 = {("vllm.v1.worker.gpu.model_runner", "GPUModelRunner.prepare_inputs"): ("scheduler_output",)}


def vllm_version() -> str:
    import vllm

    return str(vllm.__version__)


def verification() -> str:
    """How this version was checked; refuses a version that was not."""
    version = vllm_version()
    minor = ".".join(version.split(".")[:2])
    if minor not in VERIFIED:
        known = f"{min(VERIFIED)} to {max(VERIFIED)}"
        raise SettingsError(f"xshare knows vLLM {known}, not {version}: install one of those, or remove the xshare key")
    return VERIFIED[minor]


def check_signatures(v2: bool) -> None:
    relied_on = SIGNATURES | (V2 if v2 else V1)
    signatures.check_signatures(relied_on, f"vLLM {vllm_version()}", "or remove the xshare key")


def check_layers(model: Any, settings: Settings) -> None:
    """Refuse settings for layers that the model does not have, where its configuration says which layers are MoE."""
    numbers = moe_layers(model)
    if not numbers:
        return
    if settings.layers is not None:
        if beyond := [place for place in settings.layers if place >= len(numbers)]:
            raise SettingsError(
                f"layers in xshare names {beyond}, and the model has MoE layers 0 to {len(numbers) - 1}"
            )
        numbers = [numbers[place] for place in settings.layers]
    policy = settings.policy
    if settings.profile is not None:
        policy = read_profile(Path(settings.profile)).policy_on(numbers)
    policy.by_layer(numbers)


def check_config(config: Any, settings: Settings) -> None:
    """Refuse an engine in which selection would be wrong, with the reason and the way out."""
    import vllm.envs as envs

    verification()
    if settings.profile is not None:
        read_profile(Path(settings.profile)).check_model(config.model_config.hf_text_config)
    check_layers(getattr(config.model_config, "hf_text_config", None), settings)
    parallel = config.parallel_config
    way_out = "or remove the xshare key"
    if parallel.use_ubatching:
        raise SettingsError(
            f"xshare does not run with dual batch overlap, which splits a step in two: turn --enable-dbo off, {way_out}"
        )
    if parallel.data_parallel_size > 1 and config.device_config.device_type != "cpu":
        if not settings.experiment:
            raise SettingsError(
                f"xshare has not been tried with data parallel size {parallel.data_parallel_size} on GPUs: set "
                f"experiment to true to try it, use tensor and expert parallelism, {way_out}"
            )
        if settings.cost is not None:
            raise SettingsError(
                f"cost in xshare does not go with data parallelism on GPUs, where no rank knows the rows of all when a "
                f"step begins: leave it out, {way_out}"
            )
    if settings.cost is not None:
        read_stairs(Path(settings.cost)).check_conditions(staircase_conditions(config))
    if parallel.data_parallel_size > 1 and settings.policy.method != "xshare":
        raise SettingsError(
            f"method {settings.policy.method!r} in xshare does not choose one set for several data-parallel ranks: use "
            f"one of XShare's own policies, {way_out}"
        )
    if getattr(parallel, "enable_elastic_ep", False):
        raise SettingsError(
            f"xshare does not run with elastic expert parallelism, whose ranks change while it serves: "
            f"turn --enable-elastic-ep off, {way_out}"
        )
    if parallel.use_sequence_parallel_moe:
        raise SettingsError(
            f"xshare does not run with sequence-parallel MoE, in which a rank sees a part of the rows only: "
            f"set data or tensor parallel size to 1, {way_out}"
        )
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        raise SettingsError(f"xshare does not run with prefill context parallelism: set its size to 1, {way_out}")
    if envs.VLLM_BATCH_INVARIANT:
        raise SettingsError(
            f"xshare makes a request's experts depend on its batch, which VLLM_BATCH_INVARIANT "
            f"forbids: unset it, {way_out}"
        )
    if getattr(config.model_config, "enable_sleep_mode", False):
        raise SettingsError(
            f"xshare does not run with sleep mode, which discards what it keeps beside the weights: "
            f"turn --enable-sleep-mode off, {way_out}"
        )
    if settings.default == "exact" and config.kv_transfer_config is not None:
        raise SettingsError(
            "default in xshare cannot be 'exact' with a KV connector, which may hand a request blocks decoded under "
            "pruning: set it to 'shared', or serve without --kv-transfer-config"
        )
    device = config.device_config.device_type
    if device not in ("cuda", "cpu"):
        raise SettingsError(f"xshare runs on CUDA, ROCm and the CPU, not on {device}: remove the xshare key")
    if device == "cuda" and (reason := unsupported_policy(settings.policy)):
        raise SettingsError(f"{reason}, {way_out}")
    ranks = parallel.tensor_parallel_size * parallel.data_parallel_size
    if settings.policy.device_budget is not None and not (parallel.enable_expert_parallel and ranks > 1):
        raise SettingsError(
            "device_budget (mg) in xshare needs expert parallelism: add --enable-expert-parallel and at least two ranks"
        )
