"""The claims of the paper and the result files that judge them: what the tables of claims are made with.

A verdict is computed: a claim with several parts holds if all of them do, and in part if some do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from parallel_tables import Steps, steps_of
from speed_tables import REGIMES, bare, deepest
from summary_tables import row_with_policy

Row = dict[str, Any]
PLAIN, DRAFTED = (16, 0, True), (4, 3, True)  # requests, drafts, mixed


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

    def gain(self, policy: str, piece: str = "plain", regime: str = "carried") -> float:
        return float(self.speeds[piece, regime, policy]["ratio"] - 1)

    def met(self, policy: str, piece: str = "plain") -> tuple[bool, ...]:
        """Whether the paper's range was reached, by routing."""
        return tuple(bool(self.speeds[piece, regime, policy]["paper_met"]) for regime in REGIMES)

    def answers(self, policy: str, model: str = "nano", score: str = "full", setting: Any = PLAIN) -> Row | None:
        """The row of one of the paper's policies, whose budgets are for twice nano's experts."""
        file = "paper_quality" if model == "nano" else "paper_quality_lab"
        parts = [part.split("=") for part in policy.split(",")]
        budgets = [f"m={int(n) // 2}" if name == "m" and model == "nano" else f"{name}={n}" for name, n in parts]
        return row_with_policy(self[file], ",".join(budgets) + (",score=full" if score == "full" else ""), setting)

    def points(self, policy: str, model: str = "nano", score: str = "full", setting: Any = PLAIN) -> float:
        """Change in accuracy against native, in points."""
        row = self.answers(policy, model, score, setting)
        if row is None:
            raise KeyError(f"{policy} {score} of {model}")
        return 100 * float(row["change"])

    def drafted(self, policy: str, score: str = "full") -> float:
        return self.points(policy, "nano", score, DRAFTED)

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
