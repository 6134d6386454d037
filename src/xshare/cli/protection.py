"""What a share of protected requests costs, as bench and doctor print it."""

from __future__ import annotations

from xshare.cli.output import number_table, print_table, wide_console
from xshare.results import Row
from xshare.results.columns import count_of
from xshare.statistics import interval_names


def show_protection(rows: list[Row]) -> None:
    """A table of the policies that were measured with some requests protected; nothing where none was."""
    guarded = [row for row in rows if row.get("protected")]
    policies = list(dict.fromkeys(row["policy"] for row in guarded))
    plain = {row["policy"]: row for row in rows if not any(row.get(form) for form in ("protected", "cost", "equals"))}
    shown = [row for policy in policies for row in (plain[policy], *(r for r in guarded if r["policy"] == policy))]
    if not shown:
        return
    within, marks = interval_names([count_of(row, "ratio") for row in shown])
    columns = ["protected", "experts", "others keep", "beside native", within, "beside nobody protected", within]
    table = number_table("what protected requests cost", "policy", *columns)
    for row, mark in zip(shown, marks, strict=True):
        kept = row["mass_shared"] if row["mass_shared"] is not None else row["mass"]
        table.add_row(
            row["policy"],
            f"{row.get('protected') or 0:.0%}",
            "-" if row["active"] is None else f"{row['active']:.1f} of {row['active_native']:.1f}",
            "-" if kept is None else f"{kept:.3f}",
            *_ratio(row, "ratio", mark),
            *(_ratio(row, "nobody_ratio", mark) if "nobody_ratio" in row else ("", "")),
        )
    print_table(table)
    wide_console().print(
        "experts: per layer and step. others keep: of their native weight, the requests that are not protected. The "
        "ratios are of speed, each taken in one repeat."
    )
    for row in guarded:
        if row.get("protected_identical") is not None and row["protected_identical"] < 1:
            wide_console().print(
                f"{row['policy']}, {row['protected']:.0%} protected: {1 - row['protected_identical']:.1%} of the "
                "protected answers are not native's: `xshare quality --protect` says whether batch size alone does it."
            )


def _ratio(row: Row, name: str, mark: str) -> tuple[str, str]:
    if row.get(name) is None:
        return "-", "-"
    return f"{row[name]:.3f}", f"{row[f'{name}_low']:.3f} to {row[f'{name}_high']:.3f}{mark}"
