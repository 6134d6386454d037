"""Speed and answers of one and the same model, in one run: what do the presets give, and what do they cost?

    python benchmarks/one_model.py [--json evidence/one_model.json]

nano stands inside a larger model whose additional weights are zeros (lib/wide_nano.py). Its answers are nano's; its
experts are as large as `--megabytes` says, so loading them dominates a step. It runs in vLLM, in batches of 16 with
mixed kinds of questions. In each round native routing, the control and the presets answer the same questions, in an
order that alternates. A speedup is a ratio of tokens per second while decoding: the median over rounds, with its
interval. The change is in accuracy, against native's answers to the same questions. `samples` has, for every policy and
question, whether it was answered rightly: one mark a question, in the order of the rounds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from lib import wide_nano
from lib.paths import EVIDENCE

from xshare.bench.interleaved import noop_control
from xshare.bench.run_record import selection_figures
from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.engines.base import Engine
from xshare.engines.by_name import open_engine
from xshare.policy import RECOMMENDED, Policy
from xshare.progress import Advance
from xshare.quality.answering import Outcome, answer, ordered, row_of
from xshare.quality.task_files import Task, built_in
from xshare.results import Results, Row
from xshare.statistics import median_interval
from xshare.tasks import ASKED, LONGEST

TIMES = 16  # nano's 256 dimensions become 4096
BYTES = 2  # of a weight, in bfloat16


def ways(engine: Engine) -> dict[str, Policy | None]:
    """The policies that are compared, by name."""
    return {"native": None, "noop": noop_control(engine)} | {name: Policy.parse(name) for name in RECOMMENDED}


def round_of(
    engine: Engine, tasks: list[Task], batch: int, turn: int, advance: Advance
) -> dict[str, tuple[Outcome, Row]]:
    """Each way's answers to the same questions, and what selection did."""
    outcomes = {}
    names = list(ways(engine))
    for name in names if turn % 2 == 0 else names[::-1]:
        policy = ways(engine)[name]
        outcomes[name] = (
            answer(engine, policy, tasks, batch=batch, limit=LONGEST, advance=advance),
            selection_figures(engine.stats()),
        )
    return outcomes


def rows_of(rounds: list[dict[str, tuple[Outcome, Row]]]) -> list[Row]:
    """One row per policy: the answers of all rounds together, and ratios round by round."""
    rows = []
    for name in rounds[0]:
        outcomes, native = ([results[policy_name][0] for results in rounds] for policy_name in (name, "native"))
        whole, base = joined(outcomes), joined(native)
        row: Row = {"preset": name} | row_of(whole, base if name != "native" else None)
        for column in ("experts_active", "experts_native"):
            row.pop(column, None)
        speeds = [[outcome.run.rows / outcome.run.decode_s for outcome in side] for side in (outcomes, native)]
        ratio, low, high = median_interval([a / b for a, b in zip(*speeds, strict=True)])
        counts = {key: median([results[name][1][key] or 0.0 for results in rounds]) for key in ("acted", "acted_all")}
        counted = [results[name][1] for results in rounds if results[name][1]["active"] is not None]
        for column in ("active", "active_native", "mass"):
            row[column] = median([stats[column] for stats in counted]) if counted else None
        row |= counts | {"ratio": ratio, "ratio_low": low, "ratio_high": high, "rounds": len(rounds)}
        rows.append(row | {"samples_tokens_per_s": speeds[0]})
    return rows


def samples_of(rounds: list[dict[str, tuple[Outcome, Row]]]) -> list[Row]:
    """One record per policy: `right` has a mark for every question of all rounds, 1 for a right answer."""
    samples = []
    for name in rounds[0]:
        whole = joined([results[name][0] for results in rounds])
        marks = "".join(str(int(answered)) for answered in whole.right)
        samples.append({"preset": name, "policy": whole.name, "right": marks})
    return samples


def joined(outcomes: list[Outcome]) -> Outcome:
    run = outcomes[0].run
    for later in outcomes[1:]:
        run = run + later.run
    right = [is_right for outcome in outcomes for is_right in outcome.right]
    return Outcome(
        outcomes[0].policy, right, [tokens for outcome in outcomes for tokens in outcome.tokens], outcomes[0].stats, run
    )


def main(
    rounds: Annotated[int, typer.Option(help="In which every policy answers.")] = 8,
    questions: Annotated[int, typer.Option(help="Of each kind and round.")] = 10,
    batch: Annotated[int, typer.Option(help="Requests at a time.")] = 16,
    megabytes: Annotated[int, typer.Option(help="Of one expert, about.")] = 100,
    times: Annotated[int, typer.Option(help="As many dimensions as nano has: a power of four.")] = TIMES,
    json: Annotated[Path, typer.Option(help="Results.")] = EVIDENCE / "one_model.json",
    cpu: Annotated[bool, typer.Option("--cpu", help="On a machine without a GPU, in float32.")] = False,
) -> None:
    hidden = 256 * times
    width = max(32, round(megabytes * 1e6 / (3 * hidden * (4 if cpu else BYTES)) / 64) * 64)
    options: Row = {"load_format": wide_nano.LOAD_FORMAT, "max_model_len": 1024, "max_num_seqs": batch}
    options |= {"dtype": "float32", "enforce_eager": True} if cpu else {"gpu_memory_utilization": 0.8}
    tasks = ordered(built_in(questions * rounds), mixed=True)
    per_round = len(ASKED) * questions
    wide_nano.register()
    with tempfile.TemporaryDirectory() as folder:
        model = wide_nano.write_config(Path(folder, "nano-wide"), times, width)
        engine = open_engine("vllm", str(model), policies=[Policy.parse(name) for name in RECOMMENDED], options=options)
        about = engine.about.record() | {"model": f"nano, {hidden} x {width}", "seed": 0, "batch": batch}
        results = Results(json, None, about | {"expert_mb": 3 * hidden * width * (4 if cpu else BYTES) / 1e6})
        engine.count_all(False)
        by_round: list[dict[str, tuple[Outcome, Row]]] = []
        try:
            round_of(engine, tasks[:batch], batch, 0, lambda done: None)  # compiles and warms up
            with progress_bar("answers", rounds * per_round * len(ways(engine))) as advance:
                for turn in range(rounds):
                    by_round.append(
                        round_of(engine, tasks[turn * per_round : (turn + 1) * per_round], batch, turn, advance)
                    )
                    results.rows = rows_of(by_round)
                    results.lists["samples"] = samples_of(by_round)
                    results.write()
        finally:
            engine.close()
    show(results.rows)
    wide_console().print(f"results: {json}")


def show(rows: list[Row]) -> None:
    table = number_table(
        "one model: speed and answers", "", "tokens/s", "times as fast", "experts", "right", "change", "acted"
    )
    for row in rows:
        change = (
            ""
            if row["change"] is None
            else f"{row['change']:+.1%} ({row['change_low']:+.1%} to {row['change_high']:+.1%})"
        )
        table.add_row(
            row["preset"], f"{row['tokens_per_s']:.0f}",
            f"{row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})",
            "" if row["active"] is None else f"{row['active']:.1f}", f"{row['accuracy']:.1%}", change,
            f"{row['acted_all']:.0%}",
        )  # fmt: skip
    wide_console().print(table)


if __name__ == "__main__":
    typer.run(main)
