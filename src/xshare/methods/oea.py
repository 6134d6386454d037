"""OEA, opportunistic expert activation (arXiv 2511.02237): its simplified form with k0, its general form with rho.

The pool is the union of each token's top-k0, or of its best experts that hold rho of its weight. Each token then walks
down its ranking and takes experts from the pool until it has k; its weights are renormalised over these. On a model
that renormalises anyway this equals XShare with m=0, bit for bit. As in XShare, a pool smaller than k is topped up.
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
