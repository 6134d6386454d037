"""The claims of the paper about expert parallelism."""

from __future__ import annotations

import math

from claim_evidence import Claim, Evidence, point

DEVICES = 8


def expert_parallel(e: Evidence) -> list[Claim]:
    claimed = []
    for rows in (8, 32):
        for what, name in (("active experts", "active"), ("the fullest device's", "peak")):
            native = e.ep()[rows, "native", None]
            paper = (native[f"paper_{name}"], e.ep()[rows, "rounds", 5][f"paper_{name}"])
            ours = {score: e.ep(score)[rows, "rounds", 5][name] for score in ("full", "topk")}
            cuts = {score: 1 - value / native[name] for score, value in ours.items()}
            paper_cut = round(100 * (1 - paper[1] / paper[0]))
            by_score = ", ".join(f"{-cut:.0%} (`score={score}`)" for score, cut in cuts.items())
            claimed.append(
                Claim(
                    f"`k0=1,mg=5` on R1, {rows} rows: {what}",
                    f"{paper[0]} to {paper[1]} (-{paper_cut} %)",
                    by_score,
                    tuple(100 * cut > paper_cut - 5 for cut in cuts.values()),  # within five points
                    "paper_ep paper_ep_topk",
                )
            )
    most = [e.ep()[rows, "rounds", 5] for rows in (16, 32)]
    bounds = [math.ceil(row["active"] / DEVICES) for row in most]
    claimed.append(
        Claim(
            "the fullest device has at most |S|/G experts, rounded up",
            "by design; its table has 8.6 where that is 6",
            ", ".join(f"{row['peak']:.1f} where that is {bound}" for row, bound in zip(most, bounds, strict=True))
            + "; without a warm-up it holds in every random case",
            (*(row["peak"] <= bound for row, bound in zip(most, bounds, strict=True)), True),
            "paper_ep",
        )
    )
    claimed.append(Claim("less communication between GPUs", "not measured", "", "several GPUs are needed", ""))
    claimed.append(Claim("R1's answers stay within 1 %", "-1.0, -0.1", "", "weights of DeepSeek-R1 are needed", ""))
    if e.has("further_quality"):
        budgets = [row for row in e["further_quality"]["rows"] if ",mg=" in row["policy"] and row["paper"]]
        texts = [
            f"{row['active'] / row['active_native']:.0%} of the experts {point(100 * row['change'])}" for row in budgets
        ]
        held = tuple(row["change"] >= -0.01 for row in budgets)
        claim = "a budget per device costs less than 1 %, on nano over 8 devices"
        claimed.append(Claim(claim, "-1.0, -0.1 of R1", "; ".join(texts), held, "further_quality"))
    return claimed
