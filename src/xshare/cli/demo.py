"""xshare demo: a real mixture of experts answers questions, by itself and under policies: what is saved, and lost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import typer

from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.engines.base import Advance, Engine
from xshare.files import check_writable
from xshare.policy import Policy
from xshare.quality.tasks import KINDS, Question, held_out_questions, is_right
from xshare.results import Row, provenance, write_result
from xshare.statistics import share_interval

POLICIES = ["k0=1,m=16", "k0=1,m=8", "k0=2,m=0", "k0=1,m=0", "oea:k0=2", "lynx:drop=16", "topk:k=2", "random:k0=0,m=16"]
LIMIT = 420  # tokens of an answer
Measured = tuple[Row, list[list[int]]]  # with the tokens of every answer


def demo(
    policy: Annotated[
        list[str] | None, typer.Option("--policy", help="Instead of the usual ones; may be repeated.")
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="Questions of each kind.")] = 12,
    batch: Annotated[int, typer.Option(min=1, help="Questions decoded together.")] = 16,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the CPU.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the results here.")] = None,
) -> None:
    """Decode held-out questions with nano, natively and under policies: experts saved, answers kept or lost."""
    import torch

    from xshare.engines.transformers.engine import TransformersEngine
    from xshare.models import load

    policies = [None, *map(Policy.parse, policy or POLICIES)]
    if json is not None:
        check_writable(json)
    if threads:
        torch.set_num_threads(threads)
    engine = TransformersEngine(*load("nano"), "nano")
    asked = mixed_questions(questions)
    rows: list[Row] = []
    native: list[list[int]] = []
    with progress_bar("answers", len(asked) * len(policies)) as advance:
        for each in policies:
            row, tokens = measure(engine, each, asked, batch, advance)
            native = native or tokens
            rows.append(row | {"agreement": agreement(native, tokens)})
            if json is not None:  # what was measured stays, whatever comes after
                write_result(json, rows, provenance(**engine.about, batch=batch, questions=len(asked), seed=0))
    show(rows, len(asked), batch)
    if json is not None:
        wide_console().print(f"results: {json}")


def mixed_questions(each: int) -> list[Question]:
    """Held-out questions of all kinds, shuffled: neighbours in a batch differ."""
    asked = [question for kind in KINDS for question in held_out_questions(kind, each)]
    random.Random(0).shuffle(asked)
    return asked


def measure(engine: Engine, policy: Policy | None, asked: list[Question], batch: int, advance: Advance) -> Measured:
    engine.use(policy)
    run = engine.run([engine.encode(prompt(q)) for q in asked], limit=LIMIT, batch=batch, advance=advance)
    mean = engine.stats()["mean"]
    right = sum(is_right(question, answer.text) for question, answer in zip(asked, run.answers, strict=True))
    low, high = share_interval(right, len(asked))
    row: Row = {
        "policy": "native" if policy is None else str(policy),
        "active": mean["experts_active"],
        "active_native": mean["experts_native"],
        "mass": mean["mass_kept"],
        "accuracy": right / len(asked),
        "accuracy_low": low,
        "accuracy_high": high,
        "tokens": sum(len(answer.tokens) for answer in run.answers) / len(asked),
        "tokens_per_s": run.rows / run.decode_s,
    }
    return row, [answer.tokens for answer in run.answers]


def prompt(question: Question) -> str:
    """As nano was trained to be asked."""
    return f"<|question|>{question.text}<|answer|>"


def agreement(native: list[list[int]], tokens: list[list[int]]) -> float:
    """The share of native's tokens that are decoded before the first that differs."""
    same = total = 0
    for wanted, got in zip(native, tokens, strict=True):
        total += len(wanted)
        for a, b in zip(wanted, got, strict=False):
            if a != b:
                break
            same += 1
    return same / total


def show(rows: list[Row], asked: int, batch: int) -> None:
    title = f"nano, {asked} held-out questions of {len(KINDS)} kinds, {batch} decoded together"
    table = number_table(title, "policy", "experts", "of native", "mass", "accuracy", "95 %", "agreement", "tokens/s")
    for row in rows:
        table.add_row(
            row["policy"],
            f"{row['active']:.1f}",
            f"{row['active'] / row['active_native']:.0%}",
            f"{row['mass']:.3f}",
            f"{row['accuracy']:.1%}",
            f"{row['accuracy_low']:.0%} to {row['accuracy_high']:.0%}",
            f"{row['agreement']:.1%}",
            f"{row['tokens_per_s']:.0f}",
        )
    wide_console().print(table)
    wide_console().print(
        "experts: loaded a layer and step; mass: gating weight they keep; agreement: share of native's tokens decoded "
        "before the first that differs. Tokens/s are this CPU's, where a step hardly gets faster: see docs/vllm.md."
    )
