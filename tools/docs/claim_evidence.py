"""The claims of the paper and the result files that judge them: what the tables of claims are made with.

A verdict is computed: a claim with several parts holds if all of them do, and in part if some do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from parallel_tables import Steps, steps_of
from speed_tables import FULL, REGIMES, bare, deepest, topk_rows
from summary_tables import for_nano, row_with_policy

Row = dict[str, Any]
Setting = tuple[int, int, bool]  # requests, drafts, mixed
PLAIN: Setting = (16, 0, True)
DRAFTED: Setting = (4, 3, True)
ONE_KIND: Setting = (4, 3, False)
SCORES = ("full", "topk")  # the two readings of the paper's score
MODELS = ("nano", "lab")


@dataclass(frozen=True)
class Claim:
    said: str
    paper: str
    ours: str
    held: tuple[bool, ...] | str  # per part of the claim whether it holds; or why it cannot be judged
    files: str

    @property
    def verdict(self) -> str:
        if isinstance(self.held, str):
            return f"open: {self.held}"
        if all(self.held):
            return "holds"
        return "holds in part" if any(self.held) else "does not hold"


class Evidence:
    """The result files, each read when a claim first asks for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Row] = {}

    def has(self, name: str) -> bool:
        return (self.folder / f"{name}.json").is_file()

    def __getitem__(self, name: str) -> Row:
        if name not in self.files:
            self.files[name] = json.loads((self.folder / f"{name}.json").read_text())
        return self.files[name]

    @cached_property
    def speeds(self) -> dict[tuple[str, str, str], Row]:
        """Rows by piece, routing and policy, at the paper's batches and with the most layers."""
        batches = {"plain": 16, "eagle3": 4}
        rows = [row for row in deepest(self["paper_speed"]) if row["batch"] == batches.get(row["piece"])]
        return {(row["piece"], row["regime"], bare(row)): row for row in rows}

    def timed(self, policy: str, piece: str = "plain", regime: str = "carried", score: str = "full") -> Row | None:
        """The row of one of the paper's policies, by either reading of its score; None where it was not timed."""
        if score == "full":
            return self.speeds.get((piece, regime, policy))
        return topk_rows(self["paper_speed"], regime, drafts=3 if piece == "eagle3" else 0).get(policy)

    def gain(self, policy: str, piece: str = "plain", regime: str = "carried") -> float:
        return float(self.speeds[piece, regime, policy]["ratio"] - 1)

    def gains(self, policy: str, piece: str = "plain") -> str:
        """What was measured, by routing and reading of the score."""
        readings = []
        for score in SCORES:
            rows = {regime: self.timed(policy, piece, regime, score) for regime in REGIMES}
            gains = [f"{regime} {percent(row['ratio'] - 1)}" for regime, row in rows.items() if row]
            if gains:
                readings.append(f"{', '.join(gains)} (`score={score}`)")
        return "; ".join(readings)

    def paper_gains(self, policy: str, piece: str = "plain") -> str:
        """The paper's least and most gain over its data sets, with as many digits as it prints."""
        row = self.speeds[piece, "carried", policy]
        return f"{percent(row['paper_low'] - 1)} to {percent(row['paper_high'] - 1)}"

    def met(self, policy: str, piece: str = "plain") -> tuple[bool, ...]:
        """Whether the paper's range was reached, by reading of the score and routing, as far as timed."""
        rows = (self.timed(policy, piece, regime, score) for score in SCORES for regime in REGIMES)
        return tuple(bool(row["paper_met"]) for row in rows if row)

    def answers(self, policy: str, model: str = "nano", score: str = "full", setting: Setting = PLAIN) -> Row | None:
        """The row of one of the paper's policies, whose budgets are for twice nano's experts."""
        file, named = ("paper_quality", for_nano(policy)) if model == "nano" else ("paper_quality_lab", policy)
        return row_with_policy(self[file], named + (FULL if score == "full" else ""), setting)

    def points(self, policy: str, model: str = "nano", score: str = "full", setting: Setting = PLAIN) -> float:
        """Change in accuracy against native, in points."""
        row = self.answers(policy, model, score, setting)
        if row is None:
            raise KeyError(f"{policy} {score} of {model}")
        return 100 * float(row["change"])

    def anew(self, model: str, policy: str, score: str, setting: Setting) -> float:
        """Change in accuracy in points, of the model and on the questions that presets were chosen by."""
        columns: Row = {"model": model, "policy": policy + (FULL if score == "full" else ""), "set": "choosing"}
        columns |= dict(zip(("batch", "drafts", "mixed"), setting, strict=True))
        (row,) = (row for row in self["frontier"]["rows"] if columns.items() <= row.items())
        return 100 * float(row["change"])

    def all_points(self, policy: str, setting: Setting = PLAIN) -> dict[tuple[str, str], float]:
        """Change in accuracy by model and reading of the score, as far as measured."""
        rows = {(model, score): self.answers(policy, model, score, setting) for model in MODELS for score in SCORES}
        return {at: 100 * float(row["change"]) for at, row in rows.items() if row}

    def trade_offs(self, policies: Iterable[str], piece: str, score: str) -> tuple[str, list[str]]:
        """What a policy gains by, and the policies that no other beats in it without losing more of nano's answers.

        That is their speed if all were timed by this reading, else how few experts nano loads.
        """
        policies = list(policies)
        timed = {policy: self.timed(policy, piece, score=score) for policy in policies}
        at = {}
        for policy in policies:
            answered = self._answered(policy, score, PLAIN if piece == "plain" else DRAFTED)
            row = timed[policy]
            gain = row["ratio"] if row and all(timed.values()) else -answered["active"] / answered["active_native"]
            at[policy] = (float(gain), float(answered["change"]))
        return "carried speed" if all(timed.values()) else "experts that nano loads", undominated(at)

    def _answered(self, policy: str, score: str, setting: Setting) -> Row:
        """nano's answers; without a budget both readings choose alike, and `score=full` may have been asked alone."""
        row = self.answers(policy, "nano", score, setting)
        if row is None and "mr=" not in policy and policy.endswith(",m=0"):
            row = self.answers(policy, "nano", "full", setting)
        if row is None:
            raise KeyError(f"{policy} {score} of nano")
        return row

    def overlaps(self, model: str, pair: str = "same domain") -> dict[int, float]:
        """By top: experts that consecutive tokens share, as a multiple of what `pair` shares."""
        rows = self["assumptions" if model == "nano" else "assumptions_lab"]["overlap"]
        at = {(row["pair"], row["top"]): row["overlap"] for row in rows}
        return {top: at["consecutive", top] / at[pair, top] for kind, top in at if kind == "consecutive"}

    def ep(self, score: str = "full") -> Steps:
        return steps_of(self["paper_ep" if score == "full" else "paper_ep_topk"])


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def point(value: float) -> str:
    return f"{value:+.1f}"


def points_text(points: dict[tuple[str, str], float]) -> str:
    """Points by model and reading of the score, as text."""
    by_model: dict[str, list[str]] = {}
    for (model, score), value in points.items():
        by_model.setdefault(model, []).append(f"{point(value)} (`score={score}`)")
    return "; ".join(f"{model}: {', '.join(texts)}" for model, texts in by_model.items())


def letters(configuration: str) -> str:
    m, k0 = configuration.split(",")
    return f"k0={k0},m={m}"


def undominated(at: dict[str, tuple[float, float]]) -> list[str]:
    """The names that no other beats in one number without losing in the other."""
    return [
        name
        for name, (gain, points) in at.items()
        if not any(g >= gain and p >= points and (g, p) != (gain, points) for g, p in at.values())
    ]
