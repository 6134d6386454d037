"""The paper's six algorithms in plain torch, to be read beside the paper; and coverage and price, which it lacks.

Shapes: `[..., n, N]` for n rows and N experts; leading dimensions (steps, layers) are independent problems.
Shapes are static and nothing synchronises with the host, so any function can be captured or compiled.
"""

from xshare.algorithms.batch_aware import warm_up
from xshare.algorithms.expert_parallel import fill_level, fill_rounds, load
from xshare.algorithms.greedy import best, fixed_point, greedy, greedy_mass, rank
from xshare.algorithms.own import covering
from xshare.algorithms.price import snap, worth, worth_by_cost
from xshare.algorithms.refine import refine, top_up
from xshare.algorithms.speculative import per_request

__all__ = [
    "best",
    "covering",
    "fill_level",
    "fill_rounds",
    "fixed_point",
    "greedy",
    "greedy_mass",
    "load",
    "per_request",
    "rank",
    "refine",
    "snap",
    "top_up",
    "warm_up",
    "worth",
    "worth_by_cost",
]
