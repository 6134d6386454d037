"""xshare doctor: will it help on this machine? Forces experts, fits the law, and says so in words."""

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
from xshare.protected_share import spread
from xshare.results import Results, Row, check_continued
from xshare.tune.backends import BackendBenchmark
from xshare.tune.cpu_products import find_cliff
from xshare.tune.doctor import FITS, Examination, TimedRun, TimedVariant, count_runs, examine, verdict, waves
from xshare.tune.staircase import LEAST
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
        typer.Option(min=2, help="Tokens of an answer; with --stairs, at most.", show_default="32; what it takes"),
    ] = None,
    drafts: take.Drafts = 0,
    protect: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=1,
            help="Shares of the requests with which policies are measured again; may be repeated.",
            show_default=" and ".join(f"{share:g}" for share in SHARES) + "; 0 for none",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each number of experts.")] = 3,
    seed: take.Seed = 0,
    device: take.Device = None,
    dtype: take.Dtype = None,
    engine_args: take.EngineArgs = "{}",
    out: take.Out = None,
    stairs: Annotated[
        Path | None, typer.Option(help="Measure sets of every size instead, and write what they cost.", metavar="FILE")
    ] = None,
    rows: Annotated[
        list[int] | None,
        typer.Option(min=2, help="Rows of a step, for --stairs; may be repeated.", show_default="the batch's"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=LEAST, help="Of all sizes, for --stairs, at most.")] = 12,
    backends: Annotated[
        bool, typer.Option("--backends", help="Time every kernel that vLLM has for experts instead.")
    ] = False,
) -> None:
    """Force the number of active experts, fit step = a + b * T, and say whether selection is worth it here."""
    if stairs is None and rows:
        raise XShareError("--rows are those of the staircase: name its file, with --stairs FILE")
    if stairs is not None and (policy or out is not None):
        raise XShareError("--stairs FILE measures sets of every size alone, into FILE: leave --policy and --out out")
    if protect and (stairs is not None or backends):
        raise XShareError("--protect measures policies with some requests protected: leave --stairs and --backends out")
    if backends and (stairs is not None or engine not in (None, "vllm")):
        raise XShareError("--backends are kernels of vLLM: leave --stairs out, and name no other engine")
    engine = "vllm" if backends else chosen_engine(engine, stairs or out)
    check_local(engine)
    asked = [Policy.parse(text) for text in policy or POLICIES]
    options = engine_arguments(engine_args, timed=True, device=device, dtype=dtype)
    prompts, prompt_tokens, texts = resolve_prompts(prompts, prompt_tokens)
    if stairs is not None:
        from xshare.cli.staircase import staircase

        asks = Workload(batch, batch, None, prompt_tokens, 0, prompts, seed, texts)
        staircase(engine, model, stairs, rows or [], rounds, asks, drafts, options, tokens)
        return
    tokens = tokens or 32
    if backends:
        from xshare.cli.backends import backends as compared

        asks = Workload(batch, batch, None, prompt_tokens, tokens, prompts, seed, texts)
        named = tuple(str(Policy.parse(text)) for text in policy or ("balanced",))
        compared(BackendBenchmark(model, named, asks, repeats, drafts, options), out)
        return
    setting: Row = {"batch": batch, "prompts": prompts, "prompt_tokens": prompt_tokens, "tokens": tokens, "seed": seed}
    setting |= {"engine_args": options, "xshare": __version__}
    check_continued(out, setting | {"engine": engine})
    forced = Policy(batch_budget=1)
    with says_what_is_kept(out, kept_text):
        opened = open_engine(engine, model, drafts=drafts, policies=[*asked, forced], options=options)
        about = opened.about
        workload = Workload(batch, batch * waves(about.drafts), None, prompt_tokens, tokens, prompts, seed, texts)
        try:
            results = Results(out, about.record() | setting, about.record() | {"seed": seed})
            shares = [share for share in dict.fromkeys(SHARES if protect is None else protect) if share]
            found = run_examination(opened, workload, asked, repeats, shares, results)
        finally:
            opened.close()
    worth, why = verdict(found)
    show(found, about, worth, why)
    slow = find_cliff() if about.device == "cpu" else None
    if slow is not None:
        wide_console().print(f"products   {slow}")
    results.rows = [row_of(way, found) for way in all_variants(found)]
    measured: Row = {"law": asdict(found.law), "overhead": found.overhead, "copy_gbps": found.copy_gbps}
    results.write(**measured, worth=worth, verdict=why)
    if out is not None:
        wide_console().print(f"results: {out}")


def kept_text(found: Row) -> str:
    return plural(len({sample["repeat"] for sample in found["samples"]}), "repeat") + " of every number of experts"


def run_examination(
    engine: Engine, workload: Workload, asked: list[Policy], repeats: int, shares: list[float], results: Results
) -> Examination:
    def keep(repeat: list[TimedRun]) -> None:  # what an earlier run came to stays until this one has
        results.put([asdict(each) for each in repeat], by=("point", "batch", "repeat"), into="samples")
        results.write()

    about = engine.about
    ways = len(asked) * (1 + len(shares))
    with progress_bar("runs", count_runs(about.experts, about.top_k, workload.batch, ways, repeats)) as advance:
        return examine(
            engine,
            workload.prompts_of(engine, 0),
            asked,
            tokens=workload.tokens,
            repeats=repeats,
            protect=shares,
            advance=advance,
            known=[TimedRun(**sample) for sample in results.samples],
            keep=keep,
        )


def all_variants(found: Examination) -> list[TimedVariant]:
    return [found.native, found.noop, *found.forced, *found.policies, *found.by_batch, *found.protected]


def row_of(way: TimedVariant, found: Examination) -> Row:
    whole, nobody = (
        way.batch == found.native.batch,
        next((each for each in found.policies if each.name == way.name), None),
    )
    row: Row = {"policy": way.name}
    if way.protected:
        row |= {"protected": way.protected, "protected_requests": len(spread(way.protected, way.requests))}
    row |= {
        "batch": way.batch,
        "step_ms": way.ms,
        "active": way.active,
        "active_native": way.mean("experts_native"),
        "mass": way.mass,
        "predicted": found.expected_gain(way) if way in found.policies else None,
        "mass_shared": way.mean("mass_shared"),
        "requests": way.requests or way.batch,
        "repeats": len(way.step_ms),
        **_paired("ratio", found.speedup(way, found.native) if whole else (None,) * 3),
    }
    return row | (_paired("nobody_ratio", found.speedup(way, nobody)) if way.protected and nobody else {})


def _paired(name: str, values: tuple[float | None, ...]) -> Row:
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def number_text(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def show(found: Examination, about: About, worth: bool, why: str) -> None:
    title = f"{about.model} on {about.engine} {about.version}, {about.device}, batch {found.native.batch}"
    title += f", {about.drafts} drafts" if about.drafts else ""
    table = number_table(title, "", "experts", "step ms", "by the law", "mass", "faster", "expected")
    for way in (way for way in all_variants(found) if not way.protected):
        whole = way.batch == found.native.batch
        table.add_row(
            way.name if whole else f"native, batch {way.batch}",
            number_text(way.active, ".1f"),
            f"{way.ms:.2f}",
            f"{found.law.step(way.active):.2f}" if whole and way.active is not None else "",
            number_text(way.mass, ".3f"),
            f"{found.speedup(way, found.native)[0]:.2f}x" if whole else "",
            number_text(found.expected_gain(way), ".2f") + "x" if way in found.policies else "",
        )
    print_table(table, "by the law", "mass")
    show_protection([row_of(way, found) for way in (*found.policies, *found.protected)])
    console = wide_console()
    console.print(
        f"law        {found.law}; experts are {max(0.0, found.law.share(found.native_experts)):.0%} of a step"
    )
    console.print(f"overhead   selection that keeps everything takes {found.overhead - 1:+.1%} of a step")
    if found.expert_bytes is None:
        console.print("bandwidth  not known: this engine keeps its experts in a form whose size cannot be told")
    elif found.bandwidth_gbps is not None and found.law.r2 >= FITS:
        share = found.bandwidth_gbps / found.copy_gbps
        whose = "the bus to host memory, where they lie:" if found.on_host else "this device's"
        console.print(
            f"bandwidth  experts are read at {found.bandwidth_gbps:.0f} GB/s, {share:.0%} of {whose} "
            f"{found.copy_gbps:.0f} GB/s in a copy"
        )
        if found.on_host and found.expert_bytes:
            least = found.native_experts * found.expert_bytes / found.copy_gbps / 1e6
            console.print(
                f"bus        {found.native_experts:.1f} experts take at least {least:.0f} ms to read, a step natively"
            )
    for note in unreal_notes(about):
        console.print(note)
    console.print(f"[bold]{'worth it' if worth else 'not worth it'}[/bold]: {why}")
