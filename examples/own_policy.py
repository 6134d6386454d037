"""A method of your own, held against XShare's on recorded routing: python examples/own_policy.py

It keeps the experts that several tokens of the batch want, and every token's best one. Registered, it is a policy like
any other: in `xshare.route`, in `xshare.apply`, in replay.
"""

from pathlib import Path

from xshare.methods import Selection, Step, register
from xshare.policy import Knob, Knobs, Policy
from xshare.trace import Trace, replay, sampled

TRACE = Path(__file__).parents[1] / "evidence" / "nano.trace.xz"
KNOBS = Knobs(params={"wanted": Knob(int, "tokens that must want an expert", low=1, default=2)})


@register("popular", "experts that several tokens want, and every token's best", knobs=KNOBS, needs="router")
def popular(step: Step, policy: Policy) -> Selection:
    wanted_by = (step.native_mask & step.voting.unsqueeze(-1)).sum(dim=-2)  # [..., N]
    return Selection(keep=(wanted_by >= policy.params["wanted"]) | step.union(step.favourites(1)))


if __name__ == "__main__":
    trace = Trace.load(TRACE)
    policies = [Policy.parse(text) for text in ("popular:wanted=2", "popular:wanted=3", "balanced")]
    print("policy            experts  of native  weight kept  least a token keeps")
    for found in replay(trace, policies, sampled(trace, batch=16, count=50)):
        mean = {name: values.mean() for name, values in found.metrics.items()}
        active, native, mass, least = (mean[name] for name in ("active", "active_native", "mass", "smallest_kept"))
        print(f"{found.policy!s:<16} {active:8.1f} {active / native:10.0%} {mass:12.1%} {least:20.1%}")
