"""XShare and its rivals, all with one signature. Importing this package fills the registry."""

from xshare.methods import logit_sum, lynx, native, oea, random, skip, topk, xshare
from xshare.methods.registry import METHODS, Method, decide, decide_routing, register
from xshare.methods.step import Native, Selection, Step

__all__ = [
    "METHODS",
    "Method",
    "Native",
    "Selection",
    "Step",
    "decide",
    "decide_routing",
    "logit_sum",
    "lynx",
    "native",
    "oea",
    "random",
    "register",
    "skip",
    "topk",
    "xshare",
]
