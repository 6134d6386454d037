"""vLLM's model runners, V1 and V2: attach when a model is loaded, and read each step before it runs."""

from __future__ import annotations

import atexit
import logging
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xshare.engines.serving.build_state import build_state
from xshare.engines.serving.joint_state import JointState
from xshare.engines.serving.settings import Settings
from xshare.engines.serving.state import State
from xshare.engines.serving.step_sizes import Sizes
from xshare.engines.vllm.compatibility import check_config, check_signatures, verification, vllm_version
from xshare.engines.vllm.find_layers import find_layers
from xshare.engines.vllm.layer import compile_layers, make_layers
from xshare.engines.vllm.pipeline_stages import stage_number
from xshare.engines.vllm.protection import Protection
from xshare.engines.vllm.ranks import make_ranks, rank_of
from xshare.engines.vllm.reporter import Reporter, remove_stale, report_path
from xshare.engines.vllm.settings import has_changed_meaning, settings_of
from xshare.engines.vllm.staircase_conditions import staircase_conditions
from xshare.staircase import read_stairs

log = logging.getLogger("vllm.xshare")
NO_SCORE = (
    "xshare: no score is named: experts are summed by each token's own weights (score=topk), where before this version "
    "all its scores counted (score=full)"
)
EXPERIMENT = (
    "xshare: %s is an experiment: a rival that is here to be compared with, and served on a CPU alone; it is none of "
    "XShare's own policies"
)
WARMING_UP = ("_warmup_", "_v2_mixed_warmup")  # prefixes of the V2 runner's warm-up requests


def attach(runner: Any, v2: bool) -> None:
    """Called when a model has been loaded: without an `xshare` key in additional_config nothing is touched."""
    config = runner.vllm_config
    settings = checked_settings(config)
    if settings is None or getattr(runner, "xshare", None) is not None:
        return
    check_signatures(v2)
    state = make_state(runner.get_model(), settings, torch.device(runner.device), config)
    if settings.metrics.on:
        start_reporter(state, config)
    for layer in state.layers:
        layer.attach()
    compile_layers(state.layers, config.model_config.dtype)
    if state.samples is not None and state.device.type == "cuda":
        state.samples.compile()
    runner.xshare = state
    if isinstance(state, JointState):
        runner._dummy_run = _watch_idle_passes(runner, state)
    if v2:
        runner.prepare_inputs = _watch_steps_v2(runner, state)
    else:
        runner._prepare_inputs = _watch_steps_v1(runner, state)
    if has_changed_meaning(state.policy, config.additional_config):
        log.info(NO_SCORE)
    if state.policy.method not in ("xshare", "native"):
        log.warning(EXPERIMENT, state.policy)
    say_where_experts_are(state, config)
    which = f"{len(state.layers)} of {len(state.model)}" if len(state.layers) < len(state.model) else len(state.layers)
    log.info("xshare: %s on %s layers (vLLM %s: %s)", state.policy, which, vllm_version(), verification())


def make_state(model: Any, settings: Settings, device: torch.device, config: Any) -> State:
    """The state for a model and vLLM's configuration. Its layers are not attached yet."""
    drafts = config.speculative_config.num_speculative_tokens if config.speculative_config is not None else 0
    max_requests = config.scheduler_config.max_num_seqs
    captured = (config.compilation_config.cudagraph_capture_sizes if device.type == "cuda" else None) or ()
    sizes = Sizes(min(settings.gates.max_rows, max_requests * (1 + drafts)), drafts, captured)
    layers = find_layers(model, settings, device)
    stairs = None if settings.cost is None else read_stairs(Path(settings.cost))
    if stairs is not None:
        stairs.check_conditions(staircase_conditions(config, layers.model))
    return build_state(
        layers.sites, settings, device, sizes, max_requests, stairs, make_layers, log, layers.model, make_ranks
    )


def say_where_experts_are(state: State, config: Any) -> None:
    """Log it for an engine with --cpu-offload-gb: loading fewer experts from host memory saves the most time."""
    offload = getattr(config, "offload_config", None)  # 0.26 and later
    if not getattr(getattr(offload, "uva", None), "cpu_offload_gb", 0):
        return
    in_host_memory, layers = state.host_layers, len(state.layers)
    if in_host_memory:
        log.info(
            "xshare: the experts of %d of %d layers lie in host memory, and are read from there", in_host_memory, layers
        )
        if state.rows_unshared >= state.gates.min_rows and state.gates.bypass:
            log.info(
                "xshare: steps of up to %d rows are left alone: vLLM reads every row's experts by themselves there",
                state.rows_unshared,
            )
    else:
        log.warning(
            "xshare: vLLM was given --cpu-offload-gb, but all experts lie on the GPU: --cpu-offload-params names other "
            "weights, or the experts' kernel keeps a copy of its own form, as those for MXFP4 do, or this vLLM's V2 "
            "runner cannot offload (0.26: start with VLLM_USE_V2_MODEL_RUNNER=0)"
        )


def start_reporter(state: State, config: Any) -> None:
    from vllm.distributed import get_tensor_model_parallel_rank

    if get_tensor_model_parallel_rank() == 0:  # one per pipeline stage, for the stage's layers
        path = report_path(config.instance_id, stage_number(), rank_of(config.parallel_config))
        remove_stale(path.parent)
        reporter = Reporter(state.snapshot, path, state.settings.metrics.interval)
        reporter.start()
        atexit.register(reporter.stop)


def _watch_idle_passes(runner: Any, state: JointState) -> Any:
    """Around the dummy passes of an idle rank, which would otherwise act by the step before."""
    native = runner._dummy_run

    @wraps(native)
    def dummy_run(*args: Any, **kwargs: Any) -> Any:
        state.idle()
        return native(*args, **kwargs)

    return dummy_run


def _watch_steps_v1(runner: Any, state: State) -> Any:
    """Around _prepare_inputs, which every step calls."""
    native = runner._prepare_inputs
    protection = Protection(state.settings, state.sizes.most, lambda: runner.requests)

    def prepare_inputs(scheduler_output: Any, num_scheduled_tokens: np.ndarray, *args: Any, **kwargs: Any) -> Any:
        inputs = native(scheduler_output, num_scheduled_tokens, *args, **kwargs)
        batch = runner.input_batch
        requests = batch.num_reqs
        if state.forcing is not None:
            state.forcing.step(scheduler_output, batch.req_ids[:requests])
        protection.follow(scheduler_output)
        exact = protection.of(batch.req_ids[:requests]) if protection.exact else None
        drafts = scheduler_output.scheduled_spec_decode_tokens
        # A request decodes if its prompt is done and it has one token beside its drafts in this step. After a
        # preemption it has more: what it had generated is computed again.
        past_prompt = (batch.num_computed_tokens_cpu[:requests] >= batch.num_prompt_tokens[:requests]).all()
        if not drafts and scheduler_output.total_num_scheduled_tokens == requests:
            state.step(bool(past_prompt), state.one_row_per_request(requests), exact=exact)
            return inputs
        scheduled = num_scheduled_tokens[:requests]
        drafted = [len(drafts.get(request, ())) for request in batch.req_ids[:requests]]
        starts = np.zeros(requests + 1, np.int32)
        np.cumsum(scheduled, out=starts[1:])
        state.step(bool(past_prompt and (scheduled == np.add(drafted, 1)).all()), starts, exact=exact)
        return inputs

    return prepare_inputs


def _watch_steps_v2(runner: Any, state: State) -> Any:
    """Around prepare_inputs, which every step calls."""
    native, drafts = runner.prepare_inputs, state.sizes.num_spec_tokens
    protection = Protection(state.settings, state.sizes.most, lambda: runner.req_states.req_id_to_index)

    def prepare_inputs(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        batch = native(scheduler_output, *args, **kwargs)
        if batch.req_ids and batch.req_ids[0].startswith(WARMING_UP):
            return batch
        if state.forcing is not None:
            state.forcing.step(scheduler_output, batch.req_ids[: batch.num_reqs])
        protection.follow(scheduler_output)
        exact = protection.of(batch.req_ids[: batch.num_reqs]) if protection.exact else None
        decoding = not bool(batch.is_prefilling_np[: batch.num_reqs].any())
        starts = batch.query_start_loc_np[: batch.num_reqs + 1]
        if int(starts[-1]) == batch.num_reqs and not drafts:
            starts = state.one_row_per_request(batch.num_reqs)
        # With drafts, only the boundaries in device memory are certain: vLLM may assign drafts to requests there.
        state.step(decoding, starts, batch.query_start_loc if drafts else None, exact)
        return batch

    return prepare_inputs


def checked_settings(config: Any) -> Settings | None:
    """The settings of an engine that is about to start; refuses an engine in which selection would be wrong."""
    settings = settings_of(config.additional_config)
    if settings is not None:
        check_config(config, settings)
    return settings
