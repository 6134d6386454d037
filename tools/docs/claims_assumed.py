"""What the paper assumes, and what it says of rivals."""

from __future__ import annotations

from claim_evidence import DRAFTED, PLAIN, Claim, Evidence, Row, letters, point
from claims_drafts import CONFIGURATIONS as DRAFTED_CONFIGURATIONS
from claims_plain import CONFIGURATIONS
from summary_tables import between_policies, of_first_layer, row_with_policy, within_policies

from xshare.policy_text import current_policy_text

LEAST_LOST = 3.0  # points more without a warm-up, the paper's least being 3.89
NEAR = 0.1  # as many experts: within a tenth


def assumptions(e: Evidence) -> list[Claim]:
    models = {"nano": e["assumptions"], "lab": e["assumptions_lab"]}

    between = {name: float(between_policies(results)["spearman"]) for name, results in models.items()}
    within = {name: max(within_policies(results)) for name, results in models.items()}
    shares = {name: of_first_layer(results) for name, results in models.items()}
    even = {name: 1 / max(1, len({row["layer"] for row in results["layers"]}) - 1) for name, results in models.items()}
    warm = {
        " (`score=full`)": [-100 * row["change"] for row in models["nano"]["matched"]],
        " with three drafts, within 10 % as many (`score=topk`)": lost_without_a_warmup(e),
    }
    rivals = {
        (row["rival"], row["reference"]): row
        for row in e["paper_quality"]["matched"]
        if (row["batch"], row["drafts"], row["mixed"]) == PLAIN
    }
    oea = 100 * rivals["oea", "k0=1,m=12"]["change"]
    topk = e.points("k0=1,m=24", score="topk")
    oea_topk = 100 * (row_with_policy(e["paper_quality"], "oea:k0=2", PLAIN) or {"change": 0})["change"]
    lynx, skip = (row_of_rival(e, name) for name in ("lynx", "skip"))
    return [
        Claim(
            "greedy by summed scores is optimal for the proxy",
            "proved",
            "equal to the best of all sets of its size in every random case (`tests/algorithms/test_greedy.py`)",
            (True,),
            "",
        ),
        Claim(
            "gating scores tell which experts matter",
            "assumed",
            "mass lost and KL, Spearman, between policies: "
            + ", ".join(f"{name} {value:.2f}" for name, value in between.items())
            + "; between steps of one policy at most "
            + ", ".join(f"{name} {value:.2f}" for name, value in within.items()),
            tuple(value >= 0.5 for value in (*between.values(), *within.values())),
            "assumptions assumptions_lab",
        ),
        Claim(
            "layers are alike, so each may have the same budget",
            "assumed",
            "KL of the first layer alone, of that of all: "
            + ", ".join(f"{name} {share:.0%} of {even[name]:.0%} if they were" for name, share in shares.items()),
            tuple(share < 1.5 * even[name] for name, share in shares.items()),
            "assumptions assumptions_lab",
        ),
        Claim(
            "a warm-up is crucial",
            "-20.83, -3.89, -19.61 without",
            "nano loses more without one, at as many experts: "
            + ", ".join(f"{min(lost):.1f} to {max(lost):.1f}{how}" for how, lost in warm.items() if lost),
            tuple(min(lost) > LEAST_LOST for lost in warm.values() if lost),
            "assumptions paper_quality",
        ),
        Claim(
            "OEA's pool of each token's own experts is worse than a batch's",
            "said, not measured",
            f"nano, against `k0=1,m=24` at as many experts: OEA {point(oea)} by `score=full`, "
            f"{point(oea_topk - topk)} by `score=topk`",
            (oea < 0, oea_topk - topk < -1),
            "paper_quality",
        ),
        Claim(
            "Lynx can hurt severely",
            "said, not measured",
            f"nano {point(100 * lynx['change'])} at as many experts",
            (lynx["change"] < -0.1,),
            "paper_quality",
        ),
        Claim(
            "skipping token by token leaves the batch's union large",
            "said, not measured",
            f"nano: to load as few experts it loses {point(100 * skip['change'])} points",
            (skip["change"] < -0.1,),
            "paper_quality",
        ),
        Claim("answers of gpt-oss-120b (AIME, GPQA, MMLU-Pro, AA-LCR)", "its tables", "", "its weights are needed", ""),
    ]


def lost_without_a_warmup(e: Evidence) -> list[float]:
    """By `score=topk`, with drafts: points that each policy without a warm-up loses more than the nearest with one."""
    rows = {policy: e.answers(policy, "nano", "topk", DRAFTED) for policy in DRAFTED_CONFIGURATIONS}
    warm = [row for policy, row in rows.items() if row and not policy.startswith("k0=0")]
    lost = []
    for cold in (row for policy, row in rows.items() if row and policy.startswith("k0=0")):
        near = min(warm, key=lambda row: abs(row["active"] - cold["active"]))
        if abs(near["active"] / cold["active"] - 1) < NEAR:
            lost.append(100 * float(near["change"] - cold["change"]))
    return lost


def threshold(e: Evidence) -> list[Claim]:
    """The paper's Algorithm 1 against its Algorithm 2, each threshold beside the budget that loads as many or more."""
    if not e.has("further_quality"):
        return []
    taus = [row for row in e["further_quality"]["rows"] if ",tau=" in row["policy"]]
    pairs = []
    for score in ("full", "topk"):
        policies = [letters(configuration) for configuration in CONFIGURATIONS if configuration.endswith(",1")]
        budgets = [row for policy in policies if (row := e.answers(policy, score=score)) is not None]
        for tau in (row for row in taus if row["policy"].endswith("score=full") == (score == "full")):
            near = min(budgets, key=lambda row: abs(row["active"] - tau["active"]))
            if abs(near["active"] / tau["active"] - 1) < NEAR:
                pairs.append((tau, near))
    texts = []
    for tau, near in pairs:
        budget = current_policy_text(near["policy"])
        texts.append(f"`{tau['policy']}` {point(100 * tau['change'])}, `{budget}` {point(100 * near['change'])}")
    held = tuple(near["change"] >= tau["change"] for tau, near in pairs)
    claim = "a fixed budget is better than a threshold at as many experts (within 10 %)"
    return [Claim(claim, "found, not shown", "nano: " + "; ".join(texts), held, "further_quality paper_quality")]


def row_of_rival(e: Evidence, method: str) -> Row:
    """The row of a rival matched to the paper's k0=1,m=24."""
    rows = [row for row in e["paper_quality"]["matched"] if row["rival"] == method and row["reference"] == "k0=1,m=12"]
    name = next(row["policy"] for row in rows if (row["batch"], row["drafts"], row["mixed"]) == PLAIN)
    row = row_with_policy(e["paper_quality"], name, PLAIN)
    assert row is not None
    return row
