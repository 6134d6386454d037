"""The dummy router's skew and correlation that route like a real model: the `fitted` regime of the speed benchmarks.

    python benchmarks/fit_routing.py [--json evidence/fit_routing.json]

The load format `xshare_dummy` has logits of three normal parts: popularity, a request's taste, a token's own. Two
statistics of gpt-oss-20b (32 experts, top-4), from evidence/curve.json and overlap.json, settle their shares for a
model with 128 experts and top-4:

- active experts of a batch as a share of the closed form N (1 - (1 - k/N)^B), at equal B k / N: batches of 1, 2, 4 and
  8 there are 4, 8, 16 and 32 here. Rows of different requests share popularity alone, so this settles the skew.
- experts that consecutive tokens of a request share, of four. Given the skew, this settles the correlation.

Simulated with the logits alone, on a CPU. The paper's own speed table, at 0.16 to 0.20 ms an expert, implies 36 to 38
native experts at batch 16; that is shown beside the fit, not fitted.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this folder: in it, select.py would stand in for the standard library's `select`

import json as json_format
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from xshare.results import Row, provenance, write_result

EVIDENCE = Path(__file__).resolve().parent.parent / "evidence"
EXPERTS, TOP_K = 128, 4  # of gpt-oss-120b
BATCHES = {4: 1, 8: 2, 16: 4, 32: 8}  # here: there, at equal B k / N
IMPLIED = (36, 38)  # native experts at batch 16 by the paper's speed table


def closed_form(batch: int, experts: int = EXPERTS, top_k: int = TOP_K) -> float:
    return float(experts * (1 - (1 - top_k / experts) ** batch))


class Simulation:
    """Logits as dummy.py makes them. The same draws at every skew and correlation, so that a search sees no noise."""

    def __init__(self, draws: int = 2000, seed: int = 0) -> None:
        dice = torch.Generator().manual_seed(seed)
        self.popular = torch.randn(draws, 1, EXPERTS, generator=dice)  # a draw is a layer and a step
        self.rows = torch.randn(draws, max(BATCHES), EXPERTS, generator=dice)  # one row a request: taste and own as one
        self.liked, self.taste, *self.own = torch.randn(4, 10 * draws, EXPERTS, generator=dice)  # pairs of tokens

    def active(self, skew: float) -> dict[int, float]:
        """Distinct experts of batches of one row a request, by batch."""
        ids = (skew * self.popular + self.rows).topk(TOP_K).indices  # [draws, rows, k]
        found = {}
        for batch in BATCHES:
            seen = torch.zeros(len(ids), EXPERTS).scatter_(1, ids[:, :batch].flatten(1), 1.0)
            found[batch] = float(seen.sum(1).mean())
        return found

    def overlap(self, skew: float, correlation: float) -> float:
        """Experts that two tokens of one request share, of k."""
        common = skew * self.liked + correlation**0.5 * self.taste
        one, other = ((common + (1 - correlation) ** 0.5 * own).topk(TOP_K).indices for own in self.own)
        return float((one.unsqueeze(-1) == other.unsqueeze(-2)).sum((-1, -2)).float().mean())


def targets(evidence: Path = EVIDENCE) -> tuple[dict[int, float], float]:
    """-> active experts over the closed form by batch here, and the overlap of consecutive tokens."""
    curve = json_format.loads((evidence / "curve.json").read_text())["rows"]
    native = {row["batch"]: row["active"] / row["closed_form"] for row in curve if row["policy"] == "native"}
    pairs = json_format.loads((evidence / "overlap.json").read_text())["rows"]
    overlap = next(row["overlap"] for row in pairs if row["pair"] == "consecutive" and row["top"] == TOP_K)
    return {here: native[there] for here, there in BATCHES.items()}, float(overlap)


def fit(ratios: dict[int, float], overlap: float, simulation: Simulation) -> tuple[float, float]:
    """-> the skew of least squared distance from the ratios, and the correlation that gives the overlap beside it."""

    def distance(skew: float) -> float:
        active = simulation.active(skew)
        return sum((active[batch] / closed_form(batch) - ratio) ** 2 for batch, ratio in ratios.items())

    skew = _least(distance, 0.0, 1.5)
    return skew, _least(lambda correlation: abs(simulation.overlap(skew, correlation) - overlap), 0.0, 1.0)


def _least(of: Callable[[float], float], low: float, high: float, places: int = 3) -> float:
    """Where a function with one valley is least, to so many places."""
    while high - low > 10.0**-places:
        third = (high - low) / 3
        if of(low + third) < of(high - third):
            high -= third
        else:
            low += third
    return round((low + high) / 2, places)


def rows_of(ratios: dict[int, float], overlap: float, skew: float, correlation: float, seen: Simulation) -> list[Row]:
    active = seen.active(skew)
    rows: list[Row] = []
    for batch, ratio in ratios.items():
        row: Row = {"quantity": "active / closed form", "batch": batch, "batch_there": BATCHES[batch], "target": ratio}
        row |= {"reached": active[batch] / closed_form(batch), "active": active[batch]}
        rows.append(row | {"closed_form": closed_form(batch)})
    rows.append({"quantity": "overlap", "target": overlap, "reached": seen.overlap(skew, correlation)})
    implied: Row = {"quantity": "native experts at batch 16, implied by the paper's table", "batch": 16}
    return [*rows, implied | {"target_low": IMPLIED[0], "target_high": IMPLIED[1], "reached": active[16]}]


def fitted(path: Path = EVIDENCE / "fit_routing.json") -> dict[str, float]:
    """The result of an earlier fit, as the load format takes it."""
    found: dict[str, Any] = json_format.loads(path.read_text())["fit"][0]
    return {name: float(found[name]) for name in ("skew", "correlation")}


def main(
    json: Annotated[Path, typer.Option(help="Write the fit here.")] = EVIDENCE / "fit_routing.json",
    draws: Annotated[int, typer.Option(help="Steps simulated.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
) -> None:
    ratios, overlap = targets()
    skew, correlation = fit(ratios, overlap, Simulation(draws, seed))
    rows = rows_of(ratios, overlap, skew, correlation, Simulation(draws, seed + 1))  # checked on draws of its own
    print(f"skew {skew:g}, correlation {correlation:g}")
    for row in rows:
        at = f" at batch {row['batch']}" if "target" in row and "batch" in row else ""
        wanted = f"{row['target']:.3f}" if "target" in row else f"{row['target_low']} to {row['target_high']}"
        print(f"{row['quantity']}{at}: {wanted} wanted, {row['reached']:.3f} reached")
    stamp = provenance(model="gpt-oss-20b", experts=EXPERTS, top_k=TOP_K, draws=draws, seed=seed)
    write_result(json, rows, stamp, fit=[{"skew": skew, "correlation": correlation}])


if __name__ == "__main__":
    typer.run(main)
