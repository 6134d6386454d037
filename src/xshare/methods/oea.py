"""OEA, opportunistic expert activation (arXiv 2511.02237): its simplified form by k0, its general one by rho.

The pool is the union of what the tokens bring: their top-k0, or as many of their best as hold rho of their weight. Each
token then walks down its ranking and takes what the pool already holds until it has k, and weights are renormalised
over what it got. On a model that renormalises anyway this is XShare with m=0, to the last bit. As there, a pool smaller
than k is topped up.
"""

from xshare.errors import PolicyError
from xshare.methods.registry import register
from xshare.methods.step import Selection, Step
from xshare.policy import Knobs, Policy


def _check(policy: Policy) -> None:
    if policy.warmup < 1 and policy.coverage is None:
        raise PolicyError("method 'oea' needs a warmup (k0) of at least 1 or a coverage (rho), as in oea:k0=2")


KNOBS = Knobs(fields=("warmup", "coverage"), check=_check)


@register("oea", "piggyback on the union of all tokens' top-k0, or of what covers rho of each", knobs=KNOBS)
def oea(step: Step, policy: Policy) -> Selection:
    return Selection(keep=step.union(step.own(policy)), renormalize=True)
