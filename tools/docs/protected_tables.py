"""Tables about protected requests: what a share of them costs, and whether their answers move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xshare.report.words import named
from xshare.results.columns import spelled_mean

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]


def cost(found: Row) -> Table:
    """By policy and share: experts, and what the others keep."""
    rows = [row for row in found["rows"] if row["layer"] is None and row["method"] != "native"]
    cells = [
        [
            f"`{named(row['policy'])}`",
            f"{row.get('protected_requests', 0)} of {row['batch']}",
            spelled_mean(row, "active", 1),
            f"{row['active'] / row['active_native']:.0%}",
            "" if row.get("protected") == 1 else spelled_mean(row, "mass_shared", 3),
        ]
        for row in rows
    ]
    return ["policy", "protected", "experts per layer", "of native", "weight kept by the others"], cells


def batches(*files: Row | None) -> Table:
    """By engine: in how many fixed batches nothing moved."""
    cells = []
    for row in (row for found in files if found is not None for row in found["rows"]):
        count = row["batches"]
        cells.append(
            [
                f"{row['engine']} {row['version']}",
                *(f"{row[f'{name}_same']} of {count}" for name in ("protected", "everybody", "nobody", "halves")),
                f"{row['others_moved']} of {row['answers_others']}",
            ]
        )
    titles = ["engine", "protected answers as native's", "all protected: all as native's"]
    titles += ["nobody protected: as without asking", "XShare off, half the batch", "other answers that moved"]
    return titles, cells


def tables() -> dict[str, tuple[str, Callable[..., Table]]]:
    return {"protected": ("protected protected_vllm", batches), "protected_cost": ("replay_protected", cost)}
