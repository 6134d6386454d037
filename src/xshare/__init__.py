"""XShare: pick one small set of experts that serves a whole decode batch of a mixture-of-experts model."""

from xshare.batch import BatchLayout, Placement
from xshare.errors import LayoutError, PolicyError, RouterError, TraceError, XShareError
from xshare.policy import Policy
from xshare.router import RouterSpec
from xshare.routing import Routing, route, select

__version__ = "0.1.0"

__all__ = [
    "BatchLayout",
    "LayoutError",
    "Placement",
    "Policy",
    "PolicyError",
    "RouterError",
    "RouterSpec",
    "Routing",
    "TraceError",
    "XShareError",
    "route",
    "select",
]
