"""The claims of the paper about how many experts a batch loads."""

from __future__ import annotations

from claim_evidence import Claim, Evidence, Row
from speed_tables import REGIMES

from xshare.trace.replay_rows import closed_form


def number_of_experts(e: Evidence) -> list[Claim]:
    eight, thirty_two = (e.ep()[rows, "native", None]["active"] for rows in (8, 32))
    sixty_four = e.ep()[64, "native", None]["active"]
    real = next(row for row in e["replay"]["rows"] if row["policy"] == "native")
    chance = closed_form(32, 4, 16)
    least = {
        model: min(row["active"] / row["active_native"] for row in rows) for model, rows in within_a_point(e).items()
    }
    return [
        Claim(
            "a batch of B loads N(1-(1-k/N)^B) experts",
            "R1: 57 at 8, 163 at 32",
            f"independent rows of R1's shape: {eight:.1f}, {thirty_two:.1f}; real routing of gpt-oss-20b at 16: "
            f"{real['active']:.1f}, by the formula {chance:.1f}",
            (abs(eight - 57) < 2, abs(thirty_two - 163) < 2, abs(real["active"] / chance - 1) < 0.05),
            "paper_ep replay",
        ),
        Claim(
            "share of all experts that R1 loads at batch 32 and 64",
            "62 %, 95 %",
            f"{thirty_two / 256:.0%}, {sixty_four / 256:.0%}",
            (abs(thirty_two / 256 - 0.62) < 0.02, abs(sixty_four / 256 - 0.95) < 0.02),
            "paper_ep",
        ),
        Claim(
            "up to 30 % fewer experts within 1 point of native's answers",
            "-30 %",
            f"nano {least['nano'] - 1:.0%}, lab {least['lab'] - 1:.0%}, of all that was tried",
            tuple(share <= 0.7 for share in least.values()),
            "paper_quality frontier further_quality",
        ),
    ]


def bound_by_experts(e: Evidence) -> list[Claim]:
    """The share of native's step that the latency law gives to experts, at the paper's batches."""
    texts, held = [], []
    for piece, drafts in (("plain", "no drafts"), ("eagle3", "three drafts")):
        rows = {regime: e.speeds[piece, regime, "native"] for regime in REGIMES}
        read = {regime: row["b"] * row["active"] for regime, row in rows.items()}
        shares = {regime: read[regime] / (row["a"] + read[regime]) for regime, row in rows.items()}
        texts.append(f"{drafts}: " + ", ".join(f"{regime} {share:.0%}" for regime, share in shares.items()))
        held += [share > 0.5 for share in shares.values()]
    said = "decoding is bound by reading experts from memory"
    ours = "their share of a step, by the latency law; " + "; ".join(texts)
    return [Claim(said, "memory bandwidth dominates", ours, tuple(held), "paper_speed")]


def within_a_point(e: Evidence) -> dict[str, list[Row]]:
    """By model: rows of policies that lose less than a point of answers in batches of mixed questions, with drafts or
    without."""
    rows = [row for row in e["frontier"]["rows"] if row["set"] == "confirming"]
    others = [name for name in ("paper_quality", "further_quality") if e.has(name)]
    rows += [row for name in others for row in e[name]["rows"] if row.get("mixed")]
    good = [row for row in rows if row["method"] == "xshare" and row["change"] > -0.01]
    return {model: [row for row in good if row["model"] == model] for model in ("nano", "lab")}
