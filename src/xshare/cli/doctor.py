"""xshare doctor: will it help on this machine? Forces the number of experts, fits the latency law, gives a verdict."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from xshare.bench.workload import Workload
from xshare.cli import options as take
from xshare.cli.interrupted import plural, says_what_is_kept
from xshare.cli.output import (
    check_local,
    chosen_engine,
    engine_arguments,
    number_table,
    print_table,
    progress_bar,
    unreal_notes,
    wide_console,
)
from xshare.cli.prompts import resolve_prompts
from xshare.cli.protection import show_protection
from xshare.engines.base import About, Engine
from xshare.engines.by_name import open_engine
from xshare.errors import XShareError
from xshare.policy import Policy
from xshare.protected_share import protected_requests
from xshare.results import Results, Row, check_resumable
from xshare.staircase import LEAST
from xshare.tune.backends import BackendBenchmark
from xshare.tune.cpu_products import find_cliff
from xshare.tune.doctor import FITS, Examination, TimedRun, TimedVariant, count_runs, examine, verdict, waves
from xshare.version import __version__

POLICIES = ("k0=1,m=0", "k0=2,m=0")
SHARES = (0.1, 0.5)  # of protected requests


def doctor(
    engine: take.LocalEngine = None,
    model: take.Model = None,
    policy: take.Policies = None,
    batch: Annotated[int, typer.Option(min=2, help="Requests decoded together.")] = 16,
    prompts: take.Prompts = "questions",
    prompt_tokens: take.PromptTokens = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Tokens per answer; with --stairs, at most.",
            show_default="32; with --stairs, as many as needed",
        ),
    ] = None,
    drafts: take.Drafts = 0,
    protect: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=1,
            help="Measure policies again with this share of the requests protected; may be repeated.",
            show_default=" and ".join(f"{share:g}" for share in SHARES) + "; 0 for none",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs per number of experts.")] = 3,
    seed: take.Seed = 0,
    device: take.Device = None,
    dtype: take.Dtype = None,
    engine_args: take.EngineArgs = "{}",
    out: take.Out = None,
    stairs: Annotated[
        Path | None,
        typer.Option(help="Measure the cost of sets of every size instead, and write it to this file.", metavar="FILE"),
    ] = None,
    rows: Annotated[
        list[int] | None,
        typer.Option(min=2, help="Rows per step, for --stairs; may be repeated.", show_default="those of the batch"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=LEAST, help="Rounds over all sizes, at most, for --stairs.")] = 12,
    backends: Annotated[bool, typer.Option("--backends", help="Time every MoE kernel of vLLM instead.")] = False,
    backend: Annotated[
        list[str] | None, typer.Option(help="Time this MoE kernel of vLLM instead; may be repeated.", metavar="NAME")
    ] = None,
) -> None:
    """Force the number of active experts, fit step = a + b * T, and say whether selection is worth it here."""
    if stairs is None and rows:
        raise XShareError("--rows are those of the staircase: name its file, with --stairs FILE")
    if stairs is not None and (policy or out is not None):
        raise XShareError("--stairs FILE measures sets of every size alone, into FILE: leave --policy and --out out")
    backends = backends or bool(backend)
    if protect and (stairs is not None or backends):
        raise XShareError("--protect measures policies with some requests protected: leave --stairs and --backends out")
    if backends and (stairs is not None or engine not in (None, "vllm")):
        raise XShareError("--backends are kernels of vLLM: leave --stairs out, and name no other engine")
    engine = "vllm" if backends else chosen_engine(engine, stairs or out)
    check_local(engine)
    policies = [Policy.parse(text) for text in policy or POLICIES]
    options = engine_arguments(engine_args, timed=True, device=device, dtype=dtype)
    prompts, prompt_tokens, texts = resolve_prompts(prompts, prompt_tokens)
    if stairs is not None:
        from xshare.cli.staircase import staircase

        workload = Workload(batch, batch, None, prompt_tokens, 0, prompts, seed, texts)
        staircase(engine, model, stairs, rows or [], rounds, workload, drafts, options, tokens)
        return
    tokens = tokens or 32
    if backends:
        from xshare.cli.backends import backends as compare_backends

        workload = Workload(batch, batch, None, prompt_tokens, tokens, prompts, seed, texts)
        policy_names = tuple(str(Policy.parse(text)) for text in policy or ("balanced",))
        compare_backends(BackendBenchmark(model, policy_names, workload, repeats, drafts, options), backend or [], out)
        return
    setting: Row = {"batch": batch, "prompts": prompts, "prompt_tokens": prompt_tokens, "tokens": tokens, "seed": seed}
    setting |= {"engine_args": options, "xshare": __version__}
    check_resumable(out, setting | {"engine": engine})
    forced = Policy(batch_budget=1)
    with says_what_is_kept(out, kept_text):
        opened = open_engine(engine, model, drafts=drafts, policies=[*policies, forced], options=options)
        about = opened.about
        workload = Workload(batch, batch * waves(about.drafts), None, prompt_tokens, tokens, prompts, seed, texts)
        try:
            results = Results(out, about.record() | setting, about.record() | {"seed": seed})
            shares = [share for share in dict.fromkeys(SHARES if protect is None else protect) if share]
            examination = run_examination(opened, workload, policies, repeats, shares, results)
        finally:
            opened.close()
    worth, why = verdict(examination)
    show(examination, about, worth, why)
    cliff = find_cliff() if about.device == "cpu" else None
    if cliff is not None:
        wide_console().print(f"products   {cliff}")
    results.rows = [row_of(variant, examination) for variant in all_variants(examination)]
    figures: Row = {
        "law": asdict(examination.law),
        "overhead": examination.overhead,
        "copy_gbps": examination.copy_gbps,
    }
    results.write(**figures, worth=worth, verdict=why)
    if out is not None:
        wide_console().print(f"results: {out}")


def kept_text(results: Row) -> str:
    return plural(len({sample["repeat"] for sample in results["samples"]}), "repeat") + " of every number of experts"


def run_examination(
    engine: Engine, workload: Workload, policies: list[Policy], repeats: int, shares: list[float], results: Results
) -> Examination:
    def keep(repeat: list[TimedRun]) -> None:  # the rows of an earlier run stay until this one has its own
        results.put([asdict(run) for run in repeat], by=("point", "batch", "repeat"), into="samples")
        results.write()

    about = engine.about
    policy_variants = len(policies) * (1 + len(shares))
    with progress_bar(
        "runs", count_runs(about.experts, about.top_k, workload.batch, policy_variants, repeats)
    ) as advance:
        return examine(
            engine,
            workload.prompts_of(engine, 0),
            policies,
            tokens=workload.tokens,
            repeats=repeats,
            protect=shares,
            advance=advance,
            known=[TimedRun(**sample) for sample in results.samples],
            keep=keep,
        )


def all_variants(examination: Examination) -> list[TimedVariant]:
    return [
        examination.native,
        examination.noop,
        *examination.forced,
        *examination.policies,
        *examination.by_batch,
        *examination.protected,
    ]


def row_of(variant: TimedVariant, examination: Examination) -> Row:
    whole = variant.batch == examination.native.batch
    unprotected = next((policy for policy in examination.policies if policy.name == variant.name), None)
    row: Row = {"policy": variant.name}
    if variant.protected:
        row |= {
            "protected": variant.protected,
            "protected_requests": len(protected_requests(variant.protected, variant.requests)),
        }
    row |= {
        "batch": variant.batch,
        "step_ms": variant.ms,
        "active": variant.active,
        "active_native": variant.mean("experts_native"),
        "mass": variant.mass,
        "predicted": examination.expected_gain(variant) if variant in examination.policies else None,
        "mass_shared": variant.mean("mass_shared"),
        "requests": variant.requests or variant.batch,
        "repeats": len(variant.step_ms),
        **_paired("ratio", examination.speedup(variant, examination.native) if whole else (None,) * 3),
    }
    return row | (
        _paired("nobody_ratio", examination.speedup(variant, unprotected)) if variant.protected and unprotected else {}
    )


def _paired(name: str, values: tuple[float | None, ...]) -> Row:
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def number_text(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def show(examination: Examination, about: About, worth: bool, why: str) -> None:
    title = f"{about.model} on {about.engine} {about.version}, {about.device}, batch {examination.native.batch}"
    title += f", {about.drafts} drafts" if about.drafts else ""
    table = number_table(title, "", "experts", "step ms", "by the law", "mass", "faster", "expected")
    for variant in (variant for variant in all_variants(examination) if not variant.protected):
        whole = variant.batch == examination.native.batch
        table.add_row(
            variant.name if whole else f"native, batch {variant.batch}",
            number_text(variant.active, ".1f"),
            f"{variant.ms:.2f}",
            f"{examination.law.step(variant.active):.2f}" if whole and variant.active is not None else "",
            number_text(variant.mass, ".3f"),
            f"{examination.speedup(variant, examination.native)[0]:.2f}x" if whole else "",
            number_text(examination.expected_gain(variant), ".2f") + "x" if variant in examination.policies else "",
        )
    print_table(table, "by the law", "mass")
    show_protection([row_of(variant, examination) for variant in (*examination.policies, *examination.protected)])
    console = wide_console()
    expert_share = max(0.0, examination.law.share(examination.native_experts))
    console.print(f"law        {examination.law}; experts are {expert_share:.0%} of a step")
    console.print(f"overhead   selection that keeps everything takes {examination.overhead - 1:+.1%} of a step")
    if examination.expert_bytes is None:
        console.print("bandwidth  not known: this engine keeps its experts in a form whose size cannot be told")
    elif examination.bandwidth_gbps is not None and examination.law.r2 >= FITS:
        share = examination.bandwidth_gbps / examination.copy_gbps
        whose = "the bus to host memory, where they lie:" if examination.on_host else "this device's"
        console.print(
            f"bandwidth  experts are read at {examination.bandwidth_gbps:.0f} GB/s, {share:.0%} of {whose} "
            f"{examination.copy_gbps:.0f} GB/s in a copy"
        )
        if examination.on_host and examination.expert_bytes:
            least = examination.native_experts * examination.expert_bytes / examination.copy_gbps / 1e6
            native = f"{examination.native_experts:.1f} experts"
            console.print(f"bus        {native} take at least {least:.0f} ms to read, a step natively")
    for note in unreal_notes(about):
        console.print(note)
    console.print(f"[bold]{'worth it' if worth else 'not worth it'}[/bold]: {why}")
