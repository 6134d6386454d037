"""The claims of the paper about batches of mixed requests, 4 with three drafts each.

Random weights have no domains, so their speeds are those of nano with large experts, on a CPU, with acceptance inside.
"""

from __future__ import annotations

from claim_evidence import DRAFTED, ONE_KIND, SCORES, Claim, Evidence, percent, point
from claims_drafts import CONFIGURATIONS, HEADLINE
from paper_figures import GAINS_MIXED, POINTS_MIXED, TOLERANCE, least_points, printed
from speed_tables import FULL
from summary_tables import for_nano

NEAR = 0.05  # of native's speed: what counts as alike


def mixed_requests(e: Evidence) -> list[Claim]:
    return [gains(e), gains_of_all(e), answers(e), answers_of_all(e)]


def gains(e: Evidence) -> Claim:
    both = {score: timed(e, HEADLINE, score) for score in SCORES}
    texts = [
        f"{percent(mixed)} mixed, {percent(one_kind)} of one kind (`score={score}`)"
        for score, (mixed, one_kind) in both.items()
    ]
    paper = ", ".join(f"{gain:+.1f} %" for gain in GAINS_MIXED[HEADLINE])
    return Claim(
        f"`{HEADLINE}` gains in mixed batches what it gains in those of one kind",
        f"{paper}; of one data set {e.paper_gains(HEADLINE, 'eagle3')}",
        f"nano on a CPU: {'; '.join(texts)}",
        tuple(mixed >= one_kind - NEAR for mixed, one_kind in both.values()),
        "mixed_speed",
    )


def gains_of_all(e: Evidence) -> Claim:
    texts, held = [], []
    for score in SCORES:
        both = [timed(e, policy, score) for policy in CONFIGURATIONS]
        alike = [mixed >= one_kind - NEAR for mixed, one_kind in both]
        gain = " to ".join(percent(extreme(mixed for mixed, _ in both)) for extreme in (min, max))
        texts.append(f"{sum(alike)} of {len(alike)}, {gain} mixed (`score={score}`)")
        held += alike
    least, most = (extreme(gain for pair in GAINS_MIXED.values() for gain in pair) for extreme in (min, max))
    return Claim(
        "so do all eight",
        f"{least:+.1f} % to {most:+.1f} %",
        f"nano on a CPU, within {100 * NEAR:.0f} points: {'; '.join(texts)}",
        tuple(held),
        "mixed_speed",
    )


def timed(e: Evidence, policy: str, score: str) -> tuple[float, float]:
    """nano's gain in tokens per second, in mixed batches and in those of one kind."""
    ratios = {(row["policy"], row["mixed"]): float(row["ratio"]) for row in e["mixed_speed"]["rows"]}
    named = for_nano(policy) + (FULL if score == "full" else "")
    return ratios[named, True] - 1, ratios[named, False] - 1


def answers(e: Evidence) -> Claim:
    paper = POINTS_MIXED[HEADLINE]
    by_model = [e.all_points(HEADLINE, kind) for kind in (DRAFTED, ONE_KIND)]
    texts = []
    for model, score in by_model[0]:
        one_kind = by_model[1].get((model, score))
        beside = "" if one_kind is None else f", {point(one_kind)} of one kind"
        texts.append(f"{model} {point(by_model[0][model, score])} mixed{beside} (`score={score}`)")
    held = tuple(value >= least_points(paper) for value in by_model[0].values())
    said = f"`{HEADLINE}` costs mixed batches no accuracy"
    return Claim(said, printed(paper), "; ".join(texts), held, "paper_quality paper_quality_lab")


def answers_of_all(e: Evidence) -> Claim:
    """Only the configurations that lose less than the paper's tolerance in its own table are asked to."""
    kept = [policy for policy in CONFIGURATIONS if min(POINTS_MIXED[policy]) >= TOLERANCE]
    texts, held = [], []
    for score in SCORES:
        within = [e.points(policy, "nano", score, DRAFTED) >= TOLERANCE for policy in kept]
        which = ", ".join(f"`{policy}`" for policy, good in zip(kept, within, strict=True) if good)
        texts.append(f"{sum(within)} of {len(kept)}" + (f", {which}" if which else "") + f" (`score={score}`)")
        held += within
    return Claim(
        "of all eight, those that lose at most a point in the paper's mixed batches",
        ", ".join(f"`{policy}`" for policy in kept),
        "nano loses at most a point with " + "; ".join(texts),
        tuple(held),
        "paper_quality",
    )
