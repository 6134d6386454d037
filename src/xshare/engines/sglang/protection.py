"""Protected requests: how a request asks for its native experts, and which rows of a step it has.

    {"custom_params": {"xshare": "exact"}}      over HTTP, and in Python's sampling_params

Where requests arrive, SGLang's TokenizerManager, a wrong value is refused. The scheduler keeps a protected request's
blocks apart in the radix cache, and marks its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xshare.engines.serving.protection import EXACT, KEY, SALT, SHARED, means_exact
from xshare.engines.serving.settings import Settings
from xshare.engines.sglang.settings import settings_of_environment


def requested_protection(custom_params: Any) -> Any:
    """The value in a request's custom_params; None where there is none."""
    return custom_params.get(KEY) if isinstance(custom_params, dict) else None


def check_request(obj: Any, settings: Settings) -> None:
    """Refuse an unknown value, and protection that this engine cannot give. SGLang's server answers a ValueError with
    400 and the sentence."""
    params = getattr(obj, "sampling_params", None)
    value = requested_protection(params.get("custom_params")) if isinstance(params, dict) else None
    if value not in (None, EXACT, SHARED):
        raise ValueError(f"xshare of a request must be {EXACT!r} or {SHARED!r}, not {value!r}")
    if str(getattr(obj, "extra_key", None) or "").startswith(SALT):
        raise ValueError(f"extra_key must not begin with {SALT!r}, which keeps protected requests' blocks apart")
    if not means_exact(value, settings):
        return
    if not settings.protect:
        raise ValueError(f"xshare of a request cannot be {EXACT!r} here: this engine was started with protect false")
    if getattr(obj, "session_params", None) is not None:
        raise ValueError(f"xshare of a session must be {SHARED!r}: its other requests share its blocks")


def refuse_early(native: Callable[..., Any], self: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
    """Around TokenizerManager._validate_one_request."""
    if (settings := settings_of_environment()) is not None:
        check_request(obj, settings)
    return native(self, obj, *args, **kwargs)


def keep_blocks_apart(native: Callable[..., Any], self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """Around Scheduler._add_request_to_queue, which a request passes before its blocks are looked up, and again after
    it was retracted. Blocks that other requests decode are pruned. With an extra key of their own, protected requests
    share blocks only with one another."""
    runner = self.tp_worker.model_runner
    exact = means_exact(requested_protection(req.sampling_params.custom_params), runner.xshare.settings)
    if exact and not (req.extra_key or "").startswith(SALT):
        req.extra_key = SALT + (req.extra_key or "")
    protected = runner.xshare_protected
    protected.put(req.rid, exact)
    protected.alive = lambda: {request.rid for request in (*self.waiting_queue, *self.running_batch.reqs, req)}
    protected.forget_finished()
    return native(self, req, *args, **kwargs)
