"""XShare: pick one small set of experts that serves a whole decode batch of a mixture-of-experts model."""

from typing import TYPE_CHECKING, Any

from xshare.batch import BatchLayout, Placement
from xshare.errors import LayoutError, ModelError, PolicyError, RouterError, TraceError, XShareError
from xshare.policy import Policy
from xshare.router import RouterSpec
from xshare.routing import Routing, route, select
from xshare.version import __version__

if TYPE_CHECKING:
    from xshare.engines import apply, layout, remove, stats

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
    "remove",
    "route",
    "select",
    "stats",
]


def __getattr__(name: str) -> Any:
    """What acts on a Transformers model is imported when it is asked for."""
    if name in ("apply", "layout", "remove", "stats"):
        from xshare import engines

        return getattr(engines, name)
    raise AttributeError(f"module 'xshare' has no attribute {name!r}")
