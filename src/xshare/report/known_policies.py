"""What is known of each policy in one setting: its speed gain over native, and the accuracy points it loses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import hypot

from xshare.report.conditions import Regime, by_regime, regime_text
from xshare.report.labels import Value, value
from xshare.report.pareto import experts_saved, method_of, policy_rows
from xshare.report.result_files import KINDS, ResultFile
from xshare.results import Row
from xshare.results.columns import count_of, number

NATIVE = "native"
CONTROLS = {NATIVE, "plain", "unused", "noop", "random"}  # methods of rows that are not for production
RATES = ("otps", "tokens_per_s", "step_ms")  # a ratio without any of these measures something else, such as one layer


@dataclass(frozen=True)
class Choice:
    policy: str
    method: str
    gain: Value | None  # speed gain over native: 0.25 is 25 %
    points: Value | None  # accuracy change from native's, in points; negative: lost
    saved: Value | None  # share of native's experts that are not loaded
    runs: int | None = None  # the gain is a median of this many


@dataclass(frozen=True)
class Group:
    """Rows of one file that were measured under the same conditions."""

    file: ResultFile
    regime: Regime
    rows: dict[str, Row]  # by policy

    @property
    def model(self) -> str | None:
        """The last part of its path: the rest differs from machine to machine."""
        name = self.regime.get("model") or self.regime.get("shape")
        return None if name is None else str(name).rstrip("/").rpartition("/")[2]

    @cached_property
    def gains(self) -> dict[str, Value]:
        return {policy: gain for policy, row in self.rows.items() if (gain := self._gain(row)) is not None}

    @cached_property
    def points(self) -> dict[str, Value]:
        return {policy: points for policy, row in self.rows.items() if (points := self._points(row)) is not None}

    def _gain(self, row: Row) -> Value | None:
        ratio, native = value(row, "ratio"), self.rows.get(NATIVE, {})
        if ratio is not None and any(row.get(rate) is not None for rate in RATES):
            middle, low, high = ratio
            return middle - 1, low - 1, high - 1
        for rate in RATES[:2]:
            measured, base = value(row, rate), value(native, rate)
            if measured is not None and base is not None and base[0] > 0:
                gain = number(measured[0] / base[0] - 1)
                return None if gain is None else (gain, gain, gain)  # not paired: no interval is known
        return None

    def _points(self, row: Row) -> Value | None:
        if (change := value(row, "change")) is None:
            accuracy, base = value(row, "accuracy"), value(self.rows.get(NATIVE, {}), "accuracy")
            if accuracy is None or base is None:
                return None
            # Newcombe's interval for a difference of two shares: wider than that of paired answers.
            middle = accuracy[0] - base[0]
            low, high = (
                hypot(accuracy[0] - accuracy[1], base[2] - base[0]),
                hypot(accuracy[2] - accuracy[0], base[0] - base[1]),
            )
            change = middle, max(-1.0, middle - low), min(1.0, middle + high)
        middle, low, high = change
        return 100 * middle, 100 * low, 100 * high

    def fits(self, other: Group) -> bool:
        """Whether batch, drafts and task are the same, where both groups state them."""
        return all(
            self.regime.get(name, other.regime.get(name)) == other.regime.get(name, self.regime.get(name))
            for name in ("batch", "drafts", "draft", "task")
        )


@dataclass(frozen=True)
class Setting:
    """A group with speed and a group with answers, which may be the same; one of the two may be missing."""

    speed: Group | None
    answers: Group | None

    @cached_property
    def choices(self) -> list[Choice]:
        """The policies that could be turned on, fastest first."""
        gains = self.speed.gains if self.speed else {}
        points = self.answers.points if self.answers else {}
        rows = (self.speed or self._only).rows
        both = self.speed is not None and self.answers is not None
        policies = [
            policy
            for policy in rows
            if (policy in gains and policy in points if both else policy in gains or policy in points)
        ]
        choices = [_choice(rows[policy], gains.get(policy), points.get(policy)) for policy in policies]
        choices = [
            c
            for c in choices
            if c.method not in CONTROLS and c.policy != NATIVE and (c.saved is None or c.saved[0] > 0)
        ]
        return sorted(choices, key=lambda c: -((c.gain or c.saved or (0.0,))[0]))

    @property
    def _only(self) -> Group:
        group = self.speed or self.answers
        assert group is not None  # a setting has at least one of the two
        return group

    @property
    def one_model(self) -> bool:
        """Whether speed and answers, if both were measured, are of the same model; False if a model has no name."""
        if self.speed is None or self.answers is None or self.speed.file is self.answers.file:
            return True
        return self.speed.model is not None and self.speed.model == self.answers.model

    @property
    def where(self) -> str:
        """The conditions in words: those of the speed, and those that only the answers state."""
        regime = dict(self._only.regime)
        if self.answers is not None and self.one_model:
            regime = self.answers.regime | regime
            engines = dict.fromkeys(group.regime.get("engine") for group in (self._only, self.answers))
            if None not in engines and len(engines) == 2:
                regime["engine"] = " for speed, ".join(map(str, engines)) + " for answers"
        regime |= {"model": self._only.model} if "model" in regime else {}
        return regime_text(regime)

    @property
    def files(self) -> str:
        return " and ".join(dict.fromkeys(group.file.name for group in (self.speed, self.answers) if group))

    @property
    def rank(self) -> tuple[bool, bool, bool, int, float]:
        """Sort key, best measured first: both speed and answers, intervals, one model, many policies, smaller gains."""
        both = self.speed is not None and self.answers is not None
        sure = all(v[1] != v[2] for choice in self.choices for v in (choice.gain, choice.points) if v is not None)
        most = max((choice.gain[0] for choice in self.choices if choice.gain is not None), default=0.0)
        return not both, not sure, not self.one_model, -len(self.choices), most


def _choice(row: Row, gain: Value | None, points: Value | None) -> Choice:
    return Choice(str(row["policy"]), method_of(row), gain, points, experts_saved(row), count_of(row, "ratio"))


def settings(files: list[ResultFile]) -> list[Setting]:
    """The settings of all files, best measured first. Answers of another model count only if a model has none."""
    groups = [group for file in files if file.kind not in dict(KINDS) for group in _groups(file)]
    timed, answered = [g for g in groups if _tells(g.gains)], [g for g in groups if _tells(g.points)]
    result: list[Setting] = []
    for group in timed:
        pairs = [Setting(group, answers) for answers in answered if group is answers or group.fits(answers)]
        pairs = [pair for pair in pairs if pair.choices]
        same_model = [pair for pair in pairs if pair.one_model]
        result += same_model or sorted(pairs, key=lambda pair: pair.rank)[:1] or [Setting(group, None)]
    answers_used = {id(setting.answers) for setting in result}
    result += [Setting(None, group) for group in answered if id(group) not in answers_used]
    return sorted((setting for setting in result if setting.choices), key=lambda setting: setting.rank)


def _tells(values: dict[str, Value]) -> bool:
    return any(policy != NATIVE for policy in values)


def _groups(file: ResultFile) -> Iterator[Group]:
    for regime, rows in by_regime(file, policy_rows(file)):
        yield Group(file, regime, {str(row["policy"]): row for row in rows})
