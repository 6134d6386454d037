"""The entry point of the group `sglang.srt.plugins`: SGLang calls `register` in each of its processes.

SGLang logs whatever goes wrong in a plugin or in putting its hooks in place, and goes on without them. An engine that
was told to prune and does not would go unnoticed, so here the start is refused three times over: by an exception that
SGLang does not catch where the settings are wrong or a hook was not put in place; by the scheduler where its model
has no selection attached; and by the process that started the scheduler where that does not say so.
"""

from __future__ import annotations

from typing import Any

from xshare.engines.sglang.refused_start import refuse
from xshare.engines.sglang.settings import settings_of_environment
from xshare.errors import XShareError


def register() -> None:
    """Without the variable nothing is touched."""
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
    _refuse_what_is_not_put(HookRegistry, list(HOOKS))


def _refuse_what_is_not_put(registry: Any, targets: list[str]) -> None:
    """SGLang puts all hooks in place when the last plugin has been loaded."""
    native = registry.apply_hooks

    def apply_hooks() -> None:
        native()
        if missing := [target for target in targets if target not in registry._patched]:
            refuse(f"SGLang has not put a hook in place at {', '.join(missing)}: its log says why")

    registry.apply_hooks = apply_hooks
