"""The model's own routing: the baseline."""

from xshare.methods.registry import register
from xshare.methods.step import Selection, Step
from xshare.policy import Knobs, Policy


@register("native", "the model's own top-k routing, unchanged", knobs=Knobs(), needs="router")
def native(step: Step, policy: Policy) -> Selection:
    return Selection(keep=step.union(step.native_mask), rows=step.native_mask)
