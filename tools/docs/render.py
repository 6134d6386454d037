"""Write the tables of README.md and docs/ from evidence/*.json, between their `<!-- table:NAME -->` markers.

python tools/docs/render.py [--check]
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import acceptance_tables
import claim_tables
import frontier_tables
import further_tables
import online_tables
import parallel_tables
import protected_tables
import quality_tables
import speed_tables
import stamp_tables
import summary_tables
import third_tables
import typer
from spans import Span, called

from xshare.policy_text import current_policy_text
from xshare.report.labels import policy_label
from xshare.results.columns import mean_text
from xshare.tasks import ASKED

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "nano/xshare_nano/nano/README.md"]
PAGES += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
Row = dict[str, Any]


def rows_of(name: str) -> list[Row]:
    rows: list[Row] = json.loads((ROOT / "evidence" / f"{name}.json").read_text())["rows"]
    return rows


def markdown(titles: list[str], cells: list[list[str]]) -> str:
    titles, cells = called(titles, cells)
    lines = ["| " + " | ".join(line) + " |" for line in [titles, *cells]]
    return "\n".join([lines[0], "|---" + "|--:" * (len(titles) - 1) + "|", *lines[1:]])


def replay_table(name: str) -> str:
    titles = ["policy", "active experts", "of native", "gating mass", "top-1 kept", "max load"]
    cells = [
        [
            f"`{policy_label(row['policy'])}`",
            mean_text(row, "active", 1),
            quality_tables.of_native(row),
            mean_text(row, "mass", 3),
            f"{row['top1_kept']:.3f}",
            f"{row['max_load']:.1f}",
        ]
        for row in rows_of(name)
    ]
    return markdown(titles, cells)


def curve_table(name: str) -> str:
    rows = rows_of(name)
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    cells = []
    for size in dict.fromkeys(row["batch"] for row in rows):
        at = {row["policy"]: row for row in rows if row["batch"] == size}
        cells.append(
            [
                str(size),
                f"{at['native']['closed_form']:.1f}",
                *(mean_text(at[policy], "active", 1) for policy in policies),
            ]
        )
    return markdown(["batch", "closed form", *(f"`{policy}`" for policy in policies)], cells)


def overlap_table(name: str) -> str:
    titles = ["pair of tokens", "of their top", "experts shared", "by chance"]
    cells = [
        [row["pair"], str(row["top"]), mean_text(row, "overlap", 3), f"{row['chance']:.3f}"] for row in rows_of(name)
    ]
    return markdown(titles, cells)


def select_table(name: str) -> str:
    rows = [row for row in rows_of(name) if row["question"] == "rows"]
    sizes = list(dict.fromkeys(row["n"] for row in rows))
    cells = []
    for policy in dict.fromkeys(row["policy"] for row in rows):
        at = {row["n"]: row for row in rows if row["policy"] == policy}
        growth = f"{at[4096]['growth']:.1f} / {at[4096]['growth_router']:.1f}"
        cells.append([f"`{policy}`", *(f"{at[n]['ratio']:.1f}" for n in sizes), growth])
    return markdown(["policy", *(f"n={n}" for n in sizes), "growth 256 to 4096, and the router's"], cells)


def kernel_table(name: str) -> str:
    rows = rows_of(name)
    cells = []
    names = [name for name in KERNELS if any(row["impl"] == name for row in rows)]

    def point_of(row: Any) -> tuple[Any, ...]:
        return row["router"], row["policy"], row["experts"], row["k"], row["n"], row.get("cost", False)

    for point in dict.fromkeys(map(point_of, rows)):
        at = {row["impl"]: row for row in rows if point_of(row) == point}
        router, policy, N, k, n, cost = point
        times = [f"{at[name]['marginal_us']:.1f}" if name in at else "" for name in names]
        case = f"{router} `{policy}`" + (", by a cost table" if cost else "")
        cells.append([case, str(N), str(k), str(n), *times, f"{at['fused']['us']:.1f}"])
    return markdown(["router, policy", "N", "k", "rows", *names, "fused, alone"], cells)


def load_table(name: str) -> str:
    cells = [
        [str(row["layer"]), f"{row['entropy']:.3f}", f"{row['dead']:.1%}", f"{row['heaviest']:.1f}x"]
        for row in rows_of(name)
    ]
    return markdown(["layer", "entropy of the load", "dead experts", "heaviest, in even loads"], cells)


def demo_table(name: str) -> str:
    """Speed and answers of the presets in one table; they were measured on different models."""
    titles = ["policy", "experts", "of native", "accuracy", "change", "95 %", "agreement", "times as fast", "95 %"]
    rows = rows_of(name)
    speed = {row["policy"]: row for row in rows if row["model"] == "large"}
    cells = []
    for row in (row for row in rows if row["model"] == "nano"):
        timed, pruned = speed.get(row["policy"]), row["method"] != "native"
        cells.append(
            [
                f"`{policy_label(row['policy'])}`",
                f"{row['active']:.1f}",
                quality_tables.of_native(row),
                f"{row['accuracy']:.1%}",
                f"{row['change']:+.1%}" if pruned else "",
                Span(f"{row['change_low']:+.0%} to {row['change_high']:+.0%}") if pruned else "",
                f"{row['agreement']:.1%}",
                f"{timed['ratio']:.2f}" if timed and pruned else "",
                Span.of(f"{timed['ratio_low']:.2f} to {timed['ratio_high']:.2f}", timed) if timed and pruned else "",
            ]
        )
    return markdown(titles, cells)


def recipe(name: str) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads((ROOT / "recipes" / "nano" / f"{name}.json").read_text())
    return contents


def nano_accuracy_table(_: str) -> str:
    cells = [
        [kind, ", ".join(f"{size}: {value:.0%}" for size, value in by.items()), str(ASKED.get(kind, "not asked"))]
        for kind, by in recipe("evaluation-nano")["accuracy"].items()
    ]
    return markdown(["kind", "right, by size", "asked at"], cells)


def nano_loss_table(_: str) -> str:
    cells = [
        [domain, f"{loss:.3f}", f"{math.exp(loss):.1f}"] for domain, loss in recipe("evaluation-nano")["loss"].items()
    ]
    return markdown(["held-out text", "loss per token", "perplexity"], cells)


def nano_accepted_table(_: str) -> str:
    accepted = recipe("accepted")["accepted"]
    return markdown([*accepted], [[f"{length:.2f}" for length in accepted.values()]])


def cpu_decode_table(name: str) -> str:
    rows = [row for row in rows_of(name) if "policy" in row]
    cells = [
        [
            f"`{policy_label(row['policy'])}`",
            f"{row['active']:.1f}",
            f"{row['ms']:.1f}",
            f"{row['times']:.2f}",
            Span.of(f"{row['times_low']:.2f} to {row['times_high']:.2f}", row, "times"),
        ]
        for row in rows
    ]
    return markdown(["policy", "experts", "ms per step", "times as fast", "95 %"], cells)


def products_table(name: str) -> str:
    rows = [row for row in rows_of("cpu_decode") if "policy" not in row]
    cells = [
        ["with oneDNN", *(f"{row['onednn_ms']:.2f}" for row in rows)],
        ["without", *(f"{row['without_ms']:.2f}" for row in rows)],
    ]
    return markdown(["rows", *(str(row["rows"]) for row in rows)], cells)


def cpu_selection_table(name: str) -> str:
    cells = [
        [f"`{row['policy']}`"]
        + [f"{row[column]:.0f}" for column in ("selection_us", "route_us", "reference_us")]
        + [f"{row['times']:.0f} ({row['times_least']:.0f})"]
        for row in rows_of(name)
    ]
    return markdown(["policy", "selection", "`route`", "reference", "reference / selection (least)"], cells)


KERNELS = ["floor", "reference", "compiled", "fused", "fused-any", "fused-off"]
TABLES: dict[str, Callable[[str], str]] = {
    "replay": replay_table,
    "replay_draft": replay_table,
    "replay_devices": replay_table,
    "replay_presets": replay_table,
    "replay_mixed": replay_table,
    "replay_single": replay_table,
    "curve": curve_table,
    "overlap": overlap_table,
    "select": select_table,
    "kernel": kernel_table,
    "kernel_score": kernel_table,
    "nano_load": load_table,
    "nano_curve": curve_table,
    "nano_curve_single": curve_table,
    "nano_overlap": overlap_table,
    "demo": demo_table,
    "cpu_selection": cpu_selection_table,
    "cpu_decode": cpu_decode_table,
    "products": products_table,
    "nano_accuracy": nano_accuracy_table,
    "nano_loss": nano_loss_table,
    "nano_accepted": nano_accepted_table,
    **{name: lambda name: markdown(*claim_tables.claims(ROOT / "evidence", name)) for name in claim_tables.PARTS},
    "stamps": lambda _: markdown(*stamp_tables.stamps(ROOT / "evidence")),
}

FILES = quality_tables.tables() | speed_tables.tables() | parallel_tables.tables() | frontier_tables.tables()
FILES |= summary_tables.tables() | protected_tables.tables() | further_tables.tables() | third_tables.tables()
FILES |= online_tables.tables() | acceptance_tables.tables()


def file_table(name: str) -> str:
    """The table of one file, or of several, of which the first must exist; empty where nothing was measured yet."""
    files, table = FILES[name]
    paths = [ROOT / "evidence" / f"{file}.json" for file in files.split()]
    if not paths[0].is_file():
        return ""
    titles, cells = table(*(json.loads(path.read_text()) if path.is_file() else None for path in paths))
    return markdown(titles, cells) if cells else ""


TABLES |= dict.fromkeys(FILES, file_table)


def as_meant(name: str, table: str) -> str:
    """A table with its policies in today's words: older files name no score and mean the full one."""
    path = ROOT / "evidence" / f"{FILES[name][0].split()[0] if name in FILES else name}.json"
    if not path.is_file() or "format" in json.loads(path.read_text()):
        return table
    return re.sub(r"`([^`]+)`", lambda match: f"`{current_policy_text(match[1])}`", table)


def rendered(text: str) -> str:
    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- table:{name} -->\n{as_meant(name, TABLES[name](name))}\n<!-- /table -->"

    return re.sub(r"<!-- table:(?P<name>\w+) -->.*?<!-- /table -->", fill, text, flags=re.DOTALL)


def main(
    check: Annotated[bool, typer.Option("--check", help="Only say whether the pages are up to date.")] = False,
) -> None:
    for page in PAGES:
        path = ROOT / page
        before = path.read_text()
        after = rendered(before)
        if check and after != before:
            typer.echo(f"{page} is not what evidence/ says: run `make docs`", err=True)
            raise typer.Exit(1)
        if after != before:
            path.write_text(after)


if __name__ == "__main__":
    typer.run(main)
