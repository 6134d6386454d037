"""The paper's mixed requests with drafts: does a policy gain as much in batches of several kinds of questions as in
batches of a single kind?

    python benchmarks/mixed_speed.py [--json evidence/mixed_speed.json]

Random weights have no kinds of questions, so this times a trained model: nano inside a larger one (lib/wide_nano.py),
whose experts are too large for a CPU's caches, with nano's draft model and three drafts, 4 requests at a time. The same
questions are decoded in batches of a single kind and in batches that hold one of each of four kinds. Drafts are
accepted or refused by what the model says under the policy, so the speed has acceptance inside.

Every policy is paired with native routing, decoded just before. Half of the batches of either kind go through the
policies in the other order. A speed is tokens per second from the first token of
the last request to the last token of the first one to end: all requests run. A row has a policy and whether batches mix
kinds: `ratio`, the median over pairs with its interval, `accepted`, tokens per request and step, and natively so.
"""

from __future__ import annotations

import json as json_format
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Annotated

import typer
from lib import wide_nano
from lib.command import run
from lib.paper_policies import DRAFTED, no_op, policy
from lib.paths import EVIDENCE
from safetensors.torch import save_file

from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.engines.base import Engine, Run
from xshare.engines.by_name import open_engine
from xshare.engines.cpu_name import cpu_name
from xshare.policy import Policy
from xshare.quality.task_files import Task, built_in
from xshare.results import Results, Row
from xshare.statistics import median_interval

EXPERTS, BATCH, DRAFTS = 64, 4, 3
TIMES = 4  # nano's 256 dimensions become 1024


def policies() -> list[Policy]:
    """The control, and the paper's eight configurations by both readings of its score."""
    paper = [policy(numbers, EXPERTS) for numbers in DRAFTED]
    return [no_op(EXPERTS), *paper, *(full.model_copy(update={"score": "topk"}) for full in paper)]


def batches(tasks: Sequence[Task]) -> list[tuple[bool, list[Task]]]:
    """(mixed, four questions): by turns a batch of a single kind, and one that holds one question of each of four."""
    kinds = [[task for task in tasks if task.kind == kind] for kind in dict.fromkeys(task.kind for task in tasks)]
    made: list[tuple[bool, list[Task]]] = []
    for first in range(0, len(kinds[0]), BATCH):
        for start in range(0, len(kinds), BATCH):
            four = [kind[first : first + BATCH] for kind in kinds[start : start + BATCH]]
            for alike, mixed in zip(four, zip(*four, strict=True), strict=True):
                made += [(False, alike), (True, list(mixed))]
    return made


def speed(decoded: Run) -> float:
    """Tokens per second while all requests run."""
    begin = max(answer.times_s[0] for answer in decoded.answers)
    end = min(answer.times_s[-1] for answer in decoded.answers)
    return sum(begin < time <= end for answer in decoded.answers for time in answer.times_s) / (end - begin)


def accepted(decoded: Run) -> float:
    """Tokens per request and step."""
    return decoded.rows / sum(step.requests for step in decoded.timed)


def pair(engine: Engine, chosen: Policy, prompts: list[list[int]], tokens: int) -> Row:
    figures: Row = {}
    for name, used in (("native_", None), ("", chosen)):
        engine.use(used, timed=True)
        decoded = engine.run(prompts, limit=tokens, batch=BATCH, to_the_end=True)
        figures |= {f"{name}tokens_per_s": speed(decoded), f"{name}accepted": accepted(decoded)}
    return figures


def rows_of(samples: Sequence[Row]) -> list[Row]:
    rows = []
    for name, mixed in dict.fromkeys((sample["policy"], sample["mixed"]) for sample in samples):
        pairs = [sample for sample in samples if (sample["policy"], sample["mixed"]) == (name, mixed)]
        ratio = median_interval([sample["tokens_per_s"] / sample["native_tokens_per_s"] for sample in pairs])
        row: Row = {"policy": name, "mixed": mixed, "pairs": len(pairs)}
        row |= dict(zip(("ratio", "ratio_low", "ratio_high"), ratio, strict=True))
        for column in ("accepted", "native_accepted"):
            row[column] = sum(sample[column] for sample in pairs) / len(pairs)
        row["native_tokens_per_s"] = median(sample["native_tokens_per_s"] for sample in pairs)
        rows.append(row)
    return rows


def model_folder(folder: Path, width: int) -> Path:
    """nano in a larger model, as a folder that Transformers loads."""
    wide_nano.write_config(folder, TIMES, width)
    config = SimpleNamespace(**json_format.loads((folder / "config.json").read_text()))
    save_file(dict(wide_nano.widened(config)), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def main(
    tokens: Annotated[int, typer.Option(min=2, help="Of an answer.")] = 96,
    megabytes: Annotated[float, typer.Option(min=0.1, help="Of one expert in float32, about.")] = 6.0,
    questions: Annotated[int, typer.Option(min=BATCH, help="Of each kind: whole batches.")] = BATCH,
    most: Annotated[int, typer.Option(help="Policies, to try it out.")] = 17,
    json: Annotated[Path, typer.Option(help="Results; batches already in it are skipped.")] = (
        EVIDENCE / "mixed_speed.json"
    ),
) -> None:
    hidden = 256 * TIMES
    width = max(32, round(megabytes * 1e6 / (3 * hidden * 4) / 32) * 32)
    made = batches(built_in(questions - questions % BATCH))
    with tempfile.TemporaryDirectory() as folder:
        model = model_folder(Path(folder, "nano-wide"), width)
        options = {"draft": "nano-draft", "dtype": "float32"}
        engine = open_engine("transformers", str(model), drafts=DRAFTS, options=options)
        about = engine.about.record() | {"model": f"nano, {hidden} x {width}", "cpu": cpu_name(), "seed": 0}
        settings = {"tokens": tokens, "batch": BATCH, "drafts": DRAFTS, "expert_mb": 3 * hidden * width * 4 / 1e6}
        settings |= {"questions": questions, "policies": most}
        results = Results(json, settings, about)
        done = {sample["number"] for sample in results.samples}
        with progress_bar("batches", len(made) - len(done)) as advance:
            for number, (mixed, tasks) in enumerate(made):
                if number in done:
                    continue
                prompts = [engine.encode(task.prompt) for task in tasks]
                pair(engine, no_op(EXPERTS), prompts, tokens)  # warms up
                chosen = policies()[:most]
                for which in chosen if number // 2 % 2 else chosen[::-1]:
                    figures = pair(engine, which, prompts, tokens)
                    results.samples.append({"number": number, "mixed": mixed, "policy": str(which)} | figures)
                results.rows[:] = rows_of(results.samples)
                results.write()
                advance(1)
    show(results.rows)
    wide_console().print(f"results: {json}")


def show(rows: Sequence[Row]) -> None:
    table = number_table("4 requests, three drafts", "policy", "mixed", "times as fast", "95 %", "accepted", "natively")
    for row in rows:
        within = f"{row['ratio_low']:.3f} to {row['ratio_high']:.3f}"
        figures = f"{row['ratio']:.3f}", within, f"{row['accepted']:.2f}", f"{row['native_accepted']:.2f}"
        table.add_row(row["policy"], str(row["mixed"]), *figures)
    wide_console().print(table)


if __name__ == "__main__":
    run(main)
