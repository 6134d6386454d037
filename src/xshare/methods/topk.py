"""Static top-k': every token simply uses fewer experts (what llama.cpp's expert_used_count override does)."""

from xshare.errors import PolicyError
from xshare.methods.registry import register
from xshare.methods.step import Selection, Step
from xshare.policy import Knob, Knobs, Policy


def _check(policy: Policy) -> None:
    if "k" not in policy.params:
        raise PolicyError("method 'topk' needs the knob k, the experts each token keeps, as in topk:k=2")


KNOBS = Knobs(params={"k": Knob(int, "experts each token keeps", low=1)}, check=_check)


@register("topk", "a smaller k for every token, whatever the batch", knobs=KNOBS, needs="router")
def topk(step: Step, policy: Policy) -> Selection:
    rows = step.native_mask & step.favourites(policy.params["k"])
    return Selection(keep=step.union(rows), rows=rows)
