"""The wrappers around SGLang's functions, and which function each one wraps."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from xshare.engines.serving.settings import SettingsError
from xshare.engines.sglang import control, protection
from xshare.engines.sglang.compatibility import check_server
from xshare.engines.sglang.metrics import start_reporter
from xshare.engines.sglang.refused_start import refuse
from xshare.engines.sglang.runner import attach
from xshare.engines.sglang.settings import settings_of_environment
from xshare.errors import XShareError

Native = Callable[..., Any]


def check_early(native: Native, server_args: Any, *args: Any, **kwargs: Any) -> Any:
    """In the process that starts the others, before it starts them."""
    try:
        if (settings := settings_of_environment()) is not None:
            check_server(server_args, settings)
    except XShareError as error:
        refuse(error)
    return native(server_args, *args, **kwargs)


def check_attached(native: Native, *args: Any, **kwargs: Any) -> Any:
    """In the same process: refuse schedulers that do not report XShare when they are ready."""
    infos = native(*args, **kwargs)
    if any("xshare" not in info for info in infos):
        from sglang.srt.utils import kill_process_tree

        kill_process_tree(os.getpid(), include_parent=False)
        refuse("a scheduler is ready and says nothing of xshare: its hooks were not put in place there")
    return infos


def attach_after_loading(native: Native, self: Any, *args: Any, **kwargs: Any) -> Any:
    loaded = native(self, *args, **kwargs)
    attach(self)
    return loaded


def report_attached(native: Native, self: Any, *args: Any, **kwargs: Any) -> Any:
    """The scheduler is ready: drop what warm-up counted, and report that selection is attached."""
    info = native(self, *args, **kwargs)
    state = getattr(self.tp_worker.model_runner, "xshare", None)
    if state is None:
        raise SettingsError("xshare is not attached to the model that this scheduler runs: report this version")
    state.tally.clear()
    if state.samples is not None:
        state.samples.restart(clear=True)
    start_reporter(self, state)
    return {**info, "xshare": {"policy": str(state.policy), "layers": len(state.layers)}}


SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
HOOKS: dict[str, Native] = {
    "sglang.srt.entrypoints.engine._set_envs_and_config": check_early,
    "sglang.srt.entrypoints.engine._wait_for_scheduler_ready": check_attached,
    "sglang.srt.model_executor.model_runner.ModelRunner.load_model": attach_after_loading,
    f"{SCHEDULER}.get_init_info": report_attached,
    f"{SCHEDULER}.get_internal_state": control.report_state,
    f"{SCHEDULER}.set_internal_state": control.change_state,
    f"{SCHEDULER}._add_request_to_queue": protection.keep_blocks_apart,
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request": protection.refuse_early,
}
