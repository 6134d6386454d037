"""xshare doctor --backends: step time with each MoE kernel of vLLM, native and pruned."""

from __future__ import annotations

from pathlib import Path

from xshare.cli.interrupted import plural, says_what_is_kept
from xshare.cli.output import number_table, print_table, progress_bar, wide_console
from xshare.engines.by_name import moe_backends
from xshare.errors import XShareError
from xshare.results import Results, Row, check_resumable
from xshare.results.columns import count_of
from xshare.statistics import interval_names
from xshare.tune.backends import BackendBenchmark, measure_in_process
from xshare.version import __version__

NATIVE = "native"
# Facts of an engine, known once it has started, in which all runs of a file agree. Others depend on the kernel.
PLACE = ("version", "device", "config", "files")


def backends(benchmark: BackendBenchmark, chosen: list[str], out: Path | None) -> None:
    """Measure the `chosen` values of moe_backend, or all, and print a table. Those that the file `out` already holds
    are not measured again. What did not start is kept once another kernel has: the file then says on which device."""
    if "moe_backend" in benchmark.options:
        raise XShareError("--backends names the moe_backend itself: leave it out of engine-args")
    fingerprint: Row = {
        "backends": True,
        "engine": "vllm",
        "model": benchmark.model or "nano",
        "drafts": benchmark.drafts,
    }
    fingerprint |= benchmark.workload.record() | {"policies": list(benchmark.policies), "repeats": benchmark.repeats}
    fingerprint |= {"engine_args": dict(benchmark.options), "xshare": __version__}
    check_resumable(out, fingerprint)
    known_names = moe_backends()
    if unknown := [name for name in chosen if name not in known_names]:
        raise XShareError(f"--backend {unknown[0]}: this vLLM has {', '.join(known_names)}")
    results = Results(out, fingerprint, {"seed": benchmark.workload.seed})
    with says_what_is_kept(out, kept_text):
        names = [name for name in known_names if not chosen or name in chosen]
        place_known = False
        with progress_bar("backends", len(names)) as advance:
            for name in names:
                if name not in [sample["moe_backend"] for sample in results.samples]:
                    known = {row["backend"]: row["moe_backend"] for row in results.rows}
                    result = measure_in_process(name, benchmark, known)
                    if result.about:
                        results.add_to_stamp(result.about, same=PLACE)
                        place_known = True
                    results.samples.append(result.record())
                    results.rows += result.rows
                    if place_known:
                        results.write()
                advance(1)
    show(results.rows, results.samples, benchmark)
    if out is not None:
        wide_console().print(f"results: {out}")


def kept_text(results: Row) -> str:
    return plural(len(results["samples"]), "backend")


def show(rows: list[Row], samples: list[Row], benchmark: BackendBenchmark) -> None:
    console = wide_console()
    for sample in samples:
        if sample["why"] is not None:
            console.print(f"{sample['moe_backend']}: left out, {sample['why']}", markup=False)
    if not rows:
        raise XShareError("no moe_backend of this vLLM could be measured here: the lines above say why")
    repeats = plural(benchmark.repeats, "repeat")
    title = f"{benchmark.model or 'nano'} on vllm, batch {benchmark.workload.batch}, medians of {repeats}"
    interval_name, marks = interval_names([count_of(row, "step_ratio") for row in rows])
    table = number_table(title, "moe_backend", "kernel", "policy", "step ms", "ratio", interval_name, "experts")
    for row, mark in zip(rows, marks, strict=True):
        interval = (
            "" if row["policy"] == NATIVE else f"{row['step_ratio_low']:.2f} to {row['step_ratio_high']:.2f}{mark}"
        )
        experts = "-" if row["active"] is None else f"{row['active']:.1f}"
        ratio = f"{row['step_ratio']:.2f}x"
        table.add_row(
            row["moe_backend"], row["backend"], row["policy"], f"{row['step_ms']:.2f}", ratio, interval, experts
        )
    print_table(table, "kernel")
    console.print(fastest_text(rows))


def fastest_text(rows: list[Row]) -> str:
    """Which kernel was fastest."""
    kernels = {row["backend"] for row in rows}
    if len(kernels) == 1:
        return f"Only one kernel was measured, {kernels.pop()}: there is none to choose."
    native, best = min((row for row in rows if row["policy"] == NATIVE), key=_ms), min(rows, key=_ms)
    return (
        f"Fastest natively: {native['moe_backend']}, {native['step_ms']:.2f} ms a step; of all: {best['moe_backend']} "
        f"with {best['policy']}, {best['step_ms']:.2f} ms."
    )


def _ms(row: Row) -> float:
    return float(row["step_ms"])
