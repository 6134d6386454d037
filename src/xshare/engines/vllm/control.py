"""Live control through LLM.collective_rpc.

    llm.collective_rpc("xshare_stats")
    llm.collective_rpc("xshare_switch", args=(False,))
    llm.collective_rpc("xshare_set", args=("k0=1,m=8",))
    llm.collective_rpc("xshare_set", args=("k0=1,m=4,ml=0:8/3:6",))  # another m in some layers
    llm.collective_rpc("xshare_cost", args=(False,))  # costs do not count

A worker answers a call that it refuses with {"error": sentence}. Over HTTP the caller gets that answer; in Python
LLM.collective_rpc raises it. An exception would leave a traceback in the log of every process on its way.

Blocks decoded under pruning stay in the prefix cache, and later requests would use them. So every call that changes
selection resets that cache in the engine core, and running requests are computed again.
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
UNSENDABLE = (
    OverflowError,
    TypeError,
    ValueError,
    RecursionError,
)  # such as numbers beyond 64 bits or text that is not UTF-8


class Refused(SettingsError, PolicyError):
    """A worker has refused a call. Only the sentence of its error crosses processes."""


def is_ours(method: Any) -> bool:
    return isinstance(method, str) and method.startswith("xshare_")


def check_sendable(what: str, value: Any) -> None:
    """Refuse what vLLM cannot send from process to process: it would end the sending thread, and the caller and all
    requests would wait forever."""
    import msgspec

    try:
        msgspec.msgpack.encode(value)
    except UNSENDABLE as error:
        raise SettingsError(f"{what} cannot be sent: {str(error).splitlines()[0]}") from None


def add_worker_methods(worker_class: Any) -> None:
    """Add the methods that collective_rpc calls by name to a worker."""

    def state_of(worker: Any) -> Any:
        state = getattr(getattr(worker, "model_runner", None), "xshare", None)
        if state is None:
            raise SettingsError("xshare is not active in this engine: start it with an xshare key in additional_config")
        return state

    def xshare_stats(self: Any) -> dict[str, Any]:
        """This worker's policy and counters."""
        stats: dict[str, Any] = state_of(self).stats()
        return stats

    def xshare_set(self: Any, policy: str | dict[str, Any]) -> bool:
        """Use a policy, a string or its fields, from the next step on; whether that is a change."""
        return bool(state_of(self).set_policy(policy))

    def xshare_switch(self: Any, on: bool) -> bool:
        """Turn selection on or off from the next step on; whether that is a change."""
        return bool(state_of(self).switch(on))

    def xshare_cost(self: Any, on: bool) -> bool:
        """Count the costs of the engine's staircase, or do not; whether that is a change."""
        return bool(state_of(self).weigh_costs(on))

    def xshare_count(self: Any, every: int | None) -> None:
        """Count experts in one of so many steps from now on; None: as the engine was started."""
        state_of(self).count_every(every)

    def xshare_force(self: Any) -> None:
        """For `xshare quality`: from now on force the tokens of known answers, and compare the logits."""
        from xshare.engines.vllm.teacher_forcing import Forcing

        state = state_of(self)
        state.forcing = Forcing(self.model_runner.get_model(), state.device)

    def xshare_forced(self: Any) -> dict[str, Any]:
        """End what `xshare_force` began; the sums of the comparison."""
        state = state_of(self)
        if state.forcing is None:
            raise SettingsError("xshare_forced ends what xshare_force has begun, and nothing is forced")
        sums: dict[str, Any] = state.forcing.end()
        state.forcing = None
        return sums

    methods = (xshare_stats, xshare_set, xshare_switch, xshare_cost, xshare_count, xshare_force, xshare_forced)
    for method in methods:
        setattr(worker_class, method.__name__, errors_as_answers(method))


def errors_as_answers(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which returns {"error": sentence} where a user's mistake would raise."""
    signature, name = inspect.signature(method), method.__name__

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                takes = ", ".join([*signature.parameters][1:]) or "nothing"
                raise SettingsError(f"{name} takes {takes}: {error}") from None
            answer = method(*args, **kwargs)
            check_sendable(f"what {name} has to say", answer)
            return answer
        except XShareError as error:
            return {"error": str(error)}

    return call


def reset_after_changes(core_class: Any) -> None:
    """Wrap EngineCore.collective_rpc, through which every change comes, in process or from another."""
    native = core_class.collective_rpc

    @wraps(native)
    def collective_rpc(self: Any, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None) -> Any:
        if not is_ours(method):
            return native(self, method, timeout, args, kwargs)
        try:
            check_call(method, timeout, args, kwargs)
            answers = call_and_reset(self, method, timeout, args, kwargs)
        except XShareError as error:
            answers = [{"error": str(error)}]
        if (sentence := refusal(answers)) is not None:
            log.warning("xshare: %s is refused: %s", method, sentence)
        return answers

    def call_and_reset(self: Any, method: str, *arguments: Any) -> Any:
        if method not in CHANGES:
            return native(self, method, *arguments)
        config = self.vllm_config
        caching = config.cache_config.enable_prefix_caching or config.kv_transfer_config is not None
        if caching and self.scheduler.has_unfinished_requests() and loses_output(config):
            raise SettingsError(
                f"vLLM {vllm_version()} loses tokens of requests with drafts that are computed again, as {method} has "
                f"them: wait until none is running, or start the engine with --no-enable-prefix-caching"
            )
        answers = native(self, method, *arguments)
        if caching and any(changed is True for changed in answers):
            reset_cache(self)
        return answers

    core_class.collective_rpc = collective_rpc


def check_call(method: str, timeout: Any, args: Any, kwargs: Any) -> None:
    """Refuse a malformed call before it reaches a worker: over HTTP anything may come."""
    if method not in METHODS:
        raise SettingsError(f"{short_repr(method)} is no method of xshare: it has {', '.join(METHODS)}")
    if not isinstance(args, list | tuple):
        raise SettingsError(f"args of {method} must be a list, not {short_repr(args)}")
    if not isinstance(kwargs, Mapping | None):
        raise SettingsError(f"kwargs of {method} must be an object, not {short_repr(kwargs)}")
    if timeout is not None and (not isinstance(timeout, int | float) or isinstance(timeout, bool)):
        raise SettingsError(f"timeout of {method} must be a number of seconds, not {short_repr(timeout)}")


def raise_refusals(engine_class: Any) -> None:
    """Wrap LLMEngine.collective_rpc, which LLM calls: in Python a refusal is raised."""
    native = engine_class.collective_rpc

    @wraps(native)
    def collective_rpc(self: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        answers = native(self, method, *args, **kwargs)
        if is_ours(method) and (sentence := refusal(answers)) is not None:
            raise Refused(sentence)
        return answers

    engine_class.collective_rpc = collective_rpc


def answer_refusals(engine_class: Any) -> None:
    """Wrap AsyncLLM.collective_rpc, which the server calls: arguments that cannot be sent are answered with an error.
    With data parallelism there is an engine per rank, and vLLM returns the answers of the first. Here all answer."""
    native = engine_class.collective_rpc

    @wraps(native)
    async def collective_rpc(
        self: Any, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None, **others: Any
    ) -> Any:
        if not is_ours(method):
            return await native(self, method, timeout, args, kwargs, **others)
        try:
            check_sendable(f"what {short_repr(method)} is given", [timeout, args, kwargs])
        except XShareError as error:
            return [{"error": str(error)}]
        core: Any = getattr(self, "engine_core", None)
        engines = getattr(core, "core_engines", ())
        if len(engines) < 2:
            return await native(self, method, timeout, args, kwargs, **others)

        async def ask(method: str, timeout: Any, args: Any, kwargs: Any) -> list[list[Any]]:
            """The answers of each engine's workers."""
            calls = [
                core._call_utility_async("collective_rpc", method, timeout, args, kwargs, engine=engine)
                for engine in engines
            ]
            return list(await asyncio.gather(*calls))

        return await call_all_engines(ask, method, timeout, args, kwargs)

    engine_class.collective_rpc = collective_rpc


async def call_all_engines(ask: Callable[..., Awaitable[list[list[Any]]]], method: str, *arguments: Any) -> list[Any]:
    """The answers of the workers of all data-parallel ranks. A change that some ranks refuse is undone on the others,
    so that it reaches all or none."""
    before = await ask("xshare_stats", None, (), {}) if method in CHANGES else []
    answers = await ask(method, *arguments)
    refused = [sentence for workers in answers if (sentence := refusal(workers)) is not None]
    if refused and len(refused) < len(answers) and before:
        stats = before[0][0]
        key = {"xshare_set": "policy", "xshare_switch": "on", "xshare_cost": "cost"}[method]
        await ask(method, None, (stats[key],), {})
        return [{"error": f"{refused[0]} (some ranks refused this, so it was undone on all of them)"}]
    return [answer for workers in answers for answer in workers]


def loses_output(config: Any) -> bool:
    """Before 0.29, vLLM counts a request's output in flight in tokens and discards it in steps."""
    old = tuple(map(int, vllm_version().split(".")[:2])) < (0, 29)
    return old and config.speculative_config is not None and bool(config.scheduler_config.async_scheduling)


def reset_cache(core: Any) -> None:
    """Forget cached blocks, which were computed under the old policy. Running requests are computed again."""
    # A connector would bring back the blocks that it has copied elsewhere.
    connector = {"reset_connector": True} if core.vllm_config.kv_transfer_config is not None else {}
    try:
        done = core.reset_prefix_cache(**connector)
        done = done or core.reset_prefix_cache(reset_running_requests=True, **connector)
    except RuntimeError as error:  # a connector may hold blocks for a while
        done = False
        log.warning("xshare: %s", error)
    if not done:
        log.warning("xshare: the prefix cache was not reset: requests may still use blocks from before the change")
