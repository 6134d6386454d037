"""Tables of protected requests: what they cost (bench, doctor), and what happens to their answers (quality)."""

from __future__ import annotations

from xshare.cli.output import cut_off_notes, number_table, print_table, wide_console
from xshare.engines.base import About
from xshare.quality.protected import HALF, MATES
from xshare.results import Row
from xshare.results.columns import count_of
from xshare.statistics import interval_names


def show_protection(rows: list[Row]) -> None:
    """Print a table of the policies that were measured with protected requests; nothing if there are none."""
    protected = [row for row in rows if row.get("protected")]
    policies = list(dict.fromkeys(row["policy"] for row in protected))
    plain = {row["policy"]: row for row in rows if not any(row.get(form) for form in ("protected", "cost", "equals"))}
    shown = [row for policy in policies for row in (plain[policy], *(r for r in protected if r["policy"] == policy))]
    if not shown:
        return
    interval_name, marks = interval_names([count_of(row, "ratio") for row in shown])
    columns = ["protected", "experts", "others keep", "vs native", interval_name, "vs nobody", interval_name]
    table = number_table("what protected requests cost", "policy", *columns)
    for row, mark in zip(shown, marks, strict=True):
        mass = row["mass_shared"] if row["mass_shared"] is not None else row["mass"]
        table.add_row(
            row["policy"],
            f"{row.get('protected_requests', 0)} of {row['requests']}",
            "-" if row["active"] is None else f"{row['active']:.1f} of {row['active_native']:.1f}",
            "-" if mass is None else f"{mass:.3f}",
            *_ratio(row, "ratio", mark),
            *(_ratio(row, "nobody_ratio", mark) if "nobody_ratio" in row else ("", "")),
        )
    print_table(table)
    wide_console().print(
        "experts: per layer and step. others keep: of their native weight, the requests that are not protected. Speed "
        "as a ratio in the same repeat: vs native, and vs the same policy with nobody protected."
    )
    for row in protected:
        if row.get("protected_identical") is not None and row["protected_identical"] < 1:
            wide_console().print(
                f"{row['policy']}, {row['protected']:.0%} protected: {1 - row['protected_identical']:.1%} of the "
                "protected answers are not native's: `xshare quality --protect` says whether batch size alone does it."
            )


def _ratio(row: Row, name: str, mark: str) -> tuple[str, str]:
    if row.get(name) is None:
        return "-", "-"
    return f"{row[name]:.3f}", f"{row[f'{name}_low']:.3f} to {row[f'{name}_high']:.3f}{mark}"


def show_protected(rows: list[Row], about: About, setting: Row) -> None:
    """Print how many answers of protected requests equal native's, and what happened to the others."""
    first = rows[0]
    title = f"{about.model} on {about.engine}, {setting['tasks']}, fixed batches of {first['batch']}, "
    title += f"{first['protected']:.0%} of the requests protected"
    columns = ["batches", "protected same", "others same", "others right", "change", "95 %", "experts"]
    table = number_table(title, "", *columns)
    for row in rows:
        name = row["policy"] if row["control"] is None else f"native, {row['control']}"
        pruned = row["method"] != "native"
        table.add_row(
            name,
            "mixed" if row["mixed"] else "alike",
            f"{row['protected_same']} of {row['protected_questions']}",
            f"{row['same']} of {row['questions']}",
            f"{row['accuracy']:.1%}",
            f"{row['change']:+.1%}" if pruned else "",
            f"{row['change_low']:+.1%} to {row['change_high']:+.1%}" if pruned else "",
            "-" if row["active"] is None else f"{row['active']:.1f} of {row['active_native']:.1f}",
        )
    print_table(table, "experts", "batches")
    console = wide_console()
    console.print(
        "same: answers that are token for token native's in the same batches. Native routing is held against itself "
        "twice, with XShare off: with other mates in the batch, and in batches half as large."
    )
    for note in cut_off_notes(first["cut"], first["policy"], setting["tokens"]):
        console.print(note)
    for row in (row for row in rows if row["control"] is not None):
        console.print(control_text(row))
    for row in rows:
        moved = row["protected_questions"] - row["protected_same"]
        if moved and row["method"] != "native":
            console.print(f"{row['policy']} moved {moved} of {row['protected_questions']} protected answers.")


def control_text(row: Row) -> str:
    """How many answers a control changed, with XShare off."""
    answers = row["protected_questions"] + row["questions"]
    changed = answers - row["protected_same"] - row["same"]
    what = {MATES: "with other mates", HALF: "in batches half as large"}[row["control"]]
    if not changed:
        return f"With XShare off no answer changes {what}."
    return f"With XShare off {changed} of {answers} answers change {what}: that is the engine's own arithmetic."
