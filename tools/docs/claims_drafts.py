"""The claims of the paper about 4 requests with three drafts each, of one data set."""

from __future__ import annotations

from claim_evidence import DRAFTED, SCORES, Claim, Evidence, percent, point, points_text
from claims_plain import all_speeds
from paper_figures import POINTS_DRAFTED, least_points, printed

HEADLINE = "k0=1,m=0,mr=4"
PER_REQUEST = (HEADLINE, "k0=1,m=0,mr=5")
PER_BATCH = ("k0=1,m=24", "k0=1,m=32", "k0=2,m=10")
NO_WARMUP = "k0=0,m=16,mr=4"
CONFIGURATIONS = [NO_WARMUP, *PER_REQUEST, "k0=2,m=0,mr=4", *PER_BATCH, "k0=0,m=0,mr=8"]
QUALITY = "paper_quality paper_quality_lab"


def with_drafts(e: Evidence) -> list[Claim]:
    claimed = [
        Claim(f"speed of `{policy}`", e.paper_gains(policy, "eagle3"), e.gains(policy, "eagle3"), met, "paper_speed")
        for policy in PER_REQUEST
        for met in [e.met(policy, "eagle3")]
    ]
    claimed += [
        all_speeds(e, "speed of all eight configurations", CONFIGURATIONS, "eagle3"),
        best_trade_offs(e),
        headline_points(e),
    ]
    for policy in ("k0=1,m=0,mr=5", "k0=2,m=0,mr=4"):
        points, paper = e.all_points(policy, DRAFTED), POINTS_DRAFTED[policy]
        held = tuple(value >= least_points(paper) for value in points.values())
        claimed.append(Claim(f"points of `{policy}`", printed(paper), points_text(points), held, QUALITY))
    return [*claimed, without_a_warmup(e), overlap_of_drafts(e), mass_of_a_request(e)]


def best_trade_offs(e: Evidence) -> Claim:
    """By both readings of the score. Where one was not timed, experts stand for its speed."""
    texts, held = [], []
    for score in SCORES:
        by, best = e.trade_offs((*PER_BATCH, *PER_REQUEST), "eagle3", score)
        texts.append(f"{', '.join(f'`{policy}`' for policy in best)} (`score={score}`, {by})")
        held += [policy in best for policy in PER_REQUEST]
    said = "budgets per request beat budgets per batch"
    ours = "nano's answers, on the frontier: " + "; ".join(texts)
    return Claim(said, "`mr=4`, `mr=5` are on the frontier", ours, tuple(held), "paper_speed paper_quality")


def headline_points(e: Evidence) -> Claim:
    """lab was asked by both readings after it was trained anew: frontier.json."""
    paper = POINTS_DRAFTED[HEADLINE]
    points = e.all_points(HEADLINE, DRAFTED)
    ours, values = points_text(points), list(points.values())
    anew = {score: e.anew("lab", HEADLINE, score, DRAFTED) for score in SCORES}
    values += anew.values()
    ours += f"; lab trained anew: {', '.join(f'{point(lost)} (`score={score}`)' for score, lost in anew.items())}"
    held = tuple(value >= least_points(paper) for value in values)
    said = f'points of `{HEADLINE}`, "competitive"'
    return Claim(said, printed(paper), ours, held, f"{QUALITY} frontier")


def without_a_warmup(e: Evidence) -> Claim:
    speed, paper = e.speeds["eagle3", "carried", NO_WARMUP], POINTS_DRAFTED[NO_WARMUP]
    lost = e.all_points(NO_WARMUP, DRAFTED)
    return Claim(
        f"without a warm-up, `{NO_WARMUP}`, speed is moderate and answers are lost",
        f"{e.paper_gains(NO_WARMUP, 'eagle3')}; {printed(paper)}",
        f"carried {percent(speed['ratio'] - 1)} (`score=full`); {points_text(lost)}",
        (speed["ratio"] >= speed["paper_low"], *(value < max(paper) for value in lost.values())),
        f"paper_speed {QUALITY}",
    )


def overlap_of_drafts(e: Evidence) -> Claim:
    ratios = {model: e.overlaps(model) for model in ("nano", "lab")}
    apart = {model: e.overlaps(model, "different domains") for model in ratios}
    farthest = max(max(by_top.values()) for by_top in apart.values())
    top4 = {row["pair"]: row["overlap"] for row in e["overlap"]["rows"] if row["top"] == 4}
    real = top4["consecutive"] / top4["same domain"]
    by_model = ", ".join(
        f"{model} {min(by_top.values()):.1f} to {max(by_top.values()):.1f}" for model, by_top in ratios.items()
    )
    return Claim(
        "drafts of a request share 2 to 3 times the experts of two texts of one data set",
        "2 to 3 times (top 5 to 30)",
        f"top 5 to 30: {by_model} times, and up to {farthest:.1f} times those of different domains; "
        f"gpt-oss-20b, top 4: {real:.1f} times",
        (*(max(by_top.values()) >= 2 for by_top in ratios.values()), real >= 2),
        "assumptions assumptions_lab overlap",
    )


def mass_of_a_request(e: Evidence) -> Claim:
    texts, held = [], []
    for score in SCORES:
        rows = {policy: e.answers(policy, "nano", score, DRAFTED) for policy in PER_REQUEST}
        mass = {policy: float(row["mass"]) for policy, row in rows.items() if row}
        shares = ", ".join(f"{share:.0%} with `{policy.split(',')[-1]}`" for policy, share in mass.items())
        texts.append(f"{shares} (`score={score}`)")
        held += [share > 0.8 for share in mass.values()]
    said = "4 or 5 experts per request hold most of the gating mass"
    return Claim(said, "most", "nano: " + "; ".join(texts), tuple(held), "paper_quality")
