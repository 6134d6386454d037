"""What is known of each policy in one setting: how much faster it is than native, how many points it loses."""

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
CONTROLS = {NATIVE, "plain", "unused", "noop", "random"}  # methods of rows that no one would turn on
RATES = ("otps", "tokens_per_s", "step_ms")  # a ratio beside none of these is of something else, such as one layer


@dataclass(frozen=True)
class Choice:
    policy: str
    method: str
    gain: Value | None  # how much faster than native: 0.25 is 25 %
    points: Value | None  # accuracy against native's, in points: less than nothing is lost
    saved: Value | None  # share of native's experts that is not loaded
    runs: int | None = None  # that the gain is a median of


@dataclass(frozen=True)
class Group:
    """Rows of one file that were measured under the same conditions."""

    file: ResultFile
    regime: Regime
    rows: dict[str, Row]  # by policy

    @property
    def model(self) -> str | None:
        """Its last name: a path differs from machine to machine."""
        found = self.regime.get("model") or self.regime.get("shape")
        return None if found is None else str(found).rstrip("/").rpartition("/")[2]

    @cached_property
    def gains(self) -> dict[str, Value]:
        return {policy: found for policy, row in self.rows.items() if (found := self._gain(row)) is not None}

    @cached_property
    def points(self) -> dict[str, Value]:
        return {policy: found for policy, row in self.rows.items() if (found := self._points(row)) is not None}

    def _gain(self, row: Row) -> Value | None:
        ratio, native = value(row, "ratio"), self.rows.get(NATIVE, {})
        if ratio is not None and any(row.get(rate) is not None for rate in RATES):
            middle, low, high = ratio
            return middle - 1, low - 1, high - 1
        for rate in RATES[:2]:
            mine, base = value(row, rate), value(native, rate)
            if mine is not None and base is not None and base[0] > 0:
                gain = number(mine[0] / base[0] - 1)
                return None if gain is None else (gain, gain, gain)  # not paired: nobody knows how sure it is
        return None

    def _points(self, row: Row) -> Value | None:
        if (change := value(row, "change")) is None:
            mine, base = value(row, "accuracy"), value(self.rows.get(NATIVE, {}), "accuracy")
            if mine is None or base is None:
                return None
            # Newcombe's interval for a difference of two shares: wider than that of paired answers.
            middle = mine[0] - base[0]
            low, high = hypot(mine[0] - mine[1], base[2] - base[0]), hypot(mine[2] - mine[0], base[0] - base[1])
            change = middle, max(-1.0, middle - low), min(1.0, middle + high)
        middle, low, high = change
        return 100 * middle, 100 * low, 100 * high

    def fits(self, other: Group) -> bool:
        """The same batch, drafts and task, as far as both say."""
        return all(
            self.regime.get(name, other.regime.get(name)) == other.regime.get(name, self.regime.get(name))
            for name in ("batch", "drafts", "draft", "task")
        )


@dataclass(frozen=True)
class Setting:
    """A group that was timed and one that was answered, which may be the same; or one of the two."""

    speed: Group | None
    answers: Group | None

    @cached_property
    def choices(self) -> list[Choice]:
        """Policies that could be turned on, the fastest first."""
        gains = self.speed.gains if self.speed else {}
        points = self.answers.points if self.answers else {}
        rows = (self.speed or self._only).rows
        both = self.speed is not None and self.answers is not None
        wanted = [p for p in rows if (p in gains and p in points if both else p in gains or p in points)]
        found = [_choice(rows[p], gains.get(p), points.get(p)) for p in wanted]
        found = [
            c for c in found if c.method not in CONTROLS and c.policy != NATIVE and (c.saved is None or c.saved[0] > 0)
        ]
        return sorted(found, key=lambda c: -((c.gain or c.saved or (0.0,))[0]))

    @property
    def _only(self) -> Group:
        found = self.speed or self.answers
        assert found is not None  # one of the two is there
        return found

    @property
    def one_model(self) -> bool:
        """Whether speed and answers, if both were measured, are of the same model. Without a name nobody knows."""
        if self.speed is None or self.answers is None or self.speed.file is self.answers.file:
            return True
        return self.speed.model is not None and self.speed.model == self.answers.model

    @property
    def where(self) -> str:
        """The conditions in words: those of the speed, and what only the answers name."""
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
        """The best measured first: both, with intervals, of one model, many policies; then the least favourable."""
        both = self.speed is not None and self.answers is not None
        sure = all(v[1] != v[2] for choice in self.choices for v in (choice.gain, choice.points) if v is not None)
        most = max((choice.gain[0] for choice in self.choices if choice.gain is not None), default=0.0)
        return not both, not sure, not self.one_model, -len(self.choices), most


def _choice(row: Row, gain: Value | None, points: Value | None) -> Choice:
    return Choice(str(row["policy"]), method_of(row), gain, points, experts_saved(row), count_of(row, "ratio"))


def settings(files: list[ResultFile]) -> list[Setting]:
    """All that files tell of, the best measured first. Answers of another model count only where there are no own."""
    groups = [group for file in files if file.kind not in dict(KINDS) for group in _groups(file)]
    timed, answered = [g for g in groups if _tells(g.gains)], [g for g in groups if _tells(g.points)]
    found: list[Setting] = []
    for group in timed:
        pairs = [Setting(group, other) for other in answered if group is other or group.fits(other)]
        pairs = [pair for pair in pairs if pair.choices]
        own = [pair for pair in pairs if pair.one_model]
        found += own or sorted(pairs, key=lambda pair: pair.rank)[:1] or [Setting(group, None)]
    met = {id(setting.answers) for setting in found}
    found += [Setting(None, group) for group in answered if id(group) not in met]
    return sorted((setting for setting in found if setting.choices), key=lambda setting: setting.rank)


def _tells(found: dict[str, Value]) -> bool:
    return any(policy != NATIVE for policy in found)


def _groups(file: ResultFile) -> Iterator[Group]:
    for regime, rows in by_regime(file, policy_rows(file)):
        yield Group(file, regime, {str(row["policy"]): row for row in rows})
