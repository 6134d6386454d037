"""XShare: pick one small set of experts that serves a whole decode batch of a mixture-of-experts model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xshare.version import __version__

if TYPE_CHECKING:
    from xshare.batch import BatchLayout, Placement
    from xshare.engines import apply, layout, protect, remove, stats
    from xshare.errors import LayoutError, ModelError, PolicyError, RouterError, TraceError, XShareError
    from xshare.policy import Policy
    from xshare.router import RouterSpec
    from xshare.routing import Routing, route, select

__all__ = [
    "BatchLayout",
    "LayoutError",
    "ModelError",
    "Placement",
    "Policy",
    "PolicyError",
    "RouterError",
    "RouterSpec",
    "Routing",
    "TraceError",
    "XShareError",
    "__version__",
    "apply",
    "layout",
    "protect",
    "remove",
    "route",
    "select",
    "stats",
]

_HOMES = {
    "batch": ("BatchLayout", "Placement"),
    "engines": ("apply", "layout", "protect", "remove", "stats"),
    "errors": ("LayoutError", "ModelError", "PolicyError", "RouterError", "TraceError", "XShareError"),
    "policy": ("Policy",),
    "router": ("RouterSpec",),
    "routing": ("Routing", "route", "select"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: torch takes seconds to import, and not every command needs it."""
    if name in _HOME:
        return getattr(import_module(f"xshare.{_HOME[name]}"), name)
    if name in ("algorithms", "batch", "errors", "kernels", "methods", "policy", "policy_text", "router", "routing"):
        return import_module(f"xshare.{name}")
    if name == "spelling":  # the name of policy_text in 0.1
        return import_module("xshare.policy_text")
    raise AttributeError(f"module 'xshare' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
