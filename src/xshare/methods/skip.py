"""Dynamic skipping: a token drops those of its experts that are weak compared with its best one.

`beta` is Lu et al. (arXiv 2402.14800): skip an expert whose weight is under beta times the best weight. `kmin` and `t`
are the form of ik_llama.cpp: the best kmin always stay, further experts stay if they reach t times the best weight.
"""

from xshare.errors import PolicyError
from xshare.methods.registry import register
from xshare.methods.step import Selection, Step
from xshare.policy import Knob, Knobs, Policy


def _check(policy: Policy) -> None:
    if ("beta" in policy.params) == ("t" in policy.params) or ("kmin" in policy.params and "t" not in policy.params):
        raise PolicyError("method 'skip' needs either the knob beta, or kmin and t: skip:beta=0.5 or skip:kmin=2,t=0.2")


KNOBS = Knobs(
    params={
        "beta": Knob(float, "skip experts under beta times the token's best weight", low=0, high=1),
        "kmin": Knob(int, "experts each token is sure to keep", low=1, default=1),
        "t": Knob(float, "keep further experts that reach t times the best weight", low=0, high=1),
    },
    check=_check,
)


@register("skip", "each token drops its own weak experts (Lu et al.; Kmin,t)", knobs=KNOBS, needs="router")
def skip(step: Step, policy: Policy) -> Selection:
    threshold = policy.params["beta"] if "beta" in policy.params else policy.params["t"]
    weight = step.score.masked_fill(~step.native_mask, 0)
    strong = weight >= threshold * weight.amax(dim=-1, keepdim=True)
    rows = step.native_mask & (strong | step.favourites(policy.param("kmin")))
    return Selection(keep=step.union(rows), rows=rows)
