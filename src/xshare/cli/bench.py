"""xshare bench: what selection costs and gains. Native routing, a no-op control and policies run in one engine."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from xshare.bench.equal_experts import CLOSE, measure_equal_policy
from xshare.bench.interleaved import (
    NATIVE,
    TRIES,
    Variant,
    compare,
    noop_control,
    policies_by_name,
    with_cost_variants,
    with_protected_variants,
)
from xshare.bench.summary import summary_rows
from xshare.bench.workload import Workload
from xshare.cli import options as take
from xshare.cli.interrupted import plural, says_what_is_kept
from xshare.cli.output import (
    chosen_engine,
    engine_arguments,
    number_table,
    print_table,
    progress_bar,
    result_options,
    staircase_file,
    unreal_notes,
    wide_console,
)
from xshare.cli.prompts import resolve_prompts
from xshare.cli.protection import show_protection
from xshare.engines.base import About, Engine
from xshare.engines.by_name import open_engine
from xshare.engines.client import Access
from xshare.errors import XShareError
from xshare.policy import Policy
from xshare.results import Results, Row, check_resumable
from xshare.results.columns import count_of
from xshare.statistics import FEWEST, interval_mark, interval_names
from xshare.version import __version__

KNOWS_COSTS = ("xshare", "native", "noop")  # methods that can weigh costs, or do not need to


def bench(
    engine: take.Engine = None,
    model: take.Model = None,
    policy: take.Policies = None,
    batch: Annotated[int, typer.Option(min=1, help="Requests decoded together, at most.")] = 16,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests per run; one batch by default.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second, Poisson; all at once by default.")] = None,
    prompts: take.Prompts = "questions",
    prompt_tokens: take.PromptTokens = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens per answer.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Runs per policy.")] = 5,
    drafts: take.Drafts = 0,
    cost: take.Cost = None,
    protect: take.Protect = None,
    seed: take.Seed = 0,
    device: take.Device = None,
    dtype: take.Dtype = None,
    engine_args: take.EngineArgs = "{}",
    api_key: take.ApiKey = None,
    ca_file: take.CaFile = None,
    out: take.Out = None,
) -> None:
    """Measure native routing, a no-op control and policies, interleaved: rates, latencies, experts, paired ratios."""
    policies = [Policy.parse(text) for text in policy or []]
    if rate is not None and not 0 < rate < inf:
        raise XShareError(f"rate must be above 0 requests a second, and finite, not {rate:g}")
    options = engine_arguments(engine_args, timed=True, device=device, dtype=dtype)
    prompt_source, prompt_tokens, texts = resolve_prompts(prompts, prompt_tokens)
    workload = Workload(batch, requests or batch, rate, prompt_tokens, tokens, prompt_source, seed, texts)
    stairs = None if cost is None else staircase_file(cost, workload.most_together, drafts)
    forms: Row = {} if stairs is None else {"cost": stairs.sha256}
    forms |= {"protect": protect} if protect else {}
    check_resumable(out, workload.record() | forms | {"engine_args": result_options(options), "xshare": __version__})
    with says_what_is_kept(out, kept_text):
        opened = open_engine(
            chosen_engine(engine, out),
            model,
            drafts=drafts,
            policies=policies,
            options=options,
            cost=cost,
            access=Access(api_key, ca_file),
        )
        if not policies and opened.serves is not None:
            policies = [opened.serves]
        try:
            if stairs is not None:
                stairs.check_batch(workload.most_together, opened.about.drafts or drafts)
            run(opened, policies, workload, repeats, options, out, forms)
        finally:
            opened.close()


def kept_text(results: Row) -> str:
    return plural(repeats_of(results["samples"]), "repeat") + " of every policy"


def repeats_of(samples: list[Row]) -> int:
    return 1 + max((sample["repeat"] for sample in samples), default=-1)


def run(
    engine: Engine,
    policies: list[Policy],
    workload: Workload,
    repeats: int,
    options: dict[str, Any],
    out: Path | None,
    forms: Row,
) -> None:
    """`forms`: further variants of every policy. `cost` is the hash of the staircase that sets are weighed by,
    `protect` the shares of protected requests; either may be missing."""
    policies_compared = policies_by_name(engine, policies)
    setting = workload.record() | {"drafts": engine.about.drafts}
    record = engine.about.record()
    fingerprint = (
        record
        | setting
        | forms
        | {"policies": list(policies_compared), "engine_args": result_options(options), "xshare": __version__}
    )
    control = str(noop_control(engine))
    results = Results(out, fingerprint, record | {"seed": workload.seed})
    samples = results.samples

    def keep(new_samples: list[Row]) -> None:
        samples.extend(new_samples)
        results.rows = summary_rows(samples, control, setting)
        results.write()

    remaining = range(repeats_of(samples), repeats)
    variants = [Variant(policy) for policy in policies_compared.values()]
    if "cost" in forms:
        variants = with_cost_variants(policies_compared, equal_policies(engine, policies, workload, samples))
    variants = with_protected_variants(variants, forms.get("protect", []), noop_control(engine))
    try:
        with progress_bar("answers", len(remaining) * len(variants) * workload.requests) as advance:
            compare(engine, variants, workload, remaining, advance, keep)
    finally:  # show what was measured, even after an error
        if samples:
            show(summary_rows(samples, control, setting), engine.about, workload, control)
            if out is not None:
                wide_console().print(f"results: {out}; run again, the same command goes on from there")


def equal_policies(engine: Engine, policies: list[Policy], workload: Workload, samples: list[Row]) -> dict[str, Policy]:
    """Policy name -> the plain policy that loads as many experts as it does with costs, taken from earlier samples or
    found now. Only XShare's own method weighs costs."""
    known = {sample["equals"]: Policy.parse(sample["policy"]) for sample in samples if "equals" in sample}
    own_policies = {str(policy): policy for policy in policies if policy.method == "xshare"}
    with progress_bar("equal experts", len(own_policies)) as advance:
        for name, policy in own_policies.items():
            if name not in known:
                known[name] = measure_equal_policy(engine, policy, workload)
            advance(1)
    return known


def regime(about: About, workload: Workload) -> str:
    """The conditions of the measurement, in two lines."""
    setup = [f"{about.model} on {about.engine} {about.version or ''}".strip(), about.device]
    setup += [about.dtype] if about.dtype is not None else []
    setup += [f"graphs {about.graphs}"] if about.graphs is not None else []
    if (about.tensor_parallel or 1) > 1:
        setup.append(f"tensor parallel {about.tensor_parallel}" + (", EP" if about.expert_parallel else ""))
    if about.experts:
        setup.append(f"{about.experts} experts, top-{about.top_k}, {about.layers} layers")
    load = f"{workload.requests} requests, {workload.batch} at a time"
    load += f", {workload.rate:g} a second" if workload.rate is not None else ""
    length = "" if workload.prompt_tokens is None else f" of {workload.prompt_tokens} tokens"
    load += f", prompts{length}{f' from {workload.prompts}' if workload.texts else ''}, answers of {workload.tokens}"
    load += f", {about.drafts} drafts" if about.drafts else ""
    return f"{', '.join(setup)}\n{load}"


def show(rows: list[Row], about: About, workload: Workload, control: str) -> None:
    interval_name, marks = interval_names([count_of(row, "ratio") for row in rows])
    columns = ["tokens/s", "in all", "ratio", interval_name, "TTFT ms", "ITL ms", "99 %", "step ms"]
    drafts = any(row["accepted_length"] is not None for row in rows)
    columns += [*(["accepted"] if drafts else []), "experts"]
    table = number_table(regime(about, workload), "policy", *columns)
    for row, mark in zip(rows, marks, strict=True):
        cells = [_number(row["otps"], 1), _number(row["otps_total"], 1), _number(row["ratio"], 3), _interval(row, mark)]
        cells += [_number(row[name], 2) for name in ("ttft_ms_p50", "itl_ms_p50", "itl_ms_p99", "step_ms")]
        cells += [_number(row["accepted_length"], 2)] if drafts else []
        experts = f"{_number(row['active'], 1)} of {_number(row['active_native'], 1)}"
        table.add_row(label(row, control), *cells, experts)
    print_table(table, "99 %", "in all", "TTFT ms", "step ms", "ITL ms", "accepted")
    console = wide_console()
    repeats = min(row["repeats"] for row in rows)
    explanation = f"Medians of {repeats} repeats." if repeats > 1 else "One repeat: nothing is known of the noise."
    explanation += " tokens/s: of a request, and in all; ITL: between two tokens, median and 99 %."
    if any(row["ratio"] is not None for row in rows):
        explanation += (
            " ratio: tokens/s a request against native's in the same repeat. The control selects and keeps all "
            "experts: what it loses is the cost of selecting."
        )
        explanation += f" Of fewer than {FEWEST} repeats there is no interval of 95 %." if 1 < repeats < FEWEST else ""
    console.print(explanation)
    show_protection(rows)
    for note in notes(rows, about, control):
        console.print(note)


def label(row: Row, control: str) -> str:
    if row.get("cost"):
        return f"{row['policy']} by cost"
    if "equals" in row:
        return f"{row['policy']} (as many)"
    if "protected" in row:
        return f"{row['policy']}, {row['protected']:.0%} protected"
    return f"{row['policy']} (control)" if row["policy"] == control else str(row["policy"])


def cost_notes(rows: list[Row]) -> list[str]:
    """The gain of weighing costs over a plain policy that loads as many experts."""
    notes = []
    plain = {row["equals"]: row for row in rows if "equals" in row}
    for row in (row for row in rows if row.get("cost") and row["policy"] in plain):
        equal = plain[row["policy"]]
        if row["equal_ratio"] is not None:
            notes.append(
                f"{row['policy']} by cost is {row['equal_ratio']:.3f} times as fast ({row['equal_ratio_low']:.3f} to "
                f"{row['equal_ratio_high']:.3f}{interval_mark(row['repeats'])}) as {equal['policy']}, which loads as "
                "many experts without costs."
            )
        if None not in (row["active"], equal["active"]) and abs(row["active"] - equal["active"]) > CLOSE:
            notes.append(
                f"Not quite as many, when it was timed: {equal['policy']} loaded {equal['active']:.1f} experts, and "
                f"{row['policy']} by cost {row['active']:.1f}."
            )
    if any(row.get("cost") for row in rows) and any(row["method"] not in KNOWS_COSTS for row in rows):
        notes.append("Rivals know no costs, and were measured without.")
    return notes


def notes(rows: list[Row], about: About, control: str) -> list[str]:
    """Caveats that a reader of the table must know."""
    lines = cost_notes(rows)
    identical = next((row["identical"] for row in rows if row["policy"] == control), None)
    if identical is not None and identical < 1:
        lines.append(f"The control changed {1 - identical:.1%} of native's answers, by rounding or by mistake.")
    for row in rows:
        if "compiled" in row:
            lines.append(
                f"{label(row, control)}: in {row['compiled']} of {row['repeats']} runs the engine compiled kernels, "
                f"each of the {TRIES} times it was tried: their times are too long."
            )
        if row["policy"] != NATIVE and row["acted"] is not None and row["acted"] < 0.95:
            lines.append(
                f"{label(row, '')} left {1 - row['acted']:.0%} of its decode steps alone, mostly by "
                f'{row["left_alone"]}: see "gates" of the xshare key, in which "bypass": false acts even where '
                "nothing is saved."
            )
    return lines + unreal_notes(about)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _interval(row: Row, mark: str) -> str:
    return "-" if row["ratio"] is None else f"{row['ratio_low']:.3f} to {row['ratio_high']:.3f}{mark}"
