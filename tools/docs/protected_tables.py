"""Tables about protected requests: what a share of them costs, and whether their answers move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xshare.report.words import named

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]


def cost(found: Row) -> Table:
    """By policy and protected requests of a batch: experts per layer, and what the others keep of their weight."""
    rows = [row for row in found["rows"] if row["layer"] is None and row["method"] != "native"]
    shares = sorted({row.get("protected_requests", 0) for row in rows})
    cells = []
    for policy in dict.fromkeys(row["policy"] for row in rows):
        at = {row.get("protected_requests", 0): row for row in rows if row["policy"] == policy}
        cells.append([f"`{named(policy)}`", *(_cell(at[share]) if share in at else "" for share in shares)])
    return ["policy", *(f"{share} of {rows[0]['batch']}" for share in shares)], cells


def _cell(row: Row) -> str:
    kept = "" if row.get("protected") == 1 else f", {row['mass_shared']:.0%}"
    return f"{row['active']:.1f}{kept}"


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
