"""xshare demo: a real mixture of experts answers questions, by itself and under policies: what is saved, and lost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.files import check_writable
from xshare.policy import Policy
from xshare.quality.files import built_in
from xshare.quality.measure import Outcome, answer, ordered, row_of
from xshare.quality.tasks import KINDS
from xshare.results import Row, provenance, write_result

POLICIES = ["k0=1,m=16", "k0=1,m=8", "k0=2,m=0", "k0=1,m=0", "oea:k0=2", "lynx:drop=16", "topk:k=2", "random:k0=0,m=16"]
LIMIT = 420  # tokens of an answer


def demo(
    policy: Annotated[
        list[str] | None, typer.Option("--policy", help="Instead of the usual ones; may be repeated.")
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="Questions of each kind.")] = 8,
    batch: Annotated[int, typer.Option(min=1, help="Questions decoded together.")] = 16,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the CPU: nano is too small for more to help.")] = 1,
    json: Annotated[Path | None, typer.Option(help="Write the results here.")] = None,
) -> None:
    """Decode held-out questions with nano, natively and under policies: experts saved, answers kept or lost."""
    import torch

    from xshare.engines.transformers.engine import TransformersEngine
    from xshare.models import load

    policies = [None, *map(Policy.parse, policy or POLICIES)]
    if json is not None:
        check_writable(json)
    torch.set_num_threads(threads)
    engine = TransformersEngine(*load("nano"), "nano")
    asked = ordered(built_in(questions), mixed=True)
    rows: list[Row] = []
    native: Outcome | None = None
    with progress_bar("answers", len(asked) * len(policies)) as advance:
        for each in policies:
            found = answer(engine, each, asked, batch=batch, limit=LIMIT, advance=advance)
            native = native or found
            rows.append(row_of(found, native))
            if json is not None:  # what was measured stays, whatever comes after
                write_result(json, rows, provenance(**engine.about, batch=batch, questions=len(asked), seed=0))
    show(rows, len(asked), batch)
    if json is not None:
        wide_console().print(f"results: {json}")


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
