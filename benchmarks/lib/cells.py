"""Cells, one policy in one setting each: each is measured once and written at once; then rivals are compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lib.answer_bench import RECORDED, Bench, Setting
from lib.cell_results import CellResults
from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.errors import XShareError
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.quality.paired import paired
from xshare.quality.task_files import Task, built_in, read_tasks
from xshare.results import Row
from xshare.tasks import ASKED
from xshare.trace import Trace
from xshare.trace.batches import Mix, sampled
from xshare.trace.replay import replay
from xshare.workers import Call, Workers

KEY = ("batch", "drafts", "mixed", "policy")
LISTS = ("calibration", "matched")
CONTROL = "no-op control"
REPLAYED = 100  # batches of a trace
Cell = tuple[Setting, Policy | None]
RivalKnobs = dict[tuple[Setting, Policy, str], list[Policy]]  # by setting, reference and rival: its policies by knob


class CellRunner:
    def __init__(
        self,
        bench: Bench,
        workers: Workers,
        results: CellResults,
        seconds: float | None = None,
        replayed: int = REPLAYED,
    ) -> None:
        """seconds: start no cell that would not be done by then; replayed: batches to count rivals' experts in"""
        self.replayed = replayed
        self.workers, self.results, self.began, self.seconds = workers, results, time.monotonic(), seconds
        self.asked = len(bench.job.tasks)
        self.slowest: dict[int, float] = {}  # seconds of the slowest cell so far, by drafts

    def time_for(self, setting: Setting) -> bool:
        spent = time.monotonic() - self.began
        return self.seconds is None or spent + self.slowest.get(setting.drafts, 0) < self.seconds

    def natives(self, settings: list[Setting], quietly: bool = False) -> bool:
        """Decode native's missing answers in these settings -> whether all are stored now."""
        missing = [setting for setting in settings if not self.results.has_native(setting)]
        bar = nullcontext(quiet) if quietly else progress_bar("native", len(missing) * self.asked)
        with bar as advance:
            self.workers.tell(advance)
            calls = ((setting, Bench.native, (setting,)) for setting in list(missing) if self.time_for(setting))
            for setting, native in self.workers.run(calls):
                self.results.add_native(native)
                missing.remove(setting)
        return not missing

    def measure(
        self, title: str, cells: dict[Cell, str], by: Callable[..., Any] | None = None, decodes: int = 1
    ) -> bool:
        """Measure the missing cells -> whether all are stored now.

        cells    each with what the paper calls it
        by       measures one cell; Bench.cell by default
        decodes  how often `by` decodes every question, for the progress bar
        """
        missing = {cell: paper for cell, paper in cells.items() if key_of(*cell) not in self.results.done}
        begun: dict[Cell, float] = {}

        def calls() -> Iterator[Call]:
            for cell in list(missing):
                if self.time_for(cell[0]):
                    begun[cell] = time.monotonic()
                    yield cell, by or Bench.cell, (*cell, self.results.native(cell[0]))

        with progress_bar(title, len(missing) * self.asked * decodes) as advance:
            self.workers.tell(advance)
            for cell, (row, right) in self.workers.run(calls()):
                took = time.monotonic() - begun.pop(cell)
                self.slowest[cell[0].drafts] = max(took, self.slowest.get(cell[0].drafts, 0))
                self.keep(row | {"paper": missing.pop(cell)}, right)
        return not missing

    def keep(self, row: Row, right: list[bool]) -> None:
        if row["paper"] == CONTROL and (row["diverged"] or row["kl"] > 1e-9):
            raise XShareError(
                f"the no-op control {row['policy']} changed {row['diverged']:.1%} of native's answers in batches of "
                f"{row['batch']}, and must change none: nothing else would mean anything"
            )
        results = self.results
        results.add(row, right)
        if not results.part and (
            comparisons := matched(results.rows, results.samples, results.lists.get("calibration", []))
        ):
            results.lists["matched"] = comparisons
        results.write()

    def matches(
        self, knobs: RivalKnobs, recorded: Callable[[Advance], Trace], by: Callable[..., Any] | None = None
    ) -> bool:
        """Find each rival's knob at which it loads as many experts as its reference, by replay, then measure the
        rivals -> whether all are stored now. `by` measures one cell."""
        calibration = self.results.lists["calibration"]
        calibrated = {(Setting.of(row), row["reference"], row["rival"]) for row in calibration}
        missing = {key: knobs[key] for key in knobs if (key[0], str(key[1]), key[2]) not in calibrated}
        if missing:
            with progress_bar("recording", RECORDED * len(ASKED)) as advance:
                trace = recorded(advance)
            with progress_bar("knobs of rivals", len(missing)) as advance:
                for (setting, reference, rival), policies in missing.items():
                    calibration.append(
                        {"rival": rival} | asdict(setting) | nearest(trace, setting, reference, policies, self.replayed)
                    )
                    advance(1)
            self.results.write()
        cells: dict[Cell, str] = dict.fromkeys(
            ((Setting.of(row), Policy.parse(row["policy"])) for row in calibration), ""
        )
        return self.measure("rivals", cells, by)


def nearest(trace: Trace, setting: Setting, reference: Policy, policies: list[Policy], replayed: int = REPLAYED) -> Row:
    """The policy whose active experts are nearest to the reference's, by bisection. `policies` load more and more."""
    mix: Mix = "random" if setting.mixed else "single"
    batches = sampled(trace, setting.batch, setting.drafts, mix, replayed)
    counts: dict[Policy, float] = {}

    def count(policy: Policy) -> float:
        if policy not in counts:
            (outcome,) = replay(trace, [policy], batches)
            counts[policy] = float(outcome.metrics["active"].mean())
        return counts[policy]

    low, high = 0, len(policies) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(policies[middle]) < count(reference) else (low, middle)
    best = min(policies[low], policies[high], key=lambda policy: abs(count(policy) - count(reference)))
    row = {"reference": str(reference), "policy": str(best)}
    return row | {"replayed_reference": count(reference), "replayed": count(best)}


def key_of(setting: Setting, policy: Policy | None) -> tuple[Any, ...]:
    return (setting.batch, setting.drafts, setting.mixed, "native" if policy is None else str(policy))


def matched(rows: list[Row], samples: list[Row], calibration: list[Row]) -> list[Row]:
    """One row per rival and reference, on the same questions: a change above zero is the rival's gain."""
    row_at = {tuple(row[name] for name in KEY): row for row in rows}
    right_at = {tuple(sample[name] for name in KEY): [mark == "1" for mark in sample["right"]] for sample in samples}
    comparisons = []
    for pair in calibration + other_scores(rows, calibration):
        setting = (pair["batch"], pair["drafts"], pair["mixed"])
        reference_key, rival_key = (*setting, pair["reference"]), (*setting, pair["policy"])
        if reference_key not in row_at or rival_key not in row_at:
            continue
        change, (a, b) = (
            paired(right_at[reference_key], right_at[rival_key]),
            (row_at[reference_key], row_at[rival_key]),
        )
        shared = ("active", "accuracy", "kl", "agreement", "accepted")
        comparisons.append(
            {"model": a["model"], "batch": setting[0], "drafts": setting[1], "mixed": setting[2]}
            | {name: pair[name] for name in ("reference", "rival", "policy")}
            | {f"{name}_reference": a[name] for name in shared}
            | {name: b[name] for name in shared}
            | asdict(change)
        )
    return comparisons


def other_scores(rows: list[Row], calibration: list[Row]) -> list[Row]:
    """Pairs of a policy and the same with score=topk, whose knob needs no search; calibrated ones are left out."""
    calibrated = {(Setting.of(row), row["policy"]) for row in calibration}
    return [
        {name: row[name] for name in KEY} | {"reference": f"{row['policy']},score=full", "rival": "score=topk"}
        for row in rows
        if row["policy"].startswith("k0=")
        and ",score=full" not in row["policy"]
        and (Setting.of(row), row["policy"]) not in calibrated
    ]


def tasks_of(file: Path | None, count: int, seed: int) -> list[Task]:
    """About `count` tasks, equally many per kind: nano's own, or a file's."""
    if file is not None:
        tasks = read_tasks(file)
        kinds = list(dict.fromkeys(task.kind for task in tasks))
        return [task for kind in kinds for task in [t for t in tasks if t.kind == kind][: -(-count // len(kinds))]]
    try:
        return built_in(-(-count // len(ASKED)), seed)
    except ValueError as error:  # some kinds have no more questions
        raise XShareError(str(error)) from None


def show(rows: list[Row], questions: int) -> None:
    columns = ["experts", "accuracy", "change", "95 %", "KL", "agreement", "accepted"]
    for setting in dict.fromkeys(map(Setting.of, rows)):
        chosen = [row for row in rows if Setting.of(row) == setting]
        mix = "mixed" if setting.mixed else "one kind at a time"
        title = f"{chosen[0]['model']}, {questions} questions, {setting.batch} together, {setting.drafts} drafts, {mix}"
        table = number_table(title, "policy", *columns)
        for row in chosen:
            table.add_row(
                row["policy"],
                f"{row['active']:.1f} of {row['active_native']:.1f}",
                f"{row['accuracy']:.1%}",
                f"{row['change']:+.1%}",
                f"{row['change_low']:+.1%} to {row['change_high']:+.1%}",
                f"{row['kl']:.4f}",
                f"{row['agreement']:.1%}",
                "" if row["accepted"] is None else f"{row['accepted']:.2f}",
            )
        wide_console().print(table)
