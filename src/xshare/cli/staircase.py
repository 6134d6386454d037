"""xshare doctor --stairs FILE: what sets of every size cost on this machine, for engines and the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from xshare.bench.workload import Workload
from xshare.cli.interrupted import plural, says_what_is_kept
from xshare.cli.output import progress_bar, unreal_notes, wide_console
from xshare.engines.base import Engine
from xshare.engines.by_name import open_engine
from xshare.errors import XShareError
from xshare.policy import Policy
from xshare.results import Results, Row, check_resumable
from xshare.staircase import NOISE, WHERE
from xshare.tune.staircase import (
    Staircase,
    Visit,
    experts_by_size,
    filled_sizes,
    measure_staircase,
    native_experts,
    staircase_rows,
)
from xshare.version import __version__


def staircase(
    engine: str,
    model: str | None,
    path: Path,
    rows: Sequence[int],
    rounds: int,
    workload: Workload,
    drafts: int,
    options: dict[str, Any],
    most: int | None,
) -> None:
    """Measure one staircase per entry of `rows` (rows per step); empty: the rows of the workload's batch. `most`:
    tokens per answer."""
    setting: Row = {"stairs": True, "engine_args": options, "tokens": most, "xshare": __version__}
    setting |= {"prompts": workload.prompts, "prompt_tokens": workload.prompt_tokens, "seed": workload.seed}
    check_resumable(path, setting | {"engine": engine})
    with says_what_is_kept(path, kept_text):
        opened = open_engine(engine, model, drafts=drafts, policies=[Policy(batch_budget=1)], options=options)
        about = opened.about
        try:
            rows_per_request = 1 + (about.drafts or 0)
            all_rows = sorted({*rows} or {workload.batch * rows_per_request})
            if uneven := [number for number in all_rows if number % rows_per_request]:
                raise XShareError(
                    f"rows must be a multiple of {rows_per_request}, a token and its drafts each, not {uneven[0]}"
                )
            place: Row = {} if about.cpu is None else {"cpu": about.cpu}
            known = {"backend": about.backend, "host_layers": about.host_layers, "seed": workload.seed}
            stamp = dict.fromkeys(WHERE) | about.record() | place | known
            results = Results(path, about.record() | place | setting, stamp, ("samples", "counts"))
            workloads = {
                number: replace(workload, batch=number // rows_per_request, requests=number // rows_per_request)
                for number in all_rows
            }
            active = {number: experts_loaded(opened, number, workloads[number], results) for number in all_rows}
            staircases = [
                measure_rows(opened, number, workloads[number], active[number], rounds, most, results)
                for number in all_rows
            ]
        finally:
            opened.close()
    results.write()
    console = wide_console()
    console.print(f"{about.model} on {about.engine} {about.version}, {about.device}, experts by {about.backend}")
    for stairs, left_out in staircases:
        for line in staircase_lines(stairs, left_out, about.experts):
            console.print(line)
    for note in unreal_notes(about):
        console.print(note)
    console.print(f"results: {path}")


def kept_text(results: Row) -> str:
    return plural(len({(sample["batch"], sample["round"]) for sample in results["samples"]}), "round")


def experts_loaded(engine: Engine, rows: int, workload: Workload, results: Results) -> dict[int, float]:
    """Size of the set -> experts that a step of `rows` rows loads, from the file or counted now."""
    active = {count["experts"]: count["active"] for count in results.lists["counts"] if count["batch"] == rows}
    if not active:
        prompts = workload.prompts_of(engine, -1)
        native = native_experts(engine, prompts)
        with progress_bar(f"{rows} rows, sizes", max(1, math.ceil(native) - engine.about.top_k + 1)) as advance:
            active = experts_by_size(engine, prompts, native, advance)
        results.lists["counts"] += [{"batch": rows, "experts": size, "active": active[size]} for size in active]
    if len(filled_sizes(active)) < 2:
        raise XShareError(f"a step of {rows} rows loads {max(active.values()):.1f} experts: give it more --rows")
    return active


def measure_rows(
    engine: Engine,
    rows: int,
    workload: Workload,
    active: dict[int, float],
    rounds: int,
    most: int | None,
    results: Results,
) -> tuple[Staircase, list[int]]:
    """-> the staircase for `rows` rows, and the sizes that a batch does not fill."""
    about, sizes = engine.about, filled_sizes(active)

    def keep(visits: list[Visit]) -> None:
        results.put([asdict(visit) for visit in visits], by=("batch", "experts", "round"), into="samples")
        results.write()

    with progress_bar(f"{rows} rows, rounds", rounds) as advance:
        stairs = measure_staircase(
            engine,
            lambda number: workload.prompts_of(engine, number),
            rows,
            sizes,
            rounds=rounds,
            tokens=most,
            seed=workload.seed,
            known=[Visit(**sample) for sample in results.samples if sample["batch"] == rows],
            keep=keep,
            advance=advance,
        )
    new_rows = staircase_rows(stairs, active, about.experts, backend=about.backend, layers=about.layers)
    results.put(new_rows, by=("batch", "experts"))
    results.rows.sort(key=lambda row: (row["batch"], row["experts"]))
    return stairs, sorted({*active} - {*sizes})


def staircase_lines(stairs: Staircase, left_out: Sequence[int], num_experts: int) -> list[str]:
    """Where stairs end and what an expert costs, in words."""
    first, last = stairs.sizes[0], stairs.sizes[-1]
    low, high = stairs.times[first][0], stairs.times[last][0]
    lines = [f"{stairs.rows} rows: {first} to {last} experts, {low:.3g} to {high:.3g} ms a step"]
    noise = f"standard error up to {microseconds_text(stairs.noise_ms)} after {plural(stairs.rounds, 'round')}"
    cost, ends = stairs.cost(num_experts), stairs.edges(num_experts)
    if cost is None:
        lines.append(
            f"  times do not grow with the experts ({noise}): no cost can be told, and engines refuse the file"
        )
    else:
        lines.append(f"  an expert costs {microseconds_text(stairs.expert_ms)} ({noise})")
        lines.append("  " + (stairs_end(cost, ends) if ends else "no stairs are clear of the noise"))
    if not stairs.settled:
        aim = f"a standard error of {NOISE:.0%} of what an expert costs was not reached"
        lines.append(f"  not settled: more --rounds, or a machine that does nothing else; {aim}")
    if left_out:
        which = "size" if len(left_out) == 1 else "sizes"
        lines.append(f"  {len(left_out)} {which} from {left_out[0]} up left out: the batch does not fill such a set")
    return lines


def stairs_end(cost: Tensor, ends: Sequence[int]) -> str:
    jumps = {edge: float(cost[edge + 1] - cost[edge]) for edge in ends}
    most = max(ends, key=lambda edge: jumps[edge])
    others = f"one expert more than {most} costs as much as {jumps[most]:.0f} others"
    return f"stairs end at {', '.join(map(str, ends))}: {others}"


def microseconds_text(ms: float) -> str:
    return f"{1000 * ms:.{0 if ms >= 0.01 else 1}f} µs"
