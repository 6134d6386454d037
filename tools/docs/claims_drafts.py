"""The claims of the paper about 4 requests with three drafts each, of one data set and mixed."""

from __future__ import annotations

from claim_evidence import DRAFTED, Claim, Evidence, percent, point, undominated
from speed_tables import REGIMES


def with_drafts(e: Evidence) -> list[Claim]:
    claimed = []
    for policy, paper in (("k0=1,m=0,mr=4", "+13 % to +17 %"), ("k0=1,m=0,mr=5", "+9 % to +11 %")):
        gains = ", ".join(f"{regime} {percent(e.gain(policy, 'eagle3', regime))}" for regime in REGIMES)
        claimed.append(Claim(f"speed of `{policy}`", paper, gains, e.met(policy, "eagle3"), "paper_speed"))
    batch = ("k0=1,m=24", "k0=1,m=32", "k0=2,m=10")
    request = ("k0=1,m=0,mr=4", "k0=1,m=0,mr=5")
    at = {name: (e.gain(name, "eagle3"), e.drafted(name)) for name in (*batch, *request)}
    best = undominated(at)
    claimed.append(
        Claim(
            "budgets per request beat budgets per batch",
            "`mr=4`, `mr=5` are on the frontier",
            "nano's answers, carried speed, on the frontier: " + ", ".join(f"`{name}`" for name in best),
            tuple(name in best for name in request),
            "paper_speed paper_quality",
        )
    )
    for policy in ("k0=1,m=0,mr=5", "k0=2,m=0,mr=4"):
        full, topk = e.drafted(policy), e.drafted(policy, "topk")
        ours = f"nano: {point(full)} (`score=full`), {point(topk)} (`score=topk`)"
        paper = "0.0, +2.0, -0.4" if policy.startswith("k0=1") else "-0.8, +1.6, -0.4"
        claimed.append(Claim(f"points of `{policy}`", paper, ours, (full >= -1, topk >= -1), "paper_quality"))
    lost, gained = e.drafted("k0=0,m=16,mr=4"), e.gain("k0=0,m=16,mr=4", "eagle3")
    claimed.append(
        Claim(
            "without a warm-up, `k0=0,m=16,mr=4`, speed is moderate and answers are lost",
            "+3 % to +10 %; -22.5, -4.7, -19.6",
            f"carried {percent(gained)}; nano {point(lost)}",
            (gained >= 0.03, lost < -4),
            "paper_speed paper_quality",
        )
    )
    ratios = {model: e.overlaps(model) for model in ("nano", "lab")}
    apart = {model: e.overlaps(model, "different domains") for model in ratios}
    farthest = max(max(by_top.values()) for by_top in apart.values())
    top4 = {row["pair"]: row["overlap"] for row in e["overlap"]["rows"] if row["top"] == 4}
    real = top4["consecutive"] / top4["same domain"]
    by_model = ", ".join(
        f"{model} {min(by_top.values()):.1f} to {max(by_top.values()):.1f}" for model, by_top in ratios.items()
    )
    claimed.append(
        Claim(
            "drafts of a request share 2 to 3 times the experts of two texts of one data set",
            "2 to 3 times (top 5 to 30)",
            f"top 5 to 30: {by_model} times, and up to {farthest:.1f} times those of different domains; "
            f"gpt-oss-20b, top 4: {real:.1f} times",
            (*(max(by_top.values()) >= 2 for by_top in ratios.values()), real >= 2),
            "assumptions assumptions_lab overlap",
        )
    )
    rows = {mr: e.answers(f"k0=1,m=0,mr={mr}", setting=DRAFTED) for mr in (4, 5)}
    mass = [float(row["mass"]) for row in rows.values() if row]
    claimed.append(
        Claim(
            "4 or 5 experts per request hold most of the gating mass",
            "most",
            f"nano: {mass[0]:.0%} with `mr=4`, {mass[1]:.0%} with `mr=5`",
            tuple(share > 0.8 for share in mass),
            "paper_quality",
        )
    )
    return claimed + mixed_requests(e)


def mixed_requests(e: Evidence) -> list[Claim]:
    """Speeds of mixed requests were not timed: random weights have no domains. What they load was counted."""
    policy = "k0=1,m=0,mr=4"
    both = [row for setting in (DRAFTED, (4, 3, False)) if (row := e.answers(policy, setting=setting)) is not None]
    saved = [1 - row["active"] / row["active_native"] for row in both]  # mixed, of one kind
    points = [100 * row["change"] for row in both]
    topk = e.drafted(policy, "topk")
    return [
        Claim(
            f"`{policy}` gains in batches of mixed data sets what it gains in those of one",
            "+13 % to +17 %, as without mixing",
            f"nano saves {saved[0]:.0%} of its experts in mixed batches, {saved[1]:.0%} in batches of one kind",
            (saved[0] >= saved[1] - 0.05,),
            "paper_quality",
        ),
        Claim(
            "and costs mixed batches no accuracy",
            "+2.5, -1.5",
            f"nano: {point(points[0])} mixed and {point(points[1])} of one kind (`score=full`), "
            f"{point(topk)} mixed (`score=topk`)",
            (points[0] >= -1, topk >= -1),
            "paper_quality",
        ),
    ]
