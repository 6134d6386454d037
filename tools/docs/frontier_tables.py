"""Tables of the presets, for render.py: what they cost in answers (frontier.json), and give (paper_speed.json, ...)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quality_tables import Row, Table, change, experts_and_points, of_native
from spans import Span
from speed_tables import preset_rows

from xshare.policy import RECOMMENDED, Policy
from xshare.report.labels import policy_label

MODELS = ("nano", "lab")
SETTINGS = {"": (16, 0), "_drafts": (4, 3)}  # batch, drafts


def presets(results: Row, speed: Row) -> Table:
    """Each preset's speedup with experts in an H200's memory, and its cost to both models on fresh questions. A policy
    does not prune the timed shape as it prunes them, so all three have their share of experts."""
    columns = [f"{model}: {what}" for model in MODELS for what in ("experts", "points (95 %)")]
    cells = []
    for batch, drafts in SETTINGS.values():
        for preset in RECOMMENDED:
            policy = str(Policy.parse(preset))
            rows = [fresh_row(results, model, batch, drafts, policy) for model in MODELS]
            timed = _timed(speed, policy, batch, drafts)
            read = of_native(timed) if timed else ""
            name = f"`{preset}` ({RECOMMENDED[preset]})"
            cells.append([name, str(drafts or "none"), _times(timed), read, *experts_and_points(rows)])
    return ["preset", "drafts", "times as fast (95 %)", "timed: experts", *columns], cells


def preset_batches(speed: Row) -> Table:
    """The presets and the no-op control by batch."""
    batches = (4, 8, 16, 32)
    cells = []
    for name in (*RECOMMENDED, "noop"):
        policy = "noop" if name == "noop" else str(Policy.parse(name))
        rows = [_timed(speed, policy, batch, 0) for batch in batches]
        cells.append(["no-op control" if name == "noop" else f"`{name}`", *map(_times, rows)])
    return ["", *(f"{batch} requests" for batch in batches)], cells


def _timed(speed: Row, policy: str, batch: int, drafts: int) -> Row | None:
    """The row of that policy in an H200's own memory, on `carried` routing."""
    columns = {"policy": policy, "batch": batch, "drafts": drafts, "regime": "carried"}
    rows = (row for row in preset_rows(speed) if "prompt_tokens" not in row)
    return next((row for row in rows if columns.items() <= row.items()), None)


def _times(row: Row | None) -> str:
    """The speedup as text; empty where it was not timed."""
    if row is None:
        return ""
    return Span.of_starts(row, ".3f" if row["policy"] == "noop" else ".2f")


def frontier(results: Row, batch: int, drafts: int) -> Table:
    """All policies tried, from most experts to fewest: on the questions for choosing and, where they were confirmed, on
    the fresh ones."""
    columns = ("experts", "1000 to choose by", "3000 fresh", "KL")
    cells = []
    at = {
        (row["model"], row["set"], scaled(row)): row
        for row in results["rows"]
        if (row["batch"], row["drafts"]) == (batch, drafts) and row["policy"] != "native" and not row["paper"]
    }
    shares: dict[str, list[float]] = {}
    for (_, _, policy), row in at.items():
        shares.setdefault(policy, []).append(row["active"] / row["active_native"])
    for policy in sorted(shares, key=lambda policy: -shares[policy][0]):
        line = [f"`{policy_label(policy)}`"]
        for model in MODELS:
            chosen, fresh = (at.get((model, name, policy)) for name in ("choosing", "confirming"))
            row = chosen or fresh
            line += (
                [of_native(row), *(change(result) if result else "" for result in (chosen, fresh))] if row else [""] * 3
            )
            line += [f"{row['kl']:.4f}" if row else ""]
        cells.append(line)
    return ["policy", *(f"{model}: {what}" for model in MODELS for what in columns)], cells


def scaled(row: Row) -> str:
    """A policy as for nano's 64 experts: lab, with 128, has twice the batch budget."""
    if row["model"] == "nano" or ",m=" not in row["policy"] or ",m=0" in row["policy"]:
        return str(row["policy"])
    head, _, tail = row["policy"].partition(",m=")
    number, comma, rest = tail.partition(",")
    return f"{head},m={int(number) // 2}{comma}{rest}"


def offload(results: Row, batch: int) -> Table:
    """Step time against the experts read over the bus, per policy."""
    titles = ["policy", "experts", "ms per step", "times as fast", "by experts alone", "GB/s"]
    cells = []
    for row in (row for row in results["rows"] if row["batch"] == batch):
        label = {"noop": "no-op control", "native": "native"}.get(row["policy"], f"`{row['policy']}`")
        line = [label, f"{row['active']:.1f}", f"{row['ms']:.0f}"]
        cells.append(
            [
                *line,
                "" if row["policy"] == "native" else Span.ratio(row),
                f"{row['expected']:.2f}",
                f"{row['gbps']:.0f}",
            ]
        )
    return titles, cells


def gains(offload: Row, demo: Row, speed: Row) -> Table:
    """The presets' speedups, wherever they were timed."""
    bus = {row["policy"]: row for row in offload["rows"] if row["batch"] == 16}
    on_cpu = {row["policy"]: row for row in demo["rows"] if row["model"] == "large"}
    policies = {preset: str(Policy.parse(preset)) for preset in RECOMMENDED}
    rows = {
        "an H200's own memory; 16 requests": [_timed(speed, policy, 16, 0) for policy in policies.values()],
        "host memory, read by an H200 over the bus; 16 requests": [bus[preset] for preset in policies],
        "memory of a machine with two cores; 8 requests": [on_cpu[policy] for policy in policies.values()],
    }
    cells = [[where, *map(_times, timed)] for where, timed in rows.items()]
    return ["experts lie in", *(f"`{preset}` (95 %)" for preset in RECOMMENDED)], cells


def fresh_row(results: Row, model: str, batch: int, drafts: int, policy: str) -> Row | None:
    """A policy's answers to the questions that none was chosen by."""
    columns: Row = {"model": model, "set": "confirming", "batch": batch, "drafts": drafts, "policy": policy}
    return next((row for row in results["rows"] if columns.items() <= row.items()), None)


def tables() -> dict[str, tuple[str, Callable[..., Table]]]:
    """By marker: the result file, and the function that makes its table."""
    by_marker: dict[str, tuple[str, Callable[..., Table]]] = {"presets": ("frontier paper_speed", presets)}
    for name, (batch, drafts) in SETTINGS.items():
        by_marker[f"frontier{name}"] = ("frontier", partial(frontier, batch=batch, drafts=drafts))
    by_marker |= {f"offload_{batch}": ("offload", partial(offload, batch=batch)) for batch in (4, 16, 32)}
    by_marker["gains"] = ("offload demo paper_speed", gains)
    return by_marker | {"preset_batches": ("paper_speed", preset_batches)}
