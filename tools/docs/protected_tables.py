"""Tables about protected requests: what a share of them costs, and whether their answers move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xshare.report.labels import policy_label
from xshare.results.columns import mean_text

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]


def cost(results: Row) -> Table:
    """By share, a column a policy: experts per layer, and in brackets what the others keep."""
    rows = [row for row in results["rows"] if row["layer"] is None]
    policies = list(dict.fromkeys(row["policy"] for row in rows if row["method"] != "native"))
    cells = []
    for protected in dict.fromkeys(row.get("protected_requests", 0) for row in rows):
        line = [f"{protected} of {rows[0]['batch']}"]
        for policy in policies:
            row = next(r for r in rows if (r["policy"], r.get("protected_requests", 0)) == (policy, protected))
            shared = "" if protected == row["batch"] else f" ({row['mass_shared']:.3f})"
            line.append(mean_text(row, "active", 1) + shared)
        cells.append(line)
    return ["protected", *(f"`{policy_label(policy)}`" for policy in policies)], cells


def batches(*files: Row | None) -> Table:
    """By engine: in how many fixed batches nothing moved."""
    cells = []
    for row in (row for results in files if results is not None for row in results["rows"]):
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
