"""Tables of larger batches, thresholds and device budgets, of speed and answers of one model, of vLLM's kernels, and of
selection in two halves, for render.py: a result file -> titles and cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quality_tables import change, of_native
from spans import Span, Table

from xshare.report.labels import policy_label

Row = dict[str, Any]
CONTROL = "no-op control"
IMPLS = ("fused", "halves", "across")


def larger_batches(results: Row) -> Table:
    """A line per policy, experts and points at each batch above 16."""
    rows = [
        row for row in results["rows"] if row["batch"] > 16 and row["method"] != "native" and row["paper"] != CONTROL
    ]
    batches = sorted({row["batch"] for row in rows})
    cells = []
    for policy in dict.fromkeys(row["policy"] for row in rows):
        at = {row["batch"]: row for row in rows if row["policy"] == policy}
        line = [cell for batch in batches for cell in (of_native(at[batch]), change(at[batch]))]
        cells.append([f"`{policy_label(policy)}`", *line])
    return ["policy", *(f"{batch}: {what}" for batch in batches for what in ("experts", "points (95 %)"))], cells


def bounded(results: Row, letter: str) -> Table:
    """Policies with a threshold (tau) or a device budget (mg), from most experts to fewest."""
    rows = [row for row in results["rows"] if f",{letter}=" in row["policy"]]
    rows.sort(key=lambda row: -row["active"] / row["active_native"])
    cells = [[f"`{row['policy']}`", of_native(row), change(row), f"{row['kl']:.4f}"] for row in rows]
    return ["policy", "experts", "points (95 %)", "KL"], cells


def one_model(results: Row) -> Table:
    titles = ["", "tokens per second", "times as fast (95 %)", "experts", "right", "points (95 %)"]
    cells = []
    for row in results["rows"]:
        native = row["policy"] == "native"
        experts = "" if row["active"] is None else f"{row['active']:.1f} of {row['active_native']:.1f}"
        line = [row["preset"], f"{row['tokens_per_s']:.0f}", "" if native else Span.ratio(row), experts]
        cells.append([*line, f"{row['accuracy']:.1%}", "" if native else change(row)])
    return titles, cells


def backends(results: Row) -> Table:
    """A line per kernel of vLLM: its native step, and how many times as fast a step is under each policy."""
    rows = results["rows"]
    policies = [name for name in dict.fromkeys(row["policy"] for row in rows) if name != "native"]
    titles = ["`--moe-backend`", "kernel", "native, ms per step"]
    controls = {row["policy"] for row in rows if row["method"] == "noop"}
    titles += ["control (95 %)" if name in controls else f"`{policy_label(name)}` (95 %)" for name in policies]
    cells = []
    for backend in dict.fromkeys(row["moe_backend"] for row in rows):
        at = {row["policy"]: row for row in rows if row["moe_backend"] == backend}
        timed = [Span.ratio(at[name], "step_ratio") for name in policies]
        cells.append([f"`{backend}`", f"`{at['native']['backend']}`", f"{at['native']['step_ms']:.2f}", *timed])
    return titles, cells


def parallel_kernel(results: Row) -> Table:
    """Marginal microseconds of a layer, by rows: one launch, two halves, and the collective between them."""
    at = {(row["router"], row["experts"], row["n"], row["impl"]): row for row in results["rows"]}
    cells = []
    for router, experts, n in dict.fromkeys(key[:3] for key in at):
        times = [f"{at[router, experts, n, impl]['marginal_us']:.1f}" for impl in IMPLS]
        cells.append([f"{experts}, {router}", str(n), *times, str(at[router, experts, n, "across"]["bytes"])])
    return ["experts", "rows", "one launch", "two halves", "with the collective", "bytes of the message"], cells


def protected_kernel(results: Row) -> Table:
    """What a kernel that can protect rows costs, with nobody protected and with two rows."""
    forms = ("bare", "one", "guarded")
    cells = [
        [str(row["rows"]), *(f"{row[f'{form}_us'] - row['none_us']:.1f}" for form in forms)]
        for row in results["rows"]
        if not row["each"] and "bare_us" in row
    ]
    return ["rows", "`protect: false`", "nobody protected", "two rows protected"], cells


def tables() -> dict[str, tuple[str, Callable[..., Table]]]:
    return {
        "larger_batches": ("further_quality", larger_batches),
        "thresholds": ("further_quality", lambda results: bounded(results, "tau")),
        "device_budgets": ("further_quality", lambda results: bounded(results, "mg")),
        "one_model": ("one_model", one_model),
        "backends": ("backends", backends),
        "parallel_kernel": ("parallel_kernel", parallel_kernel),
        "protected_kernel": ("one_launch", protected_kernel),
    }
