"""What do sets that follow the staircase of step times gain, at equal votes lost?

    python benchmarks/cost_aware.py --stairs STAIRS [--json evidence/cost_aware.json]

gpt-oss-120b's shape with random weights (`xshare_dummy`, routing `carried` of fit_routing.py: this measures speed, not
quality). One engine is started with this machine's staircase (`xshare doctor --stairs`). Policies change live, by cost
and plain, in turns: every round measures all of them on the same requests, every other round in reverse order. Before
the clock starts, experts are counted in every one of COUNTED steps.

By cost a policy loses other votes than plain, since snapping to a stair only adds experts. So it is compared with the
time that a plain policy with as many votes lost would take: interpolated between two of its family in the same round,
with times that never rise with the votes lost. `gain_at_equal_votes` is that time over the policy's own, the median
over rounds with a bootstrap 95 % interval; None where no two of the family enclose its votes lost. `votes_lost` is the
share of the rows' native weight whose experts are not in the set.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer
from lib.engine_process import Engine
from lib.paths import EVIDENCE
from lib.routing_fits import fits
from lib.speed_rows import Counted, step_ms

from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.errors import XShareError
from xshare.policy import PRESETS, Policy
from xshare.progress import Advance
from xshare.results import Results, Row
from xshare.results.columns import count_of
from xshare.staircase import Stairs, edges, never_falling, read_stairs
from xshare.statistics import interval_names, median_interval

REGIME = "carried"
WARM = 4  # steps
COUNTED = 6  # steps per decode in which experts are counted
Point = tuple[str, bool]  # a policy, and whether by cost
NATIVE: Point = ("native", False)

# By family: the plain policies, which make its curve, and those measured by cost. The prices suit 16 requests.
FAMILIES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "price": (
        [f"lam={lam}" for lam in (0.15, 0.175, 0.2, 0.225, 0.25, 0.3)],
        [f"lam={lam}" for lam in (0.175, 0.2, 0.225, 0.25)],
    ),
    "price, squares": (
        [f"lam={lam},p=2" for lam in (0.03, 0.04, 0.05, 0.065, 0.08)],
        [f"lam={lam},p=2" for lam in (0.04, 0.05, 0.065)],
    ),
    # A snapped set grows by the next experts in the order of a budget, so a budget is what it is compared with.
    "warm-up": ([f"k0=2,m={m}" for m in (0, 3, 8)], ["k0=2,m=0"]),
    **{name: ([f"{PRESETS[name]},m={m}" for m in (0, 3, 8)], [name]) for name in ("balanced", "fast")},
    "budget": ([f"k0=0,m={m}" for m in (20, 24, 28, 32)], [f"k0=0,m={m}" for m in (20, 24, 28)]),
}


def points_of(family: str) -> list[Point]:
    plain, by_cost = ([str(Policy.parse(text)) for text in texts] for texts in FAMILIES[family])
    every = [[(policy, False), *([(policy, True)] if policy in by_cost else [])] for policy in plain]
    return [point for both in every for point in both]  # the two next to each other


POINTS = [NATIVE, *(point for family in FAMILIES for point in points_of(family))]


def edges_of(stairs: Stairs, batch: int) -> list[int]:
    """Where the stairs end, in a step of `batch` rows."""
    table = stairs.table_for(batch)
    assert table is not None
    sizes = stairs.times[stairs.rows[table]]
    return edges(stairs.costs[table], min(sizes), max(sizes))


def at_equal_votes(lost: Sequence[float], ms: Sequence[float], at: float) -> float | None:
    """The time at `at` votes lost, on a curve through these points; None outside of them.

    Linear in the root of the votes lost: the first experts left out have the fewest votes, so losses grow as the square
    of their number. A line in the losses themselves would lie above the curve, and flatter.
    """
    if not min(lost) <= at <= max(lost):
        return None
    order = np.argsort(lost)[::-1]
    roots = -np.sqrt(np.maximum(lost, 0))[order]
    return float(np.interp(-(max(at, 0) ** 0.5), roots, never_falling(np.asarray(ms, dtype=np.float64)[order])))


def rows_of(setting: Row, ms: dict[Point, list[float]], counted: dict[Point, Counted]) -> list[Row]:
    """ms: per step, by round"""
    natives = [counts.native for counts in counted.values() if counts.native is not None]
    lost = {point: 1 - counts.mass for point, counts in counted.items() if counts.mass is not None}
    rows = []
    for family, points in {"native": [NATIVE], **{family: points_of(family) for family in FAMILIES}}.items():
        curve = [point for point in points if not point[1] and point in lost]
        for point in points:
            policy, by_cost = point
            row = setting | {"family": family, "policy": policy, "cost": by_cost}
            row |= {"active": median(natives) if point == NATIVE and natives else counted[point].active}
            row |= {"votes_lost": 0.0 if point == NATIVE else lost.get(point)}
            row |= dict(zip(("ms", "ms_low", "ms_high"), median_interval(ms[point]), strict=True))
            gains = []
            for number, by_cost_ms in enumerate(ms[point] if by_cost and point in lost and curve else ()):
                plain = at_equal_votes([lost[p] for p in curve], [ms[p][number] for p in curve], lost[point])
                gains += [] if plain is None else [plain / by_cost_ms]
            gain = median_interval(gains) if gains else (None, None, None)
            row |= dict(zip(("gain_at_equal_votes", "gain_low", "gain_high"), gain, strict=True))
            rows.append(row | {"rounds": len(ms[point]), "samples_ms": ms[point]})
    return rows


def measure(
    engine: Engine, batch: int, steps: int, rounds: int, advance: Advance
) -> Iterator[tuple[dict[Point, list[float]], dict[Point, Counted]]]:
    """After every round: ms per step of every decode so far, and the counts, by point."""
    ms: dict[Point, list[float]] = {point: [] for point in POINTS}
    counted: dict[Point, list[Row]] = {point: [] for point in POINTS}
    engine.ask("decode", batch=batch, steps=4 * WARM, seed=0)
    for number in range(rounds):
        for point in POINTS if number % 2 == 0 else reversed(POINTS):
            engine.ask("cost", on=point[1])
            engine.ask("policy", policy=point[0])
            decoded = engine.ask("decode", batch=batch, steps=steps, seed=1 + number, warm=WARM, counted=COUNTED)
            ms[point].append(step_ms(decoded))
            counted[point].append(engine.ask("counted", batch=batch))
            advance(1)
        yield ms, {point: Counted.of(counts) for point, counts in counted.items()}


def show(rows: Sequence[Row]) -> None:
    within, marks = interval_names([count_of(row, "ms") for row in rows])
    table = number_table("", "policy", "by cost", "experts", "votes lost", "ms a step", within, "gain", f"{within} ")
    for row, mark in zip(rows, marks, strict=True):
        gain = row["gain_at_equal_votes"]
        table.add_row(
            row["policy"],
            "yes" if row["cost"] else "",
            "" if row["active"] is None else f"{row['active']:.1f}",
            "" if row["votes_lost"] is None else f"{row['votes_lost']:.1%}",
            f"{row['ms']:.2f}",
            f"{row['ms_low']:.2f} to {row['ms_high']:.2f}{mark}",
            "" if gain is None else f"{gain:.3f}x",
            "" if gain is None else f"{row['gain_low']:.3f} to {row['gain_high']:.3f}{mark}",
        )
    wide_console().print(table)


def main(
    stairs: Annotated[Path, typer.Option(help="The staircase of this machine and shape, of xshare doctor --stairs.")],
    batch: Annotated[list[int] | None, typer.Option(help="Requests, 16 by default; may be repeated.")] = None,
    layers: Annotated[int | None, typer.Option(help="36 by default, which is all.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of a timed decode.")] = 24,
    rounds: Annotated[int, typer.Option(help="Decodes of each policy.")] = 8,
    runner: Annotated[str, typer.Option(help="vLLM's model runner, V1 or V2.")] = "V1",
    json: Annotated[Path, typer.Option(help="Results; cells already in it are skipped.")] = EVIDENCE
    / "cost_aware.json",
    tiny: Annotated[bool, typer.Option("--tiny", help="A small shape, for a machine without a GPU.")] = False,
) -> None:
    batches, layers = batch or [16], layers or (4 if tiny else 36)
    options: Row = {"tiny": tiny, "layers": layers, "drafter": "none", "drafts": 0, "runner": runner, "rule": "xshare"}
    options |= {"weights": fits()[REGIME], "sizes": sorted(batches)}
    options["xshare"] = {"policy": PRESETS["balanced"], "live": "any", "gates": {"bypass": False}}
    options["xshare"]["cost"] = str(stairs.resolve())
    began = time.perf_counter()
    try:
        read = read_stairs(stairs)
        if max(batches) > read.rows[-1]:
            raise XShareError(f"{read.name} has steps of up to {read.rows[-1]} rows, and {max(batches)} are asked for")
        ends = {size: edges_of(read, size) for size in batches}
        settings = {"tiny": tiny, "shape": "gpt-oss-120b", "regime": REGIME, "layers": layers, "stairs": read.sha256}
        results = Results(json, settings, {"tiny": tiny, "stairs": stairs.name, "edges": ends})
        measured = {row["batch"] for row in results.rows if row["rounds"] >= rounds}
        missing = [size for size in batches if size not in measured]
        if missing:
            with Engine("cost", options) as engine:
                about: Row = engine.answer()
                print(f"started in {time.perf_counter() - began:.0f} s: {about}, stairs end at {ends}", flush=True)
                setting = {"backend": about["experts_by"], "layers": layers}
                setting |= {name: about[name] for name in ("runner", "vllm", "gpu", "graphs")}
                for size in missing:
                    with progress_bar(f"batch {size}", rounds * len(POINTS)) as advance:
                        for ms, counted in measure(engine, size, steps, rounds, advance):
                            rows = rows_of({"batch": size} | setting, ms, counted)
                            results.put(rows, by=("batch", "policy", "cost"))
                            results.write()
        for size in batches:
            show([row for row in results.rows if row["batch"] == size])
    except XShareError as error:
        raise SystemExit(str(error)) from None
    print(f"results: {json}, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    typer.run(main)
