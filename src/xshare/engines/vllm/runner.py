"""The model runners, V1 and V2: attach when a model is loaded, and read what each step is before it runs."""

from __future__ import annotations

import atexit
import logging
from typing import Any

import numpy as np
import torch

from xshare.engines.vllm.compatibility import check_config, check_signatures, verified, vllm_version
from xshare.engines.vllm.layer import Layer
from xshare.engines.vllm.metrics import Reporter, Samples, remove_stale, report_path
from xshare.engines.vllm.routers import placement_of, router_of
from xshare.engines.vllm.settings import Settings, SettingsError, settings_of
from xshare.engines.vllm.state import State

log = logging.getLogger("vllm.xshare")
WARMING_UP = ("_warmup_", "_v2_mixed_warmup")  # requests that the V2 runner makes up before it serves


def attach(runner: Any, v2: bool) -> None:
    """Called when a model has been loaded: without an `xshare` key in additional_config nothing is touched."""
    config = runner.vllm_config
    settings = settings_checked(config)
    if settings is None or getattr(runner, "xshare", None) is not None:
        return
    check_signatures(v2)
    drafts = config.speculative_config.num_speculative_tokens if config.speculative_config is not None else 0
    device = torch.device(runner.device)
    captured = config.compilation_config.cudagraph_capture_sizes if device.type == "cuda" else None
    state = State(settings, device, drafts, config.scheduler_config.max_num_seqs, captured or ())
    find_layers(runner.get_model(), state)
    if state.why_not(True, state.max_rows) == "within_budget":
        log.warning(
            "xshare: %s can never act here: %d rows of top-%d load no more than the budget", settings.policy,
            state.max_rows, state.top_k,
        )  # fmt: skip
    if settings.budgets is not None:
        state.set_policy(str(settings.policy), settings.budgets)
    if settings.metrics.on:
        start_metrics(state, config)
    for layer in state.layers:
        layer.attach()
    if device.type == "cuda":
        for layer in state.layers:
            layer.compile(config.model_config.dtype)
        if state.samples is not None:
            state.samples.compile()
    runner.xshare = state
    if v2:
        runner.prepare_inputs = _reading_v2(runner, state)
    else:
        runner._prepare_inputs = _reading_v1(runner, state)
    log.info("xshare: %s on %d layers (vLLM %s: %s)", settings.policy, len(state.layers), vllm_version(), verified())


def find_layers(model: Any, state: State) -> None:
    """Fill state.layers with every MoE layer that can be served, and say of each what became of it."""
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    settings, checked = state.settings, verified()
    runners = [(name, module) for name, module in model.named_modules() if isinstance(module, MoERunner)]
    skipped = []
    for number, (name, runner) in enumerate(runners):
        reason = _found_layer(state, number, name, runner)
        if reason is None:
            layer = state.layers[-1]
            log.info("xshare: %s attached (%s path, %s), %s", name, layer.path, layer.mode, checked)
        else:
            log.warning("xshare: %s skipped: %s", name, reason)
            if settings.layers is None or number in settings.layers:
                skipped.append(f"{name} ({reason})")
    if settings.layers is not None and (beyond := [n for n in settings.layers if not 0 <= n < len(runners)]):
        raise SettingsError(f"layers in xshare names {beyond}, and the model has MoE layers 0 to {len(runners) - 1}")
    if skipped and settings.strict:
        raise SettingsError(f"strict in xshare refuses a model with layers it cannot serve: {'; '.join(skipped)}")
    if not state.layers:
        why = f"it skipped all {len(runners)}: {skipped[0]}" if skipped else "the model has no MoE layer"
        raise SettingsError(f"xshare has no layer to act on, because {why}; remove the xshare key to serve this model")


def _found_layer(state: State, number: int, name: str, runner: Any) -> str | None:
    """Add one layer to the state, or say why not."""
    if state.settings.layers is not None and number not in state.settings.layers:
        return "not among the layers asked for"
    router = router_of(runner.router)
    if isinstance(router, str):
        return router
    moe = runner.moe_config
    num_experts = int(getattr(moe, "num_logical_experts", 0) or moe.num_experts)
    layer = Layer(state, name, runner, router, num_experts, placement_of(runner, num_experts, state.device))
    if reason := layer.unservable():
        return reason
    if state.settings.policy.warmup > num_experts:
        raise SettingsError(f"warmup (k0) in xshare must be at most {num_experts}, the experts of {name}")
    state.layers.append(layer)
    return None


def start_metrics(state: State, config: Any) -> None:
    state.samples = Samples(state)
    from vllm.distributed import get_tensor_model_parallel_rank

    if get_tensor_model_parallel_rank() == 0:
        path = report_path(config.instance_id)
        remove_stale(path.parent)
        reporter = Reporter(state, path)
        reporter.start()
        atexit.register(reporter.stop)


def _reading_v1(runner: Any, state: State) -> Any:
    native = runner._prepare_inputs

    def prepare_inputs(scheduler_output: Any, num_scheduled_tokens: np.ndarray, *args: Any, **kwargs: Any) -> Any:
        found = native(scheduler_output, num_scheduled_tokens, *args, **kwargs)
        batch = runner.input_batch
        requests = batch.num_reqs
        if state.forcing is not None:
            state.forcing.step(scheduler_output, batch.req_ids[:requests])
        drafts = scheduler_output.scheduled_spec_decode_tokens
        # Decoding: the prompt is done, and beside its drafts a request has one token in this step. What was generated
        # before a preemption is computed again in larger pieces.
        past_prompt = (batch.num_computed_tokens_cpu[:requests] >= batch.num_prompt_tokens[:requests]).all()
        if not drafts and scheduler_output.total_num_scheduled_tokens == requests:
            state.step(bool(past_prompt), state.one_row_each(requests))
            return found
        scheduled = num_scheduled_tokens[:requests]
        drafted = [len(drafts.get(request, ())) for request in batch.req_ids[:requests]]
        starts = np.zeros(requests + 1, np.int32)
        np.cumsum(scheduled, out=starts[1:])
        state.step(bool(past_prompt and (scheduled == np.add(drafted, 1)).all()), starts)
        return found

    return prepare_inputs


def _reading_v2(runner: Any, state: State) -> Any:
    native = runner.prepare_inputs

    def prepare_inputs(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        batch = native(scheduler_output, *args, **kwargs)
        if batch.req_ids and batch.req_ids[0].startswith(WARMING_UP):
            return batch
        if state.forcing is not None:
            state.forcing.step(scheduler_output, batch.req_ids[: batch.num_reqs])
        decoding = not bool(batch.is_prefilling_np[: batch.num_reqs].any())
        starts = batch.query_start_loc_np[: batch.num_reqs + 1]
        if int(starts[-1]) == batch.num_reqs and not state.num_spec_tokens:
            starts = state.one_row_each(batch.num_reqs)
        # With drafts, the boundaries in device memory are the true ones: they may be dealt out there.
        state.step(decoding, starts, batch.query_start_loc if state.num_spec_tokens else None)
        return batch

    return prepare_inputs


def settings_checked(config: Any) -> Settings | None:
    """The settings of an engine that is about to start, refused early where they cannot be right."""
    settings = settings_of(config.additional_config)
    if settings is not None:
        check_config(config, settings)
    return settings
