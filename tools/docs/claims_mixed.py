"""The claims of the paper about batches of mixed requests, 4 with three drafts each.

Their speeds were not timed: random weights have no domains. The experts that nano saves stand for them.
"""

from __future__ import annotations

from claim_evidence import DRAFTED, ONE_KIND, SCORES, Claim, Evidence, Row, point
from claims_drafts import CONFIGURATIONS, HEADLINE
from paper_figures import GAINS_MIXED, POINTS_MIXED, TOLERANCE, least_points, printed

NEAR = 0.05  # experts saved, as a share of native's: what counts as alike


def mixed_requests(e: Evidence) -> list[Claim]:
    return [savings(e), savings_of_all(e), answers(e), answers_of_all(e)]


def savings(e: Evidence) -> Claim:
    both = saved(e, HEADLINE)
    texts = [
        f"{mixed:.0%} mixed, {one_kind:.0%} of one kind (`score={score}`)" for score, (mixed, one_kind) in both.items()
    ]
    paper = ", ".join(f"{gain:+.1f} %" for gain in GAINS_MIXED[HEADLINE])
    return Claim(
        f"`{HEADLINE}` gains in mixed batches what it gains in those of one kind, by experts saved",
        f"{paper}; of one data set {e.paper_gains(HEADLINE, 'eagle3')}",
        f"speed was not timed; nano saves of its experts {'; '.join(texts)}",
        tuple(mixed >= one_kind - NEAR for mixed, one_kind in both.values()),
        "paper_quality",
    )


def savings_of_all(e: Evidence) -> Claim:
    texts, held = [], []
    for score in SCORES:
        both = [saved(e, policy)[score] for policy in CONFIGURATIONS if score in saved(e, policy)]
        alike = [mixed >= one_kind - NEAR for mixed, one_kind in both]
        texts.append(f"{sum(alike)} of {len(alike)} (`score={score}`)")
        held += alike
    least, most = (extreme(gain for pair in GAINS_MIXED.values() for gain in pair) for extreme in (min, max))
    return Claim(
        "so do all eight configurations, by experts saved",
        f"{least:+.1f} % to {most:+.1f} %",
        f"speed was not timed; nano saves no less, within {100 * NEAR:.0f} points: {', '.join(texts)} asked",
        tuple(held),
        "paper_quality",
    )


def saved(e: Evidence, policy: str) -> dict[str, tuple[float, float]]:
    """By reading of the score: the share of nano's experts saved in mixed batches, and in those of one kind."""

    def share(row: Row) -> float:
        return float(1 - row["active"] / row["active_native"])

    both = {score: [e.answers(policy, "nano", score, kind) for kind in (DRAFTED, ONE_KIND)] for score in SCORES}
    return {score: (share(mixed), share(one_kind)) for score, (mixed, one_kind) in both.items() if mixed and one_kind}


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
