"""The rows of a replay's result file."""

from __future__ import annotations

from xshare.protected_share import protected_requests
from xshare.results import Row
from xshare.statistics import interval
from xshare.trace.file import Header
from xshare.trace.replay import METRICS, Replayed


def replay_row(outcome: Replayed, setting: Row) -> Row:
    """One policy, averaged over batches and layers, with 95 % intervals over batches."""
    row = setting_columns(outcome, setting) | {"layer": None}
    for metric in METRICS:
        per_batch = outcome.metrics[metric].mean(axis=1)
        row[metric] = float(per_batch.mean())
        if metric in ("active", "mass", "mass_shared"):
            row[f"{metric}_low"], row[f"{metric}_high"] = interval(per_batch)
    row["batches"] = len(per_batch)
    return row


def setting_columns(outcome: Replayed, setting: Row) -> Row:
    """The columns that say what was replayed; those of protected requests only if there are any."""
    protected: Row = {}
    if outcome.protected:
        requests = len(protected_requests(outcome.protected, setting["batch"]))
        protected = {"protected": outcome.protected, "protected_requests": requests}  # per batch
    return {"policy": str(outcome.policy), "method": outcome.policy.method, **protected, **setting}


def layer_rows(outcome: Replayed, header: Header, setting: Row) -> list[Row]:
    """One policy, one row per layer, averaged over batches."""
    means = {metric: outcome.metrics[metric].mean(axis=0) for metric in METRICS}
    return [
        setting_columns(outcome, setting)
        | {"layer": layer}
        | {metric: float(means[metric][number]) for metric in METRICS}
        for number, layer in enumerate(header.layers)
    ]


def curve_rows(outcomes: list[Replayed], header: Header, setting: Row) -> list[Row]:
    """The rows of one batch size, with the closed form for independent uniform routing."""
    rows = [replay_row(outcome, setting) for outcome in outcomes]
    expected = closed_form(header.num_experts, header.top_k, setting["batch"] * (1 + setting["draft"]))
    return [row | {"closed_form": expected} for row in rows]


def closed_form(num_experts: int, top_k: int, rows: int) -> float:
    """Expected active experts of a batch if every row chose its k independently and uniformly."""
    return num_experts * (1 - (1 - top_k / num_experts) ** rows)
