"""Protected requests: how a request asks for its native experts, who may, and which rows of a step are theirs.

    SamplingParams(extra_args={"xshare": "exact"})      in Python
    {"vllm_xargs": {"xshare": "exact"}}                 over HTTP

Three processes of an engine look at it. Where requests come in (vLLM's InputProcessor) a wrong value is refused. In the
engine core a protected request's blocks are kept apart in the prefix cache. In the worker its rows are marked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from functools import cache, wraps
from typing import Any

from xshare.engines.serving.protection import EXACT, KEY, SALT, SHARED, ProtectedRequests, means_exact
from xshare.engines.serving.settings import Settings
from xshare.engines.vllm.settings import settings_of
from xshare.errors import XShareError

log = logging.getLogger("vllm.xshare")


class RequestError(XShareError):
    """A request that asks for what it cannot have. vLLM's server answers it with 400 and the sentence."""


@cache
def _as_vllm_has_it() -> type[RequestError]:
    """Newer versions take for the client's mistakes those of a class of their own alone."""
    from vllm import exceptions

    base: Any = getattr(exceptions, "VLLMClientError", None)
    return RequestError if base is None else type("RequestError", (RequestError, base), {})


def refusal(sentence: str) -> RequestError:
    return _as_vllm_has_it()(sentence)


def asked(params: Any) -> Any:
    """What a request's sampling parameters say, None where they say nothing."""
    given = getattr(params, "extra_args", None)
    return given.get(KEY) if isinstance(given, dict) else None


def extra_args(protected: bool | None) -> dict[str, Any] | None:
    """With which sampling parameters ask for protection, or against it; None says nothing."""
    return None if protected is None else {KEY: EXACT if protected else SHARED}


def is_exact(params: Any, settings: Settings) -> bool:
    """Whether a request is protected. vLLM's Rust front end checks no value."""
    return params is not None and means_exact(asked(params), settings)


# Where requests come in


def check_request(params: Any, settings: Settings, config: Any) -> None:
    """Refuse a request that asks for something else, or for a protection that it would not have."""
    value = asked(params)
    if value not in (None, EXACT, SHARED):
        raise refusal(f"xshare of a request must be {EXACT!r} or {SHARED!r}, not {value!r}")
    if not is_exact(params, settings):
        return
    if not settings.protect:
        raise refusal(f"xshare of a request cannot be {EXACT!r} here: this engine was started with protect false")
    if config.kv_transfer_config is not None:
        raise refusal(
            f"xshare of a request cannot be {EXACT!r} here: its KV connector may hand it blocks that were decoded "
            f"under pruning"
        )


def check_admitted(request: Any, settings: Settings) -> None:
    """Refuse what is only known of a whole request."""
    if (request.cache_salt or "").startswith(SALT):
        raise refusal(f"cache_salt must not begin with {SALT!r}, which keeps protected requests' blocks apart")
    if getattr(request, "resumable", False) and is_exact(request.sampling_params, settings):
        raise refusal(
            f"xshare of a session whose prompt comes in pieces must be {SHARED!r}: only some of its pieces might be "
            f"{EXACT!r}, and all of them share one cache"
        )


_serving = False  # whether an engine with an xshare key takes requests in this process


def refuse_early(processor: Any) -> None:
    """Wrap vLLM's InputProcessor, through which requests come into an engine, in process or over HTTP."""
    native, make = processor.process_inputs, processor.__init__

    @wraps(make)
    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        global _serving
        self._xshare = settings_of(vllm_config.additional_config)
        _serving = _serving or self._xshare is not None
        make(self, vllm_config, *args, **kwargs)

    @wraps(native)
    def process_inputs(self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        settings: Settings | None = self._xshare
        if settings is None:
            return native(self, request_id, prompt, params, *args, **kwargs)
        check_request(params, settings, self.vllm_config)
        request = native(self, request_id, prompt, params, *args, **kwargs)
        check_admitted(request, settings)
        return request

    processor.__init__, processor.process_inputs = init, process_inputs


def refuse_beams(protocol: Any) -> None:
    """Beam search makes requests of its own, which do not carry what was asked: refuse it rather than forget it."""
    kinds: list[Any] = [each for each in vars(protocol).values() if isinstance(each, type)]
    for request in kinds:
        if "to_beam_search_params" in vars(request):
            request.to_beam_search_params = _refusing(request.to_beam_search_params)


def _refusing(native: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(native)
    def to_beam_search_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _serving and KEY in (getattr(self, "vllm_xargs", None) or {}):
            raise refusal("xshare of a request cannot be chosen with beam search, which does not hand it on")
        return native(self, *args, **kwargs)

    return to_beam_search_params


# In the engine core


def keep_apart(core: Any) -> None:
    """Wrap EngineCore.preprocess_add_request, after which a request's blocks have their names in the prefix cache.

    Blocks that others decode are pruned. A protected request's have names of their own, so it is handed none but those
    of protected requests.
    """
    native = core.preprocess_add_request

    @wraps(native)
    def preprocess_add_request(self: Any, request: Any) -> Any:
        if not hasattr(self, "_xshare"):
            self._xshare = settings_of(self.vllm_config.additional_config)
        settings: Settings | None = self._xshare
        if settings is not None and is_exact(request.sampling_params, settings):
            salt = request.cache_salt or ""
            request.cache_salt = salt if salt.startswith(SALT) else SALT + salt
        return native(self, request)

    core.preprocess_add_request = preprocess_add_request


# In the worker


class Protection(ProtectedRequests):
    """Who is protected, of the requests that a worker has been told of."""

    def __init__(self, settings: Settings, max_requests: int, alive: Callable[[], Container[str]]) -> None:
        super().__init__(max_requests, alive)
        self.settings = settings
        self._said = False

    def follow(self, scheduled: Any) -> None:
        """A step begins, by the scheduler's output. A preempted request stays what it was."""
        if self.exact and scheduled.finished_req_ids:
            self.exact -= scheduled.finished_req_ids
        for new in scheduled.scheduled_new_reqs:
            exact = is_exact(new.sampling_params, self.settings)
            if exact:
                self._say(asked(new.sampling_params))
            self.put(new.req_id, exact)
        self.forget_finished()

    def _say(self, value: Any) -> None:
        if value not in (None, EXACT) and not self._said:
            self._said = True
            log.warning("xshare: a request asks for %r, which nobody has refused: it is protected", value)
