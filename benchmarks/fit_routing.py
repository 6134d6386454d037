"""Which skew and correlation of the dummy router route like a real model: `fitted`, `carried` of the speed benchmarks.

    python benchmarks/fit_routing.py [--json evidence/fit_routing.json]

Logits of the load format `xshare_dummy` have three normal parts: popularity, a request's taste, a token's own. Rows of
different requests share popularity alone, so the experts that a batch loads determine the skew. Given the skew, the
experts that consecutive tokens share determine the correlation. Both are known of gpt-oss-20b (evidence/curve.json and
overlap.json), which has 32 experts; the speed benchmarks have 128. There are two ways across:

  fitted   its statistics hold: active experts as a share of the closed form N (1 - (1 - k/N)^B) at equal B k / N
           (batches of 1, 2, 4 and 8 there are 4, 8, 16 and 32 here), and the experts that consecutive tokens share
  carried  its router holds: skew and correlation are those that give these statistics with 32 experts

Simulated with the logits alone, on a CPU. What neither was fitted to is shown beside them: the experts of four requests
with four tokens each in the trace (evidence/replay_draft.json); the native experts at batch 16 that the paper's speed
table implies, at 0.16 to 0.20 ms an expert; and its figure for gpt-oss-120b, by which drafts share 2 to 3 times as many
of their best 5, 10, 15 and 30 experts as other tokens of the data set.
"""

from __future__ import annotations

import json as json_format
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from lib.paths import EVIDENCE
from torch import Tensor

from xshare.results import Results, Row

EXPERTS, THERE, TOP_K = 128, 32, 4  # of gpt-oss-120b, of gpt-oss-20b, of both
REQUESTS, TOKENS = 4, 4  # in a step with three drafts
TOPS = (5, 10, 15, 30)
MOST = 32  # rows of a batch
# By the paper: what its speed table implies over all of its datasets (AIME 36 to 39, MMLU-Pro 38 to 41, GPQA 41 to 46).
IMPLIED, OFTEN = (36, 46), (2, 3)
Fit = tuple[float, float]  # skew, correlation


def closed_form(batch: int, experts: int = EXPERTS, top_k: int = TOP_K) -> float:
    return float(experts * (1 - (1 - top_k / experts) ** batch))


class Simulation:
    """Logits as dummy_weights.py makes them: the same draws at every skew and correlation, so searches see no noise."""

    def __init__(self, experts: int = EXPERTS, draws: int = 2000, seed: int = 0) -> None:
        self.experts, dice = experts, torch.Generator().manual_seed(seed)
        self.popular = torch.randn(draws, 1, experts, generator=dice)  # a draw is a layer and a step
        self.rows = torch.randn(draws, MOST, experts, generator=dice)  # one row a request: taste and own as one
        self.liked, self.taste, *self.own = torch.randn(4, 10 * draws, experts, generator=dice)  # pairs of tokens
        self.other = torch.randn(10 * draws, experts, generator=dice)  # another request's taste

    def active(self, skew: float, batch: int) -> float:
        """Distinct experts of `batch` rows of different requests."""
        return self._distinct(skew * self.popular + self.rows[:, :batch])

    def drafted(self, skew: float, correlation: float) -> float:
        """Distinct experts of REQUESTS requests with TOKENS tokens each."""
        rows = self.rows[:, : REQUESTS * TOKENS].reshape(-1, REQUESTS, TOKENS, self.experts)
        tastes = self.rows[:, REQUESTS * TOKENS :][:, :REQUESTS].unsqueeze(2)
        logits = correlation**0.5 * tastes + (1 - correlation) ** 0.5 * rows
        return self._distinct(skew * self.popular + logits.flatten(1, 2))

    def overlap(self, skew: float, correlation: float, top: int = TOP_K) -> float:
        """Experts that two tokens of one request have in common among their best."""
        return self._shared(skew, correlation, self.taste, top)

    def apart(self, skew: float, correlation: float, top: int = TOP_K) -> float:
        """The same for tokens of two requests."""
        return self._shared(skew, correlation, self.other, top)

    def _distinct(self, logits: Tensor) -> float:
        ids = logits.topk(TOP_K).indices.flatten(1)
        return float(torch.zeros(len(ids), self.experts).scatter_(1, ids, 1.0).sum(1).mean())

    def _shared(self, skew: float, correlation: float, second_taste: Tensor, top: int) -> float:
        best = []
        for taste, own in zip((self.taste, second_taste), self.own, strict=True):
            logits = skew * self.liked + correlation**0.5 * taste + (1 - correlation) ** 0.5 * own
            best.append(torch.zeros_like(logits).scatter_(1, logits.topk(top).indices, 1.0))
        return float((best[0] * best[1]).sum(1).mean())


def rows_in(evidence: Path, name: str) -> list[Row]:
    rows: list[Row] = json_format.loads((evidence / f"{name}.json").read_text())["rows"]
    return rows


def targets(evidence: Path = EVIDENCE) -> tuple[dict[int, float], float, float]:
    """gpt-oss-20b: active experts over the closed form by batch, experts that consecutive tokens share, and those that
    are active in a step with drafts."""
    curve = [row for row in rows_in(evidence, "curve") if row["policy"] == "native" and row["batch"] <= MOST]
    pairs = [row for row in rows_in(evidence, "overlap") if row["pair"] == "consecutive"]
    overlap = next(row["overlap"] for row in pairs if row["top"] == TOP_K)
    drafted = next(row["active"] for row in rows_in(evidence, "replay_draft") if row["policy"] == "native")
    return {row["batch"]: row["active"] / row["closed_form"] for row in curve}, float(overlap), float(drafted)


def across(ratios: dict[int, float]) -> dict[int, float]:
    """The same ratios with 128 experts, at equal B k / N."""
    times = EXPERTS // THERE
    return {batch * times: ratio for batch, ratio in ratios.items() if batch * times <= MOST}


def fit(ratios: dict[int, float], overlap: float, simulation: Simulation) -> Fit:
    """-> the skew of least squared distance from the ratios, and the correlation that gives the overlap beside it."""

    def distance(skew: float) -> float:
        return sum((ratio_of(simulation, skew, batch) - ratio) ** 2 for batch, ratio in ratios.items())

    skew = _least(distance, 0.0, 1.5)
    return skew, _least(lambda correlation: abs(simulation.overlap(skew, correlation) - overlap), 0.0, 1.0)


def ratio_of(simulation: Simulation, skew: float, batch: int) -> float:
    return simulation.active(skew, batch) / closed_form(batch, simulation.experts)


def _least(of: Callable[[float], float], low: float, high: float, places: int = 3) -> float:
    """Where a function with one minimum is least, to `places` decimal places."""
    while high - low > 10.0**-places:
        third = (high - low) / 3
        if of(low + third) < of(high - third):
            high -= third
        else:
            low += third
    return round((low + high) / 2, places)


def rows_of(regime: str, at: Fit, large: Simulation, small: Simulation) -> list[Row]:
    """One row per target of a fit, and per quantity that it was not fitted to, with what it reaches."""
    ratios, overlap, drafted = targets()
    simulation, targets_by_batch = (large, across(ratios)) if regime == "fitted" else (small, ratios)
    rows: list[Row] = [
        {"quantity": "active / closed form", "batch": batch, "experts": simulation.experts, "fit": True}
        | {"target": ratio, "reached": ratio_of(simulation, at[0], batch)}
        for batch, ratio in targets_by_batch.items()
    ]
    shared: Row = {"quantity": "experts that consecutive tokens share", "top": TOP_K, "experts": simulation.experts}
    rows.append(shared | {"fit": True, "target": overlap, "reached": simulation.overlap(*at)})
    steps: Row = {"quantity": "active, 4 requests of 4 tokens", "batch": REQUESTS}
    rows.append(steps | {"experts": THERE, "fit": False, "target": drafted, "reached": small.drafted(*at)})
    rows.append(steps | {"experts": EXPERTS, "fit": False, "target": None, "reached": large.drafted(*at)})
    implied: Row = {"quantity": "active", "batch": 16, "experts": EXPERTS, "fit": False, "target": None}
    implied |= dict(zip(("target_low", "target_high"), IMPLIED, strict=True))
    rows.append(implied | {"reached": large.active(at[0], 16)})
    for top in TOPS:
        times: Row = {"quantity": "consecutive tokens share, times others", "top": top, "experts": EXPERTS}
        times |= {"fit": False, "target": None, "target_low": OFTEN[0], "target_high": OFTEN[1]}
        rows.append(times | {"reached": large.overlap(*at, top) / large.apart(*at, top)})
    return [{"regime": regime} | row for row in rows]


def row_text(row: Row) -> str:
    at = "".join(f", {name} {row[name]}" for name in ("batch", "top") if name in row)
    target = "" if row["target"] is None else f": {row['target']:.3f} in the trace"
    target = f": {row['target_low']} to {row['target_high']} by the paper" if "target_low" in row else target
    return f"{row['regime']:7} {row['quantity']}{at}, {row['experts']} experts{target}, {row['reached']:.3f} here"


def main(
    json: Annotated[Path, typer.Option(help="Write the fit here.")] = EVIDENCE / "fit_routing.json",
    draws: Annotated[int, typer.Option(help="Steps simulated.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
) -> None:
    ratios, overlap, _ = targets()
    large, small = Simulation(EXPERTS, draws, seed), Simulation(THERE, draws, seed)
    fits = {"fitted": fit(across(ratios), overlap, large), "carried": fit(ratios, overlap, small)}
    checked = [Simulation(experts, draws, seed + 1) for experts in (EXPERTS, THERE)]  # on draws of their own
    rows = [row for regime, at in fits.items() for row in rows_of(regime, at, *checked)]
    for regime, (skew, correlation) in fits.items():
        print(f"{regime}: skew {skew:g}, correlation {correlation:g}")
    print("\n".join(map(row_text, rows)))
    about: Row = {"model": "gpt-oss-20b", "experts": EXPERTS, "top_k": TOP_K, "draws": draws, "seed": seed}
    results = Results(json, None, about, lists=["fit"])
    results.rows = rows
    results.lists["fit"] = [{"regime": name, "skew": skew, "correlation": c} for name, (skew, c) in fits.items()]
    results.write()


if __name__ == "__main__":
    typer.run(main)
