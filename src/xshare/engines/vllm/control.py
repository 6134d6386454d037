"""Live control through LLM.collective_rpc.

    llm.collective_rpc("xshare_stats")
    llm.collective_rpc("xshare_switch", args=(False,))
    llm.collective_rpc("xshare_set", args=("k0=1,m=8",))
    llm.collective_rpc("xshare_set", args=("k0=1,m=4,ml=0:8/3:6",))  # another m in some layers
    llm.collective_rpc("xshare_cost", args=(False,))  # sizes of sets are not weighed by what they cost

What cannot be done is an answer, {"error": sentence}, from the worker on: over HTTP it arrives so, and in Python
LLM.collective_rpc raises it. An exception would leave a traceback in the log of every process on its way.

Blocks decoded under pruning stay in the prefix cache, and would carry it into later requests: whatever turns selection
on or off or changes it resets that cache, in the engine core, and running requests are computed again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any

from xshare.engines.client import refusal
from xshare.engines.serving.settings import SettingsError
from xshare.engines.vllm.compatibility import vllm_version
from xshare.errors import PolicyError, XShareError, short_repr

log = logging.getLogger("vllm.xshare")
CHANGES = ("xshare_set", "xshare_switch", "xshare_cost")
METHODS = (*CHANGES, "xshare_stats", "xshare_count", "xshare_force", "xshare_forced")
UNSENDABLE = (OverflowError, TypeError, ValueError, RecursionError)  # numbers beyond 64 bits, text that is none


class Refused(SettingsError, PolicyError):
    """What a worker has refused: of the error that it was there, the sentence has come."""


def is_ours(method: Any) -> bool:
    return isinstance(method, str) and method.startswith("xshare_")


def check_sendable(what: str, value: Any) -> None:
    """Refuse what vLLM cannot send from process to process: it would end the thread that sends, and leave whoever asked
    waiting for good, and all requests with him."""
    import msgspec

    try:
        msgspec.msgpack.encode(value)
    except UNSENDABLE as error:
        raise SettingsError(f"{what} cannot be sent: {str(error).splitlines()[0]}") from None


def add_worker_methods(worker_class: Any) -> None:
    """What collective_rpc finds on a worker, by name."""

    def state_of(worker: Any) -> Any:
        state = getattr(getattr(worker, "model_runner", None), "xshare", None)
        if state is None:
            raise SettingsError("xshare is not active in this engine: start it with an xshare key in additional_config")
        return state

    def xshare_stats(self: Any) -> dict[str, Any]:
        """What this worker does and has counted."""
        found: dict[str, Any] = state_of(self).stats()
        return found

    def xshare_set(self: Any, policy: str | dict[str, Any]) -> bool:
        """Another policy from the next step on, as a string or as its fields; whether it is another."""
        return bool(state_of(self).set_policy(policy))

    def xshare_switch(self: Any, on: bool) -> bool:
        """Selection on or off from the next step on; whether that is a change."""
        return bool(state_of(self).switch(on))

    def xshare_cost(self: Any, on: bool) -> bool:
        """Whether sets are weighed by the staircase that the engine was started with; whether that is a change."""
        return bool(state_of(self).weigh_costs(on))

    def xshare_count(self: Any, every: int | None) -> None:
        """Experts are counted in one of so many steps from now on; None: as the engine was started with."""
        state_of(self).count_every(every)

    def xshare_force(self: Any) -> None:
        """For `xshare quality`: tokens of known answers are forced from now on, and compared."""
        from xshare.engines.vllm.teacher_forcing import Forcing

        state = state_of(self)
        state.forcing = Forcing(self.model_runner.get_model(), state.device)

    def xshare_forced(self: Any) -> dict[str, Any]:
        """Ends what `xshare_force` has begun, with what it came to."""
        state = state_of(self)
        if state.forcing is None:
            raise SettingsError("xshare_forced ends what xshare_force has begun, and nothing is forced")
        found: dict[str, Any] = state.forcing.end()
        state.forcing = None
        return found

    methods = (xshare_stats, xshare_set, xshare_switch, xshare_cost, xshare_count, xshare_force, xshare_forced)
    for method in methods:
        setattr(worker_class, method.__name__, answering(method))


def answering(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with an answer in place of an error that a user can cause."""
    signature, name = inspect.signature(method), method.__name__

    @wraps(method)
    def answered(*args: Any, **kwargs: Any) -> Any:
        try:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                takes = ", ".join([*signature.parameters][1:]) or "nothing"
                raise SettingsError(f"{name} takes {takes}: {error}") from None
            found = method(*args, **kwargs)
            check_sendable(f"what {name} has to say", found)
            return found
        except XShareError as error:
            return {"error": str(error)}

    return answered


def reset_after_changes(core_class: Any) -> None:
    """Wrap EngineCore.collective_rpc, through which every change comes, in process or not."""
    native = core_class.collective_rpc

    @wraps(native)
    def collective_rpc(self: Any, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None) -> Any:
        if not is_ours(method):
            return native(self, method, timeout, args, kwargs)
        try:
            check_call(method, timeout, args, kwargs)
            found = changed(self, method, timeout, args, kwargs)
        except XShareError as error:
            found = [{"error": str(error)}]
        if (sentence := refusal(found)) is not None:
            log.warning("xshare: %s is refused: %s", method, sentence)
        return found

    def changed(self: Any, method: str, *given: Any) -> Any:
        if method not in CHANGES:
            return native(self, method, *given)
        config = self.vllm_config
        caching = config.cache_config.enable_prefix_caching or config.kv_transfer_config is not None
        if caching and self.scheduler.has_unfinished_requests() and loses_output(config):
            raise SettingsError(
                f"vLLM {vllm_version()} loses tokens of requests with drafts that are computed again, as {method} has "
                f"them: wait until none is running, or start the engine with --no-enable-prefix-caching"
            )
        found = native(self, method, *given)
        if caching and any(each is True for each in found):
            reset(self)
        return found

    core_class.collective_rpc = collective_rpc


def check_call(method: str, timeout: Any, args: Any, kwargs: Any) -> None:
    """Refuse what could not even reach a worker: over HTTP anything may be asked."""
    if method not in METHODS:
        raise SettingsError(f"{short_repr(method)} is no method of xshare: it has {', '.join(METHODS)}")
    if not isinstance(args, list | tuple):
        raise SettingsError(f"args of {method} must be a list, not {short_repr(args)}")
    if not isinstance(kwargs, Mapping | None):
        raise SettingsError(f"kwargs of {method} must be an object, not {short_repr(kwargs)}")
    if timeout is not None and (not isinstance(timeout, int | float) or isinstance(timeout, bool)):
        raise SettingsError(f"timeout of {method} must be a number of seconds, not {short_repr(timeout)}")


def raise_refusals(engine_class: Any) -> None:
    """Wrap LLMEngine.collective_rpc, which is LLM's, in process or not: in Python an error is raised."""
    native = engine_class.collective_rpc

    @wraps(native)
    def collective_rpc(self: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        found = native(self, method, *args, **kwargs)
        if is_ours(method) and (sentence := refusal(found)) is not None:
            raise Refused(sentence)
        return found

    engine_class.collective_rpc = collective_rpc


def answer_refusals(engine_class: Any) -> None:
    """Wrap AsyncLLM.collective_rpc, which is the server's: what cannot be sent on is answered. With data parallelism
    there is an engine for each rank, and vLLM hands on what the first of them says: here it is what all say."""
    native = engine_class.collective_rpc

    @wraps(native)
    async def collective_rpc(
        self: Any, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None, **more: Any
    ) -> Any:
        if not is_ours(method):
            return await native(self, method, timeout, args, kwargs, **more)
        try:
            check_sendable(f"what {short_repr(method)} is given", [timeout, args, kwargs])
        except XShareError as error:
            return [{"error": str(error)}]
        core: Any = getattr(self, "engine_core", None)
        engines = getattr(core, "core_engines", ())
        if len(engines) < 2:
            return await native(self, method, timeout, args, kwargs, **more)

        async def ask(method: str, timeout: Any, args: Any, kwargs: Any) -> list[list[Any]]:
            """-> by engine, what its workers answer"""
            calls = [
                core._call_utility_async("collective_rpc", method, timeout, args, kwargs, engine=each)
                for each in engines
            ]
            return list(await asyncio.gather(*calls))

        return await of_all_engines(ask, method, timeout, args, kwargs)

    engine_class.collective_rpc = collective_rpc


async def of_all_engines(ask: Callable[..., Awaitable[list[list[Any]]]], method: str, *given: Any) -> list[Any]:
    """The answers of the workers of all data-parallel ranks. A change that some of them refuse is undone on the others:
    it reaches all or none."""
    before = await ask("xshare_stats", None, (), {}) if method in CHANGES else []
    answers = await ask(method, *given)
    refused = [sentence for each in answers if (sentence := refusal(each)) is not None]
    if refused and len(refused) < len(answers) and before:
        was = before[0][0]
        undo = {"xshare_set": "policy", "xshare_switch": "on", "xshare_cost": "cost"}[method]
        await ask(method, None, (was[undo],), {})
        return [{"error": f"{refused[0]} (some ranks refused this, so it was undone on all of them)"}]
    return [answer for each in answers for answer in each]


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
