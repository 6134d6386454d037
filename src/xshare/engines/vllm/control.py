"""Live control through LLM.collective_rpc.

    llm.collective_rpc("xshare_stats")
    llm.collective_rpc("xshare_switch", args=(False,))
    llm.collective_rpc("xshare_set", args=("k0=1,m=8",))
    llm.collective_rpc("xshare_set", args=("k0=1,m=4,ml=0:8/3:6",))  # another m in some layers
    llm.collective_rpc("xshare_cost", args=(False,))  # sizes of sets are not weighed by what they cost

Blocks decoded under pruning stay in the prefix cache, and would carry it into later requests: whatever turns selection
on or off or changes it resets that cache, in the engine core, and running requests are computed again.
"""

from __future__ import annotations

import logging
from functools import wraps
from typing import Any

from xshare.engines.vllm.compatibility import vllm_version
from xshare.engines.vllm.settings import SettingsError

log = logging.getLogger("vllm.xshare")
CHANGES = ("xshare_set", "xshare_switch", "xshare_cost")


def add_worker_methods(worker_class: Any) -> None:
    """What collective_rpc finds on a worker, by name."""

    def state_of(worker: Any) -> Any:
        state = getattr(getattr(worker, "model_runner", None), "xshare", None)
        if state is None:
            raise SettingsError("xshare is not active in this engine: start it with an xshare key in additional_config")
        return state

    def xshare_stats(self: Any) -> dict[str, Any]:
        found: dict[str, Any] = state_of(self).stats()
        return found

    def xshare_set(self: Any, policy: str | dict[str, Any]) -> bool:
        return bool(state_of(self).set_policy(policy))

    def xshare_switch(self: Any, on: bool) -> bool:
        return bool(state_of(self).switch(on))

    def xshare_cost(self: Any, on: bool) -> bool:
        return bool(state_of(self).weigh_costs(on))

    def xshare_count(self: Any, every: int | None) -> None:
        """Experts are counted in one of so many steps from now on; None: as the engine was started with."""
        state_of(self).count_every(every)

    def xshare_force(self: Any) -> None:
        from xshare.engines.vllm.forced import Forcing

        state = state_of(self)
        state.forcing = Forcing(self.model_runner.get_model(), state.device)

    def xshare_forced(self: Any) -> dict[str, Any]:
        state = state_of(self)
        if state.forcing is None:
            raise SettingsError("xshare_forced ends what xshare_force has begun, and nothing is forced")
        found: dict[str, Any] = state.forcing.end()
        state.forcing = None
        return found

    methods = (xshare_stats, xshare_set, xshare_switch, xshare_cost, xshare_count, xshare_force, xshare_forced)
    for method in methods:
        setattr(worker_class, method.__name__, method)


def reset_after_changes(core_class: Any) -> None:
    """Wrap EngineCore.collective_rpc, through which every change comes, in process or not."""
    native = core_class.collective_rpc

    @wraps(native)
    def collective_rpc(self: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        if method not in CHANGES:
            return native(self, method, *args, **kwargs)
        config = self.vllm_config
        caching = config.cache_config.enable_prefix_caching or config.kv_transfer_config is not None
        if caching and self.scheduler.has_unfinished_requests() and loses_output(config):
            raise SettingsError(
                f"vLLM {vllm_version()} loses tokens of requests with drafts that are computed again, as {method} has "
                f"them: wait until none is running, or start the engine with --no-enable-prefix-caching"
            )
        changed = native(self, method, *args, **kwargs)
        if caching and any(changed):
            reset(self)
        return changed

    core_class.collective_rpc = collective_rpc


def loses_output(config: Any) -> bool:
    """Before 0.29, what a request has in flight is counted in tokens and thrown away in steps."""
    old = tuple(map(int, vllm_version().split(".")[:2])) < (0, 29)
    return old and config.speculative_config is not None and bool(config.scheduler_config.async_scheduling)


def reset(core: Any) -> None:
    """Forget cached blocks, which were made under the old policy; running requests' are computed again."""
    # Blocks that a connector has taken elsewhere come back from there.
    connector = {"reset_connector": True} if core.vllm_config.kv_transfer_config is not None else {}
    try:
        done = core.reset_prefix_cache(**connector)
        done = done or core.reset_prefix_cache(reset_running_requests=True, **connector)
    except RuntimeError as error:  # a connector may hold blocks for a while
        done = False
        log.warning("xshare: %s", error)
    if not done:
        log.warning("xshare: the prefix cache was not reset: requests may still use blocks from before the change")
