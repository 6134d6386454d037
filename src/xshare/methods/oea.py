"""OEA, opportunistic expert activation (arXiv 2511.02237), simplified form.

The pool is the union of the tokens' top-k0; each token then walks down its ranking and takes what the pool already
holds until it has k, and weights are renormalised over what it got. On a model that renormalises anyway this is
XShare with m=0, to the last bit. As there, a pool smaller than k is topped up.
"""

from xshare.algorithms import warm_up
from xshare.errors import PolicyError
from xshare.methods.registry import register
from xshare.methods.step import Selection, Step
from xshare.policy import Knobs, Policy


def _check(policy: Policy) -> None:
    if policy.warmup < 1:
        raise PolicyError("warmup (k0) must be at least 1 for method 'oea', as in oea:k0=2")


@register("oea", "piggyback on the union of all tokens' top-k0", knobs=Knobs(fields=("warmup",), check=_check))
def oea(step: Step, policy: Policy) -> Selection:
    return Selection(keep=warm_up(step.favourites(policy.warmup), step.voting), renormalize=True)
