"""The claims of the paper about 16 requests without drafts."""

from __future__ import annotations

from claim_evidence import Claim, Evidence, letters, percent, point, undominated
from speed_tables import REGIMES, deepest

# The paper's (m, k0) without drafts, and (k0, m, mr) with three.
CONFIGURATIONS = ["0,1", "12,1", "16,1", "24,1", "32,1", "0,2", "12,2", "24,0"]
FRONTIER = {"0,2", "0,1", "12,1", "12,2"}  # the paper's best trade-offs


def without_drafts(e: Evidence) -> list[Claim]:
    claimed = []
    for configuration, paper in (("24,1", "+7 % to +13 %"), ("12,2", "+6 % to +7 %"), ("0,1", "about +50 %")):
        policy = letters(configuration)
        gains = ", ".join(f"{regime} {percent(e.gain(policy, regime=regime))}" for regime in REGIMES)
        claimed.append(Claim(f"speed of ({configuration})", paper, gains, e.met(policy), "paper_speed"))
    reached = [
        sum(e.met(letters(configuration))[place] for configuration in CONFIGURATIONS) for place in range(len(REGIMES))
    ]
    by_regime = ", ".join(f"{regime} {count}" for regime, count in zip(REGIMES, reached, strict=True))
    every = tuple(count == len(CONFIGURATIONS) for count in reached)
    claimed.append(
        Claim("speed of all eight configurations", "its table", f"reached by {by_regime}", every, "paper_speed")
    )
    for configuration, paper, enough in (("24,1", "-1.0 to -0.6", -1.0), ("12,2", "+0.1 to +2.5", 0.0)):
        points = {score: e.points(letters(configuration), score=score) for score in ("full", "topk")}
        ours = f"nano: {point(points['full'])} (`score=full`), {point(points['topk'])} (`score=topk`)"
        held = tuple(value >= enough for value in points.values())
        claimed.append(Claim(f"points of ({configuration})", paper, ours, held, "paper_quality"))
    alone, full = e.points(letters("0,1")), e.points(letters("24,1"))
    topk = e.points(letters("24,1"), score="topk")
    claimed.append(
        Claim(
            "warm-up alone, (0,1), loses far too much",
            "-10.8 on AIME",
            f"nano {point(alone)}, lab {point(e.points(letters('0,1'), 'lab'))}",
            (alone < -10, e.points(letters("0,1"), "lab") < -10),
            "paper_quality paper_quality_lab",
        )
    )
    claimed.append(
        Claim(
            "the budget wins much of that back",
            "-10.8 to -0.8",
            f"nano: {1 - full / alone:.0%} of the loss by `score=full`, {1 - topk / alone:.0%} by `score=topk`",
            (1 - full / alone > 0.5, 1 - topk / alone > 0.5),
            "paper_quality",
        )
    )
    best = undominated(
        {
            configuration: (e.gain(letters(configuration)), e.points(letters(configuration)))
            for configuration in CONFIGURATIONS
        }
    )
    claimed.append(
        Claim(
            "best trade-offs of speed and answers",
            "(0,2), (0,1), (12,1), (12,2)",
            "nano's answers, carried speed: " + ", ".join(f"({configuration})" for configuration in best),
            tuple(configuration in best for configuration in sorted(FRONTIER)),
            "paper_speed paper_quality",
        )
    )
    control = e.speeds["plain", "carried", "noop"]
    pooled = next(
        row
        for row in deepest(e["paper_speed"], "pooled")
        if (row["method"], row["regime"], row["batch"], row["drafts"]) == ("noop", "carried", 16, 0)
        and "prompt_tokens" not in row
    )
    claimed.append(
        Claim(
            "selecting costs next to nothing",
            "one more top-k",
            f"a selection that keeps everything: {control['ratio']:.3f} of native's speed before vLLM's routing, "
            f"{pooled['ratio']:.3f} in one launch with it",
            (control["ratio"] > 0.99, pooled["ratio"] > 0.99),
            "paper_speed",
        )
    )
    return claimed
