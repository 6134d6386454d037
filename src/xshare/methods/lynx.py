"""Lynx, the frequency form (LYNX-Lat, arXiv 2411.08982, as the XShare paper describes it).

Count the tokens that use each expert and drop a fixed number of the least used experts; ties keep the lower index. A
token that loses an expert takes its next best remaining one. An expert's weight in its tokens plays no part.
"""

from xshare.algorithms import rank
from xshare.errors import PolicyError
from xshare.methods.registry import register
from xshare.methods.step import Selection, Step
from xshare.policy import Knob, Knobs, Policy


def _check(policy: Policy) -> None:
    if "drop" not in policy.params:
        raise PolicyError("method 'lynx' needs the knob drop, how many of the used experts to drop, as in lynx:drop=8")


KNOBS = Knobs(params={"drop": Knob(int, "how many of the used experts to drop", low=0)}, check=_check)


@register("lynx", "drop the experts that the fewest tokens of the batch use", knobs=KNOBS, needs="router")
def lynx(step: Step, policy: Policy) -> Selection:
    count = (step.native_mask & step.voting.unsqueeze(-1)).sum(dim=-2)  # [..., N]
    used = count > 0
    size = used.sum(dim=-1, keepdim=True) - policy.params["drop"]
    return Selection(keep=used & (rank(count) < size))
