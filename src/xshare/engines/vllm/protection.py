"""Protected requests: how a request asks for its native experts, when it may, and which rows of a step it has.

    SamplingParams(extra_args={"xshare": "exact"})      in Python
    {"vllm_xargs": {"xshare": "exact"}}                 over HTTP

Three processes of an engine look at it. Where requests arrive, vLLM's InputProcessor, a wrong value is refused. The
engine core keeps a protected request's blocks apart in the prefix cache. The worker marks its rows.
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
    """A request asks for what it cannot have. vLLM's server answers with 400 and the sentence."""


@cache
def _error_class() -> type[RequestError]:
    """Newer versions of vLLM answer with 400 only for errors of their own class."""
    from vllm import exceptions

    base: Any = getattr(exceptions, "VLLMClientError", None)
    return RequestError if base is None else type("RequestError", (RequestError, base), {})


def request_error(sentence: str) -> RequestError:
    return _error_class()(sentence)


def requested_protection(params: Any) -> Any:
    """The value in a request's sampling parameters; None where there is none."""
    extra = getattr(params, "extra_args", None)
    return extra.get(KEY) if isinstance(extra, dict) else None


def extra_args(protected: bool | None) -> dict[str, Any] | None:
    """The sampling parameters' extra_args that ask for protection (True) or decline it (False); None asks nothing."""
    return None if protected is None else {KEY: EXACT if protected else SHARED}


def is_exact(params: Any, settings: Settings) -> bool:
    """Whether a request is protected. The value may be unchecked: vLLM's Rust front end does not check it."""
    return params is not None and means_exact(requested_protection(params), settings)


# Where requests arrive


def check_request(params: Any, settings: Settings, config: Any) -> None:
    """Refuse an unknown value, and protection that this engine cannot give."""
    value = requested_protection(params)
    if value not in (None, EXACT, SHARED):
        raise request_error(f"xshare of a request must be {EXACT!r} or {SHARED!r}, not {value!r}")
    if not is_exact(params, settings):
        return
    if not settings.protect:
        raise request_error(f"xshare of a request cannot be {EXACT!r} here: this engine was started with protect false")
    if config.kv_transfer_config is not None:
        raise request_error(
            f"xshare of a request cannot be {EXACT!r} here: its KV connector may hand it blocks that were decoded "
            f"under pruning"
        )


def check_admitted(request: Any, settings: Settings) -> None:
    """Refuse what is only known once vLLM has processed the request."""
    if (request.cache_salt or "").startswith(SALT):
        raise request_error(f"cache_salt must not begin with {SALT!r}, which keeps protected requests' blocks apart")
    if getattr(request, "resumable", False) and is_exact(request.sampling_params, settings):
        raise request_error(
            f"xshare of a session whose prompt comes in pieces must be {SHARED!r}: only some of its pieces might be "
            f"{EXACT!r}, and all of them share one cache"
        )


_serving = False  # whether this process takes requests for an engine with an xshare key


def refuse_early(processor: Any) -> None:
    """Wrap vLLM's InputProcessor, through which all requests enter an engine, in process or over HTTP."""
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
    """Beam search makes requests of its own that drop the value: refuse such a request rather than ignore the value."""
    classes: list[Any] = [value for value in vars(protocol).values() if isinstance(value, type)]
    for request_class in classes:
        if "to_beam_search_params" in vars(request_class):
            request_class.to_beam_search_params = _refusing(request_class.to_beam_search_params)


def _refusing(native: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(native)
    def to_beam_search_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _serving and KEY in (getattr(self, "vllm_xargs", None) or {}):
            raise request_error("xshare of a request cannot be chosen with beam search, which does not hand it on")
        return native(self, *args, **kwargs)

    return to_beam_search_params


# In the engine core


def keep_blocks_apart(core: Any) -> None:
    """Wrap EngineCore.preprocess_add_request, which computes the keys of a request's blocks in the prefix cache.

    Blocks that other requests decode are pruned. With a salt of their own, protected requests share blocks only with
    one another.
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
    """Which of a worker's requests are protected."""

    def __init__(self, settings: Settings, max_requests: int, alive: Callable[[], Container[str]]) -> None:
        super().__init__(max_requests, alive)
        self.settings = settings
        self._warned = False

    def follow(self, scheduled: Any) -> None:
        """A step begins: read the scheduler's output. A preempted request stays protected."""
        if self.exact and scheduled.finished_req_ids:
            self.exact -= scheduled.finished_req_ids
        for new in scheduled.scheduled_new_reqs:
            exact = is_exact(new.sampling_params, self.settings)
            if exact:
                self._warn_unchecked(requested_protection(new.sampling_params))
            self.put(new.req_id, exact)
        self.forget_finished()

    def _warn_unchecked(self, value: Any) -> None:
        if value not in (None, EXACT) and not self._warned:
            self._warned = True
            log.warning("xshare: a request asks for %r, which nobody has refused: it is protected", value)
