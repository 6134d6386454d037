"""The entry point of the group `sglang.srt.plugins`: SGLang calls `register` in each of its processes.

SGLang logs an error in a plugin or in applying its hooks, and continues without them. Nobody would notice an engine
that should prune and does not. So the start is refused in three places:

- here, by an exception that SGLang does not catch, if the settings are wrong or a hook was not applied;
- in the scheduler, if its model has no selection attached;
- in the process that started the scheduler, if the scheduler does not report that selection is attached.
"""

from __future__ import annotations

from typing import Any

from xshare.engines.sglang.refused_start import refuse
from xshare.engines.sglang.settings import settings_of_environment
from xshare.errors import XShareError


def register() -> None:
    """Changes nothing unless the environment variable is set."""
    try:
        if settings_of_environment() is None:
            return
        from xshare.engines.sglang.compatibility import check_signatures

        check_signatures()
    except XShareError as error:
        refuse(error)
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from xshare.engines.sglang.control import add_methods
    from xshare.engines.sglang.wrapped_functions import HOOKS

    add_methods(Scheduler)

    for target, hook in HOOKS.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    _refuse_missing_hooks(HookRegistry, list(HOOKS))


def _refuse_missing_hooks(registry: Any, targets: list[str]) -> None:
    """SGLang applies all hooks when the last plugin has been loaded."""
    native = registry.apply_hooks

    def apply_hooks() -> None:
        native()
        if missing := [target for target in targets if target not in registry._patched]:
            refuse(f"SGLang has not put a hook in place at {', '.join(missing)}: its log says why")

    registry.apply_hooks = apply_hooks
