"""Whether to turn selection on and with which policy, in words and with the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass

from xshare.latency_law import WORTH
from xshare.report.known_policies import Choice, Setting
from xshare.report.labels import interval_text, percent, policy_label, signed_percent, signed_points

LIMIT = 2.0  # points that a recommended policy may lose
FASTER = f"{100 * (WORTH - 1):.0f} % faster"
NO_ANSWERS = "Measure the answers of your own model with `xshare quality` before you turn it on."
NO_SPEED = "Measure the speed of your own model with `xshare bench` before you turn it on."


@dataclass(frozen=True)
class Verdict:
    setting: Setting
    answer: str  # Yes, Perhaps, No, or Not known
    words: str  # why: one sentence or two
    doubts: list[str]  # what was not measured, or not well enough
    shown: Choice  # the policy that the words are about
    recommended: bool = False


def verdict(setting: Setting) -> Verdict:
    """Recommends the fastest policy that loses less than LIMIT points; doubts say if its interval allows more loss."""
    if setting.speed is None:
        return _untimed(setting)
    if setting.answers is None:
        best = setting.choices[0]
        words = (
            f"Nothing here measured the answers. The fastest policy is {policy_label(best.policy)}: {_numbers(best)}."
        )
        return Verdict(setting, "Not known", words, [NO_ANSWERS], best)
    faster = [c for c in setting.choices if c.gain is not None and c.gain[1] > 0 and c.gain[0] >= WORTH - 1]
    good = [c for c in faster if holds(c)]
    if not good:
        return _none(setting, faster)
    best = good[0]
    doubts = _doubts(best) + _of_two_models(setting)
    words = (
        f"{policy_label(best.policy)} is the fastest policy that loses less than {LIMIT:g} points: {_numbers(best)}."
    )
    return Verdict(setting, "Perhaps" if doubts else "Yes", words, doubts, best, recommended=True)


def holds(choice: Choice) -> bool:
    return choice.points is not None and choice.points[0] > -LIMIT


def _doubts(best: Choice) -> list[str]:
    """Why the recommendation is uncertain."""
    doubts = []
    if best.points is not None and best.points[1] == best.points[2]:
        doubts.append("Nothing says how sure the points are.")
    elif best.points is not None and best.points[1] <= -LIMIT:
        doubts.append(f"The loss may be as large as {-best.points[1]:.1f} points: ask more questions to be sure.")
    if best.gain is not None and best.gain[1] == best.gain[2]:
        doubts.append("Nothing says how sure the speed is: `xshare bench` repeats it, paired with native.")
    return doubts


def _of_two_models(setting: Setting) -> list[str]:
    if setting.one_model or setting.speed is None or setting.answers is None:
        return []
    timed, answered = (group.model or "a model without a name" for group in (setting.speed, setting.answers))
    doubt = f"Speed is that of {timed}, answers are those of {answered}: nothing here measured both on one model."
    return [doubt, NO_ANSWERS]


def _none(setting: Setting, faster: list[Choice]) -> Verdict:
    if faster:
        shown = max(faster, key=points_kept)
        reason = f"Every policy that is at least {FASTER} loses {LIMIT:g} points or more"
        reason += f"; {policy_label(shown.policy)} loses the least"
    else:
        shown = next((choice for choice in setting.choices if holds(choice)), setting.choices[0])
        which = f"the fastest that loses less than {LIMIT:g} points" if holds(shown) else "the fastest"
        reason = f"No policy is at least {FASTER} than native; {which} is {policy_label(shown.policy)}"
    words = f"None is worth it here. {reason}: {_numbers(shown)}."
    return Verdict(setting, "No", words, _of_two_models(setting), shown)


def _untimed(setting: Setting) -> Verdict:
    saving = [choice for choice in setting.choices if choice.saved is not None and choice.saved[0] > 0]
    good = [choice for choice in saving if holds(choice)]
    if good:
        words = f"Nothing here measured speed. Of the policies that lose less than {LIMIT:g} points, "
        words += f"{policy_label(good[0].policy)} loads the fewest experts: {_numbers(good[0])}."
        return Verdict(setting, "Not known", words, [*_doubts(good[0]), NO_SPEED], good[0])
    least = max(saving or setting.choices, key=points_kept)
    reason = f"Every policy that loads fewer experts loses {LIMIT:g} points or more"
    words = f"None is worth it here. {reason}; {policy_label(least.policy)} loses the least: {_numbers(least)}."
    return Verdict(setting, "No", words, [], least)


def points_kept(choice: Choice) -> float:
    """Sort key: the accuracy change in points; unknown counts as the worst."""
    return -100.0 if choice.points is None else choice.points[0]


def _numbers(choice: Choice) -> str:
    """The measurements of a policy in words, with intervals."""
    parts = []
    if choice.gain is not None:
        parts.append(
            f"{signed_percent(choice.gain[0])} speed ({interval_text(choice.gain, signed_percent, choice.runs)})"
        )
    if choice.points is not None:
        parts.append(
            f"{signed_points(choice.points[0])} points of accuracy ({interval_text(choice.points, signed_points)})"
        )
    if choice.saved is not None and choice.gain is None:
        parts.append(f"{percent(choice.saved[0])} fewer experts loaded")
    return ", ".join(parts)
