"""Does a protected request answer the same among pruned neighbours as among native ones?

    python benchmarks/protected.py --engine transformers
    python benchmarks/protected.py --engine vllm --json evidence/protected_vllm.json

Fixed batches of questions, on a CPU in float32: all requests of a batch begin together and are decoded to the same
length, so that every step has as many rows as under native routing. Each batch is decoded

  native     with XShare off: all others are compared with it
  halves     with XShare off, in two batches of half the size: what batch size alone changes
  some       under the policy, with a share of its requests protected, other ones in every batch
  everybody  under the policy, all requests protected
  nobody     under the policy, all requests with `xshare: shared`
  plain      under the policy, requests that set nothing: `nobody` must equal it

A row per engine: in how many batches all protected answers (`some`) and all answers (`everybody`, `halves`) equal
native's token for token, in how many all answers of `nobody` equal plain's, and how many of the other answers changed,
which shows that the policy acted.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import typer
from lib.paths import EVIDENCE

from xshare.bench.workload import Workload
from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.engines.base import Engine
from xshare.engines.by_name import open_engine
from xshare.policy import Policy
from xshare.progress import Advance
from xshare.results import Results, Row

BLOCK = 20  # batches decoded one way before the next way
PROMPT = 24  # tokens
OPTIONS: dict[str, Row] = {
    "transformers": {"dtype": "float32"},
    "vllm": {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "kv_cache_memory_bytes": 64 << 20},
}
Tokens = list[list[int]]  # per answer of a batch


def guarded(number: int, batch: int, share: float) -> set[int]:
    """Places of the protected requests in a batch."""
    return set(random.Random(number).sample(range(batch), max(1, round(share * batch))))


def decode(engine: Engine, workload: Workload, number: int, way: str, share: float) -> Tokens:
    prompts, batch = workload.prompts_of(engine, number), workload.batch
    protected_places = {
        "some": guarded(number, batch, share),
        "everybody": set(range(batch)),
        "nobody": set[int](),
    }.get(way)
    size = batch // 2 if way == "halves" else batch
    tokens = []
    for start in range(0, batch, size):
        batch_prompts = prompts[start : start + size]
        run = engine.run(batch_prompts, limit=workload.tokens, batch=size, to_the_end=True, protected=protected_places)
        tokens += [answer.tokens for answer in run.answers]
    return tokens


def block(
    engine: Engine, policy: Policy, workload: Workload, numbers: range, share: float, advance: Advance
) -> list[Row]:
    """One record per batch of these numbers."""
    by_way: dict[str, list[Tokens]] = {}
    experts: Row = {}
    for way in ("native", "halves", "some", "everybody", "nobody", "plain"):
        engine.use(None if way in ("native", "halves") else policy)
        by_way[way] = []
        for number in numbers:
            by_way[way].append(decode(engine, workload, number, way, share))
            advance(1)
        mean = engine.stats().mean
        if way in ("some", "nobody"):
            experts |= {f"active_{way}": mean["experts_active"], "active_native": mean["experts_native"]}
    rows = []
    for place, number in enumerate(numbers):
        native, halves, partly, everybody, nobody, plain = (tokens[place] for tokens in by_way.values())
        exact = guarded(number, workload.batch, share)
        shared = [request for request in range(workload.batch) if request not in exact]
        rows.append(
            {
                "engine": engine.about.engine,
                "number": number,
                "protected": sorted(exact),
                "protected_same": all(partly[request] == native[request] for request in exact),
                "others_moved": sum(partly[request] != native[request] for request in shared),
                "everybody_same": everybody == native,
                "nobody_same": nobody == plain,
                "halves_same": halves == native,
                **experts,
            }
        )
    return rows


def row_of(samples: list[Row], about: Row, policy: str, workload: Workload, share: float) -> Row:
    """All samples of one engine as one row."""
    batches = len(samples)
    exact = sum(len(sample["protected"]) for sample in samples)
    counts = {
        name: sum(sample[name] for sample in samples) for name in samples[0] if name.endswith(("_same", "_moved"))
    }
    means = {
        name: sum(sample[name] for sample in samples) / batches for name in samples[0] if name.startswith("active_")
    }
    row: Row = {name: about[name] for name in ("engine", "version", "model", "device", "dtype") if name in about}
    row |= {"policy": policy, "batch": workload.batch, "tokens": workload.tokens, "share": share, "batches": batches}
    row |= {"answers_protected": exact, "answers_others": batches * workload.batch - exact}
    return row | counts | means


def main(
    engine: Annotated[str, typer.Option(help="transformers or vllm.")] = "transformers",
    model: Annotated[str, typer.Option(help="nano, or a folder.")] = "nano",
    policy: Annotated[str, typer.Option(help="What the others are pruned by.")] = "k0=1,m=0",
    share: Annotated[float, typer.Option(min=0, max=1, help="Of the requests, protected.")] = 0.25,
    batches: Annotated[int, typer.Option(min=1, help="How many.")] = 100,
    batch: Annotated[int, typer.Option(min=2, help="Requests of a batch.")] = 8,
    tokens: Annotated[int, typer.Option(min=2, help="Of an answer.")] = 24,
    json: Annotated[Path, typer.Option(help="Results; an existing file is continued.")] = EVIDENCE / "protected.json",
) -> None:
    chosen = Policy.parse(policy)
    workload = Workload(batch, batch, None, PROMPT, tokens)
    setting: Row = {"policy": str(chosen), "share": share} | workload.record()
    opened = open_engine(engine, model, policies=[chosen], options=OPTIONS[engine])
    try:
        about = opened.about.record()
        results = Results(json, setting | {"model": about["model"]}, about)
        samples = [sample for sample in results.samples if sample["engine"] == about["engine"]]
        with progress_bar("runs", 6 * (batches - len(samples))) as advance:
            for first in range(len(samples), batches, BLOCK):
                numbers = range(first, min(first + BLOCK, batches))
                samples += (block_samples := block(opened, chosen, workload, numbers, share, advance))
                results.samples.extend(block_samples)
                results.put([row_of(samples, about, str(chosen), workload, share)], by=("engine",))
                results.write()
    finally:
        opened.close()
    show(results.rows)
    wide_console().print(f"results: {json}")


def show(rows: list[Row]) -> None:
    columns = ["batches", "protected same", "all protected", "nobody protected", "half the batch", "others moved"]
    table = number_table("batches in which the answers are native's", "engine", *columns)
    for row in rows:
        same = [str(row[f"{name}_same"]) for name in ("protected", "everybody", "nobody", "halves")]
        table.add_row(row["engine"], str(row["batches"]), *same, f"{row['others_moved']} of {row['answers_others']}")
    wide_console().print(table)


if __name__ == "__main__":
    typer.run(main)
