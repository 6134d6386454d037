"""Requests that come and go: in what share of the steps does selection act, and what is left of the gain?

    python benchmarks/online.py [--json evidence/online.json]

Prefill steps are left alone, so the more often prompts arrive, the less there is to gain. gpt-oss-120b's shape with
random weights (`xshare_dummy`, routing `carried` of fit_routing.py: this measures speed, not quality) in one vLLM
engine with at most 64 running requests; Poisson arrivals at several rates, answers of several lengths. Native routing,
the control and `balanced` take turns on the same requests and arrivals, as in `xshare bench --rate`. Where the engine
cannot keep up (`inf`: all requests at once) its batch is as full as it gets.

A row has the rate, tokens per prompt and per answer, tokens per second in all and per request, TTFT, ITL, the share of
decode steps that were acted on and of all steps (`acted_all`, prefill included), and paired ratios to native with their
intervals. The file is written after every repeat, and a run that was cut off goes on from there. Each sample has the
stamp of the run that measured it, a row that of the run that measured its last pairs.
"""

from __future__ import annotations

import tempfile
from math import inf
from pathlib import Path
from typing import Annotated

import typer
from lib.model_shapes import gpt_oss_120b, write
from lib.paths import EVIDENCE
from lib.routing_fits import fits

from xshare.bench.interleaved import Variant, compare, noop_control, policies_by_name
from xshare.bench.summary import summary_rows
from xshare.bench.workload import Workload
from xshare.cli.bench import repeats_of
from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.engines.base import Engine
from xshare.engines.by_name import open_engine
from xshare.errors import XShareError
from xshare.policy import Policy
from xshare.results import Results, Row

BATCH, PROMPT = 64, 512
# Tokens of an answer -> requests per second, up to about what the engine can serve
RATES: dict[int, tuple[float, ...]] = {64: (8.0, 16.0, 32.0, inf), 16: (16.0, 32.0, inf), 256: (4.0, 8.0, inf)}
TINY_RATES: dict[int, tuple[float, ...]] = {16: (4.0, inf)}
CELL = ("rate", "tokens")


def measure(
    engine: Engine, results: Results, rate: float, tokens: int, seconds: float, repeats: int, tiny: bool
) -> None:
    """The repeats that one cell still lacks: 24 to 96 requests, which arrive over about `seconds` seconds. The file is
    written after each."""
    requests = 96 if rate == inf else max(24, min(96, round(rate * seconds)))
    batch, prompt = (8, 32) if tiny else (BATCH, PROMPT)
    workload = Workload(batch, requests, None if rate == inf else rate, prompt, tokens, "random", 0)
    ways = [Variant(policy) for policy in policies_by_name(engine, [Policy.parse("balanced")]).values()]
    cell: Row = {"rate": workload.rate, "tokens": tokens}
    setting = cell | {"prompt_tokens": prompt, "requests": requests}
    samples = [sample for sample in results.samples if all(sample[name] == cell[name] for name in CELL)]
    if not (remaining := range(repeats_of(samples), repeats)):
        return
    earlier = {(row["requests"], row["policy"]) for row in results.rows if all(row[n] == cell[n] for n in CELL)}
    if different := earlier - {(requests, way.name) for way in ways}:
        raise XShareError(f"{cell} was measured with {sorted(different)} (requests, policy): name another file")

    def keep(repeat: list[Row]) -> None:
        samples.extend(cell | sample for sample in repeat)
        results.put(summary_rows(samples, str(noop_control(engine)), setting), CELL)
        results.put(samples, CELL, into="samples")  # those of an earlier run keep its stamp
        results.write()

    with progress_bar(f"{rate:g} a second, {tokens} tokens", len(remaining) * len(ways) * requests) as advance:
        compare(engine, ways, workload, remaining, advance, keep)


def main(
    rate: Annotated[
        list[float] | None, typer.Option(help="Requests per second; may be repeated; inf: all at once.")
    ] = None,
    tokens: Annotated[list[int] | None, typer.Option(help="max_tokens of an answer; may be repeated.")] = None,
    seconds: Annotated[float, typer.Option(help="Seconds over which requests arrive.")] = 4.0,
    repeats: Annotated[int, typer.Option(help="Pairs of each.")] = 6,
    layers: Annotated[int | None, typer.Option(help="36 by default, which is all.")] = None,
    json: Annotated[Path, typer.Option(help="Results; goes on from them.")] = EVIDENCE / "online.json",
    tiny: Annotated[bool, typer.Option("--tiny", help="A small shape, for a machine without a GPU.")] = False,
) -> None:
    layers = layers or (4 if tiny else 36)
    options: Row = {"load_format": "xshare_dummy", "model_loader_extra_config": fits()["carried"]}
    options |= {"skip_tokenizer_init": True, "max_model_len": 1024, "max_num_seqs": 8 if tiny else BATCH}
    options |= {"dtype": "float32", "enforce_eager": True} if tiny else {"gpu_memory_utilization": 0.8}
    with tempfile.TemporaryDirectory() as folder:
        model = write(gpt_oss_120b(layers, tiny), Path(folder, "model"))
        engine = open_engine("vllm", str(model), policies=[Policy.parse("balanced")], options=options)
        about = engine.about.record() | {"model": "gpt-oss-120b's shape", "regime": "carried", "seed": 0, "tiny": tiny}
        results = Results(json, {"tiny": tiny, "layers": layers, "regime": "carried"}, about)
        try:
            planned = TINY_RATES if tiny else RATES
            for length in tokens or planned:
                for per_second in rate or planned.get(length, (inf,)):
                    measure(engine, results, per_second, length, seconds, repeats, tiny)
        finally:
            engine.close()
    show(results.rows)
    wide_console().print(f"results: {json}")


def show(rows: list[Row]) -> None:
    table = number_table("requests that come and go", "policy", "a second", "tokens", "tokens/s", "faster", "ITL ms",
                         "TTFT ms", "rows", "acted", "of all steps")  # fmt: skip
    for row in rows:
        faster = (
            "" if row["ratio"] is None else f"{row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
        )
        table.add_row(
            row["policy"], "at once" if row["rate"] is None else f"{row['rate']:g}", str(row["tokens"]),
            f"{row['otps_total']:.0f}", faster, f"{row['itl_ms_p50']:.2f}", f"{row['ttft_ms_p50']:.0f}",
            f"{row['rows_per_step']:.1f}", "" if row["acted"] is None else f"{row['acted']:.0%}",
            "" if row["acted_all"] is None else f"{row['acted_all']:.0%}",
        )  # fmt: skip
    wide_console().print(table)


if __name__ == "__main__":
    typer.run(main)
