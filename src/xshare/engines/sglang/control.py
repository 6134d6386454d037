"""Live control through SGLang's own endpoints for a scheduler's state, which its admin key guards.

    POST /set_internal_state  {"server_args": {"xshare_switch": 0}}
    POST /set_internal_state  {"server_args": {"xshare_set k0=1,m=8": 1}}
    POST /set_internal_state  {"server_args": {"xshare_count": 4}}
    GET  /server_info         internal_states[0].xshare: the counters, and the sentence of the last refusal

Values there are numbers, so a policy is part of the name. xshare_count counts experts in one of so many steps; 0 means
as the engine was started.

In Python the methods have the same names: `engine.collective_rpc("xshare_set", policy="k0=1,m=8")`.

Blocks decoded under pruning stay in the radix cache, and later requests would use them. So every call that changes
selection flushes that cache, and running requests are computed again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from xshare.engines.serving.settings import SettingsError
from xshare.engines.serving.state import State
from xshare.engines.serving.step_check import Witness
from xshare.errors import XShareError, short_repr

log = logging.getLogger("xshare.sglang")
NAMES = ("xshare_set", "xshare_switch", "xshare_cost", "xshare_count", "xshare_check")


def state_of(scheduler: Any) -> State:
    """The state, once no step is running. Steps run on a stream of their own, which this stream does not wait for: so
    the device is synchronised."""
    state: State = scheduler.tp_worker.model_runner.xshare
    if state.device.type == "cuda":
        torch.cuda.synchronize()
    return state


# Methods that collective_rpc calls on a scheduler by name


def xshare_set(self: Any, policy: str | dict[str, Any]) -> None:
    _reset_if(self, state_of(self).set_policy(policy))


def xshare_switch(self: Any, on: bool) -> None:
    _reset_if(self, state_of(self).switch(on))


def xshare_cost(self: Any, on: bool) -> None:
    _reset_if(self, state_of(self).weigh_costs(on))


def xshare_count(self: Any, every: int | None) -> None:
    state_of(self).count_every(every)


def xshare_check(self: Any, on: bool) -> None:
    """Compare every step's sets with the reference's, which is slow; or stop doing so."""
    state = state_of(self)
    if state.samples is None:
        raise SettingsError("xshare_check needs an engine that counts: start it with metrics")
    if (witness := getattr(self, "xshare_witness", None)) is not None:
        witness.end()
    self.xshare_witness = Witness(state) if on else None
    state.count_every(1 if on else None)


METHODS = (xshare_set, xshare_switch, xshare_cost, xshare_count, xshare_check)


def add_methods(scheduler_class: Any) -> None:
    for method in METHODS:
        setattr(scheduler_class, method.__name__, method)


# Over HTTP


def report_state(native: Callable[..., Any], self: Any, recv_req: Any) -> Any:
    """Around Scheduler.get_internal_state."""
    out = native(self, recv_req)
    witness = getattr(self, "xshare_witness", None)
    out.internal_state["xshare"] = {
        **state_of(self).stats(),
        "refused": getattr(self, "xshare_refused", None),
        "checked": None if witness is None else witness.summary(),
    }
    return out


def change_state(native: Callable[..., Any], self: Any, recv_req: Any) -> Any:
    """Around Scheduler.set_internal_state."""
    changes = recv_req.server_args
    if not any(name.startswith("xshare") for name in changes):
        return native(self, recv_req)
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    try:
        self.xshare_refused = None
        if len(changes) > 1:
            raise SettingsError(f"xshare is changed by one name at a time, not by {', '.join(changes)}")
        for name, value in changes.items():
            apply_change(self, name, value)
    except XShareError as error:
        self.xshare_refused = str(error)
        log.warning("xshare: %s is refused: %s", short_repr(", ".join(changes)), error)
    return SetInternalStateReqOutput(updated=self.xshare_refused is None)


def apply_change(scheduler: Any, name: str, value: float) -> None:
    method, _, policy = name.partition(" ")
    if method not in NAMES or (policy and method != "xshare_set"):
        raise SettingsError(f"{short_repr(name)} is no name that xshare takes: those are {', '.join(NAMES)}")
    if method == "xshare_set":
        if not policy:
            raise SettingsError("xshare_set takes a policy behind a blank, as in 'xshare_set k0=1,m=8'")
        xshare_set(scheduler, policy)
    elif method == "xshare_count":
        xshare_count(scheduler, value if value else None)  # type: ignore[arg-type]  # it refuses what is no whole number
    elif value not in (0, 1):
        raise SettingsError(f"{method} takes 0 or 1, not {value!r}")
    else:
        switches = {"xshare_switch": xshare_switch, "xshare_cost": xshare_cost, "xshare_check": xshare_check}
        switches[method](scheduler, bool(value))


# The radix cache


def _reset_if(scheduler: Any, changed: bool) -> None:
    if changed and not scheduler.server_args.disable_radix_cache:
        reset_cache(scheduler)


def reset_cache(scheduler: Any) -> None:
    """Forget cached blocks, which were computed under the old policy. Running requests are computed again."""
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

    if scheduler.is_fully_idle():
        done = scheduler.flush_cache(empty_cache=False)
    else:
        paused = scheduler._engine_paused  # by another caller: it stays paused
        scheduler.pause_generation(PauseGenerationReqInput(mode="retract"))
        # Waiting requests hold no blocks, but 0.5.16 does not flush while there are any.
        waiting, scheduler.waiting_queue = scheduler.waiting_queue, []
        done = scheduler.flush_cache(empty_cache=False)
        scheduler.waiting_queue = waiting
        if not paused:
            scheduler.continue_generation(ContinueGenerationReqInput())
    if not done:
        log.warning("xshare: the radix cache was not flushed: requests may still use blocks from before the change")
