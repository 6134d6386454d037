"""The claims of the paper about 16 requests without drafts."""

from __future__ import annotations

from claim_evidence import MODELS, SCORES, Claim, Evidence, letters, points_text
from paper_figures import POINTS, TOLERANCE, least_points, printed
from speed_tables import REGIMES, deepest

# The paper's (m, k0)
CONFIGURATIONS = ["0,1", "12,1", "16,1", "24,1", "32,1", "0,2", "12,2", "24,0"]
FRONTIER = ("0,2", "0,1", "12,1", "12,2")  # the paper's best trade-offs


def without_drafts(e: Evidence) -> list[Claim]:
    return [*speeds(e), *answers(e), best_trade_offs(e), cost_of_selecting(e)]


def speeds(e: Evidence) -> list[Claim]:
    claimed = []
    for configuration in ("24,1", "12,2", "0,1"):
        policy = letters(configuration)
        said, paper = f"speed of ({configuration})", e.paper_gains(policy)
        claimed.append(Claim(said, paper, e.gains(policy), e.met(policy), "paper_speed"))
    policies = list(map(letters, CONFIGURATIONS))
    return [*claimed, all_speeds(e, "speed of all eight configurations", policies, "plain")]


def all_speeds(e: Evidence, said: str, policies: list[str], piece: str) -> Claim:
    """How many of the paper's ranges were reached, by reading of its score and routing."""
    readings, every = [], []
    for score in SCORES:
        counts = {}
        for regime in REGIMES:
            rows = [row for policy in policies if (row := e.timed(policy, piece, regime, score))]
            if rows:
                counts[regime] = sum(bool(row["paper_met"]) for row in rows)
                every.append(counts[regime] == len(policies))
        if counts:
            by_regime = ", ".join(f"{regime} {count}" for regime, count in counts.items())
            readings.append(f"reached by {by_regime} (`score={score}`)")
    return Claim(said, "its table", "; ".join(readings), tuple(every), "paper_speed")


def answers(e: Evidence) -> list[Claim]:
    claimed = []
    files = "paper_quality paper_quality_lab"
    for configuration, said, enough in (
        ("24,1", "points of (24,1)", least_points(POINTS[letters("24,1")])),
        ("12,2", "points of (12,2), which improve", 0.0),
    ):
        points = e.all_points(letters(configuration))
        held = tuple(value >= enough for value in points.values())
        paper = printed(POINTS[letters(configuration)])
        claimed.append(Claim(said, paper, points_text(points), held, files))
    alone, budget = e.all_points(letters("0,1")), e.all_points(letters("24,1"))
    worst = POINTS[letters("0,1")][0]
    held = tuple(value < 10 * TOLERANCE for value in alone.values())
    said = "warm-up alone, (0,1), loses far too much"
    claimed.append(Claim(said, f"{worst:+.2f} on AIME2025", points_text(alone), held, files))
    back = {at: 1 - budget[at] / alone[at] for at in alone if at in budget}
    by_model = {
        model: ", ".join(f"{share:.0%} (`score={score}`)" for (name, score), share in back.items() if name == model)
        for model in MODELS
    }
    ours = "; ".join(f"{model}: {text}" for model, text in by_model.items() if text) + " of the loss"
    paper = f"{worst:+.2f} to {POINTS[letters('24,1')][0]:+.2f} on AIME2025"
    held = tuple(share > 0.5 for share in back.values())
    claimed.append(Claim("the budget of (24,1) wins much of that back", paper, ours, held, files))
    return claimed


def best_trade_offs(e: Evidence) -> Claim:
    """By both readings of the score. Where one was not timed, experts stand for its speed."""
    named = {letters(configuration): f"({configuration})" for configuration in CONFIGURATIONS}
    texts, held = [], []
    for score in SCORES:
        by, best = e.trade_offs(named, "plain", score)
        texts.append(f"{', '.join(named[policy] for policy in best)} (`score={score}`, {by})")
        held += [letters(configuration) in best for configuration in FRONTIER]
    paper = ", ".join(f"({configuration})" for configuration in FRONTIER)
    said = "best trade-offs of speed and answers"
    return Claim(said, paper, "nano's answers: " + "; ".join(texts), tuple(held), "paper_speed paper_quality")


def cost_of_selecting(e: Evidence) -> Claim:
    """Of two kernels, and of the one that an engine has whose first policy has budgets per request."""
    control = e.speeds["plain", "carried", "noop"]
    controls = [
        row
        for row in deepest(e["paper_speed"], "pooled")
        if (row["method"], row["regime"]) == ("noop", "carried") and "prompt_tokens" not in row
    ]
    pooled, per_request = (
        next(row for row in controls if (row["piece"], row["batch"]) == where)
        for where in (("presets", 16), ("topk-eagle3", 4))
    )
    return Claim(
        "selecting costs next to nothing",
        "one more top-k",
        f"a selection that keeps everything: {control['ratio']:.3f} of native's speed before vLLM's routing, "
        f"{pooled['ratio']:.3f} in one launch with it, {per_request['ratio']:.3f} with drafts and budgets per request",
        tuple(row["ratio"] > 0.99 for row in (control, pooled, per_request)),
        "paper_speed",
    )
