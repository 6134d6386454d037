"""The first screen: should I turn it on, with which policy, and one picture of what it gains and loses."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from xshare.report.html import EMPTY, Html, join, tag
from xshare.report.known_policies import NATIVE, Choice, Setting, settings
from xshare.report.labels import (
    BARS,
    BY_COST,
    PRESETS,
    Value,
    interval_text,
    percent,
    policy_label,
    signed_percent,
    signed_points,
)
from xshare.report.pareto import SAVED, Judged, Plane, chart
from xshare.report.result_files import ResultFile
from xshare.report.tables import Cell, box
from xshare.report.verdict import LIMIT, Verdict, points_kept, verdict
from xshare.statistics import interval_names

MOST = 4  # policies on the first screen
NOTHING = "These files measured neither the speed of policies nor their answers, so there is nothing to decide by."


def first_screen(files: list[ResultFile]) -> Html:
    verdicts = [verdict(setting) for setting in settings(files)]
    if not verdicts:
        return tag("section", tag("h2", "Should I turn it on?"), tag("p", NOTHING), class_="first")
    top, *others = verdicts
    answer = tag("p", tag("strong", f"{top.answer}."), " ", top.words, class_="answer")
    where = f"Setting: {top.setting.where or 'no file names it'} ({top.setting.files})."
    doubts = tag("p", *_code(" ".join([*top.doubts, where])))
    words = tag("div", answer, _turn_on(top), doubts, _table(top))
    picture = tag("div", words, _picture(top), class_="columns")
    return tag("section", tag("h2", "Should I turn it on?"), picture, _others(others), class_="first")


def _code(text: str) -> list[Html]:
    """Text with the parts in backticks as code."""
    parts = re.split(r"`([^`]*)`", text)
    return [tag("code", part) if place % 2 else join(part) for place, part in enumerate(parts)]


def _turn_on(top: Verdict) -> Html:
    if not top.recommended:
        return EMPTY
    text = top.shown.policy.removesuffix(BY_COST)
    cost = "" if text == top.shown.policy else ', "cost": "STAIRS.json"'
    key = f"""{{"xshare": {{"policy": "{PRESETS.get(text, text)}"{cost}}}}}"""
    command = f"vllm serve MODEL --additional-config '{key}'"
    return tag("p", "In vLLM: ", tag("code", command))


def _table(top: Verdict) -> Html:
    """The policy of the verdict, and those on the front that lose the least."""
    choices, plane = top.setting.choices, _plane(top.setting)
    others = [choice for choice in choices if choice is not top.shown]
    if plane is not None and top.setting.answers is not None:
        front = {p.policy for p in plane.front()}
        others = sorted((choice for choice in others if choice.policy in front), key=points_kept, reverse=True)
    others = others[: MOST - 1]
    shown = [choice for choice in choices if choice is top.shown or choice in others]  # still sorted, fastest first
    head = [Cell("policy"), *_measured(shown), Cell("experts loaded", number=True)]
    rows = [_row(choice, top) for choice in shown]
    used = [any(row[column].text for row in rows) for column in range(len(head))]
    cut = [[cell for cell, column in zip(row, used, strict=True) if column] for row in (head, *rows)]
    marked = [place for place, choice in enumerate(shown) if choice is top.shown]
    return box(cut[0], cut[1:], "What the policies gain and lose", marked)


def _row(choice: Choice, judged: Verdict) -> list[Cell]:
    loads = "" if choice.saved is None else percent(1 - choice.saved[0])
    mark = "recommended" if judged.recommended and choice is judged.shown else ""
    name = Cell(policy_label(choice.policy), small=mark)
    native = "of native's" if loads else ""
    gain = _cell(choice.gain, signed_percent, choice.runs)
    return [name, gain, _cell(choice.points, signed_points), Cell(loads, number=True, small=native)]


def _measured(choices: Sequence[Choice]) -> tuple[Cell, Cell]:
    """Headings of speed and points, with the kind of their intervals."""
    called, _ = interval_names([choice.runs for choice in choices])
    speed, points = (f"{name} interval" if name == "95 %" else name for name in (called, "95 %"))
    return Cell("speed", number=True, small=speed), Cell("points", number=True, small=points)


def _cell(measured: Value | None, to_text: Callable[[float], str], count: int | None = None) -> Cell:
    if measured is None:
        return Cell("", number=True)
    return Cell(to_text(measured[0]), number=True, small=interval_text(measured, to_text, count).removeprefix("95 %: "))


def _plane(setting: Setting) -> Plane | None:
    """Speed against answers; experts saved replace the one that was not measured. None without any point."""
    x, y = ("gain" if setting.speed and setting.answers else SAVED), ("points" if setting.answers else "gain")
    dots = []
    for choice in setting.choices:
        known = {"gain": choice.gain, "points": choice.points, SAVED: choice.saved}
        speed, quality = known[x], known[y]
        if speed is not None and quality is not None:
            dots.append(Judged(choice.policy, choice.method, speed, quality))
    if not dots:
        return None
    zero = (0.0, 0.0, 0.0)
    return Plane(setting.where, x, y, [Judged(NATIVE, NATIVE, zero, zero), *dots])


def _picture(top: Verdict) -> Html:
    plane = _plane(top.setting)
    if plane is None:
        return EMPTY
    best = next((p for p in plane.points if top.recommended and p.policy == top.shown.policy), None)
    limited = plane.quality == "points"
    label = f"{plane.words()}. " + "; ".join(plane.title(p) for p in plane.points)
    caption = f"Right and up is better. {BARS}"
    caption += f" Dotted: {LIMIT:g} points lost." if limited else ""
    caption += " The ring is around what is recommended." if best else ""
    return chart(plane, best, -LIMIT if limited else None).figure(label, caption)


def _others(verdicts: list[Verdict]) -> Html:
    if not verdicts:
        return EMPTY
    measured = _measured([other.shown for other in verdicts])
    head = [Cell("setting"), Cell("turn it on?"), Cell("policy"), *measured]
    rows = []
    for other in verdicts:
        setting, [policy, *numbers] = other.setting, _row(other.shown, other)[:3]
        whose = "" if setting.one_model or setting.answers is None else f"; answers of {setting.answers.model}"
        rows.append([Cell(setting.where + whose, small=setting.files), Cell(other.answer), policy, *numbers])
    many = f"{len(verdicts)} other setting{'s' if len(verdicts) > 1 else ''}, less well measured or more favourable"
    return tag("details", tag("summary", many), box(head, rows, "The same question in other settings"))
