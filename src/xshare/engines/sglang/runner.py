"""SGLang's model runner: attach when a model is loaded, and read each step before it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xshare.engines.serving.build_state import build_state
from xshare.engines.serving.protection import ProtectedRequests
from xshare.engines.serving.settings import Settings, SettingsError
from xshare.engines.serving.state import State
from xshare.engines.serving.step import Array
from xshare.engines.serving.step_sizes import Sizes
from xshare.engines.sglang.compatibility import check_server, sglang_version, verification
from xshare.engines.sglang.find_layers import find_layers
from xshare.engines.sglang.layer import Layer, make_layers
from xshare.engines.sglang.settings import settings_of_environment
from xshare.engines.sglang.staircase_conditions import staircase_conditions
from xshare.kernels.limits import MAX_ROWS
from xshare.profile import read_profile
from xshare.staircase import read_stairs

log = logging.getLogger("xshare.sglang")


def attach(runner: Any) -> None:
    """Called when a model has been loaded. A drafter's model is left alone."""
    settings = settings_of_environment()
    if settings is None or runner.is_draft_worker or getattr(runner, "xshare", None) is not None:
        return
    check_server(runner.server_args, settings)
    device = torch.device(runner.device)
    state = make_state(runner, settings, device)
    for layer in state.layers:
        layer.attach()
        layer.selector.compile(runner.dtype)
    if state.samples is not None and device.type == "cuda":
        state.samples.compile()
    runner.xshare = state
    runner.xshare_protected = ProtectedRequests(state.sizes.most, lambda: ())
    runner.forward = _watch_steps(runner, state)
    log.info(
        "xshare: %s on %d layers (SGLang %s: %s)", state.policy, len(state.layers), sglang_version(), verification()
    )


def make_state(runner: Any, settings: Settings, device: torch.device) -> State:
    """The state for the runner's model. Its layers are not attached yet."""
    args = runner.server_args
    rows_per_request = int(runner.decode_num_tokens_per_req())
    max_requests = min(args.max_running_requests or MAX_ROWS, MAX_ROWS)
    captured = [size * rows_per_request for size in captured_sizes(args)] if device.type == "cuda" else []
    sizes = Sizes(min(settings.gates.max_rows, max_requests * rows_per_request), rows_per_request - 1, captured)
    model = runner.model_config.hf_text_config
    if settings.profile is not None:
        read_profile(Path(settings.profile)).check_model(model)
    sites = find_layers(runner.model, settings, device)
    stairs = None if settings.cost is None else read_stairs(Path(settings.cost))
    if stairs is not None:
        stairs.check_conditions(staircase_conditions(runner, sites))
    return build_state(sites, settings, device, sizes, MAX_ROWS, stairs, make_layers, log)


def captured_sizes(args: Any) -> list[int]:
    """Numbers of requests for which decode graphs are captured; a step is padded to one of them."""
    decode = getattr(getattr(args, "cuda_graph_config", None), "decode", None)
    return list(getattr(decode, "bs", None) or ())


def _watch_steps(runner: Any, state: State) -> Callable[..., Any]:
    """Around ModelRunner.forward, which runs every step of the target model, eager or as a replayed graph, on the same
    stream as this. `DecodeCudaGraphRunner.load_batch` would be too early: speculation calls it ahead, on another
    stream, while the step before is still running."""
    native, unchecked = runner.forward, list(state.layers)

    def forward(forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        protected: ProtectedRequests = runner.xshare_protected
        exact = protected.of(forward_batch.rids) if protected.exact and forward_batch.rids else None
        decoding, starts, on_device = rows_of(forward_batch, state)
        if starts is None:
            state.bypass("mismatch")
        else:
            state.step(decoding, starts, on_device, exact)
        output = native(forward_batch, *args, **kwargs)
        if unchecked:
            check_called(unchecked)
            unchecked.clear()
        return output

    return forward


def check_called(layers: list[Any]) -> None:
    """After the first pass: refuse layers whose TopK was not called. They route past it, and would never be pruned."""
    passed_by: list[Layer] = [layer for layer in layers if not layer.called]
    if passed_by:
        names = ", ".join(layer.site.name for layer in passed_by)
        raise SettingsError(f"xshare is attached to {names}, whose routing passes it by: leave them out with layers")


def rows_of(batch: Any, state: State) -> tuple[bool, Array | None, Tensor | None]:
    """Whether a ForwardBatch only decodes; where each request's rows begin, None where only the device knows; and the
    same in device memory, where the host's boundaries may differ from it."""
    requests, mode = int(batch.batch_size), batch.forward_mode
    if mode.is_target_verify():
        spec = batch.spec_info
        layout = getattr(spec, "ragged_verify_layout", None)
        if layout is not None:
            if layout.verify_lens_cpu is None:
                return True, None, None
            return True, boundaries(layout.verify_lens_cpu), layout.qo_indptr_device
        return True, boundaries([int(spec.draft_token_num)] * requests), None
    return bool(mode.is_decode_or_idle()), state.one_row_per_request(requests), None


def boundaries(rows: list[int]) -> Array:
    """Where each request begins, from its number of rows: int32 [requests + 1]."""
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(rows, out=starts[1:])
    return starts
