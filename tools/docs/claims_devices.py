"""The claims of the paper about expert parallelism."""

from __future__ import annotations

import math

from claim_evidence import SCORES, Claim, Evidence, Row, point
from paper_figures import TOLERANCE
from speed_tables import score_of

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
    texts, held = [], []
    for score in SCORES:
        most = [e.ep(score)[rows, "rounds", 5] for rows in (16, 32)]
        bounds = [math.ceil(row["active"] / DEVICES) for row in most]
        peaks = [f"{row['peak']:.1f} against {bound}" for row, bound in zip(most, bounds, strict=True)]
        texts.append(f"{', '.join(peaks)} (`score={score}`)")
        held += [row["peak"] <= bound for row, bound in zip(most, bounds, strict=True)]
    claimed.append(
        Claim(
            "the fullest device has at most an even share of the chosen experts, rounded up",
            "by design; its table: 8.6 against 6",
            ", ".join(texts) + "; without a warm-up it holds in every random case",
            (*held, True),
            "paper_ep paper_ep_topk",
        )
    )
    claimed.append(Claim("less communication between GPUs", "not measured", "", "several GPUs are needed", ""))
    claimed.append(Claim("R1's answers stay within 1 %", "-1.0, -0.1", "", "weights of DeepSeek-R1 are needed", ""))
    return claimed + device_budgets(e)


def device_budgets(e: Evidence) -> list[Claim]:
    """By `score=full` as Algorithm 5 is printed, and by `score=topk` as far as it was asked, with its own fill."""
    if not e.has("further_quality"):
        return []
    texts, held = [], []
    for score in SCORES:
        rows = [row for row in e["further_quality"]["rows"] if "mg" in numbers(row)]
        rows = sorted((row for row in rows if score_of(row) == score), key=lambda row: int(numbers(row)["mg"]))
        fills = ", ".join(dict.fromkeys(f"`fill={numbers(row).get('fill', 'level')}`" for row in rows))
        by_budget = [
            f"`mg={numbers(row)['mg']}` {point(100 * row['change'])} ({row['active'] / row['active_native']:.0%})"
            for row in rows
        ]
        if rows:
            texts.append(f"{', '.join(by_budget)} (`score={score}`, {fills})")
        held += [row["change"] >= TOLERANCE / 100 for row in rows]
    said = "a budget per device costs less than 1 %, on nano over 8 devices"
    ours = "points (experts of native's): " + "; ".join(texts)
    return [Claim(said, "-1.0, -0.1 of R1", ours, tuple(held), "further_quality")]


def numbers(row: Row) -> dict[str, str]:
    """A row's policy by letter."""
    return dict(part.split("=") for part in row["policy"].split(",") if part.count("=") == 1)
