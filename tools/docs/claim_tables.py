"""Every claim of the paper beside what was measured here, for render.py: result files -> titles and cells.

A verdict is computed: a claim with several parts holds if all of them do, and in part if some do. The paper's answers
are those of gpt-oss-120b and DeepSeek-R1, whose weights nobody here has, so its claims about answers are judged on nano
and lab, and say so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from parallel_tables import Steps, steps_of
from speed_tables import REGIMES, bare, deepest
from summary_tables import between_policies, of_first_layer, row_with_policy, within_policies

from xshare.trace.replay_rows import closed_form

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
PLAIN, DRAFTED = (16, 0, True), (4, 3, True)  # requests, drafts, mixed
# The paper's (m, k0) without drafts, and (k0, m, mr) with three.
CONFIGURATIONS = ["0,1", "12,1", "16,1", "24,1", "32,1", "0,2", "12,2", "24,0"]
FRONTIER = {"0,2", "0,1", "12,1", "12,2"}  # the paper's best trade-offs
DEVICES = 8
COMMANDS = {
    "paper_quality_lab": "benchmarks/paper_quality.py",
    "paper_ep_topk": "benchmarks/paper_ep.py",
    "assumptions_lab": "benchmarks/assumptions.py",
    "replay": "make evidence",
    "overlap": "make evidence",
}  # by result file, where it is not the benchmark of its name


@dataclass(frozen=True)
class Claim:
    said: str
    paper: str
    ours: str
    held: tuple[bool, ...] | str  # per part of the claim whether it holds; or why it cannot be judged
    files: str

    @property
    def verdict(self) -> str:
        if isinstance(self.held, str):
            return f"open: {self.held}"
        if all(self.held):
            return "holds"
        return "holds in part" if any(self.held) else "does not hold"


class Evidence:
    """The result files, each read when a claim first asks for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Row] = {}

    def has(self, name: str) -> bool:
        return (self.folder / f"{name}.json").is_file()

    def __getitem__(self, name: str) -> Row:
        if name not in self.files:
            self.files[name] = json.loads((self.folder / f"{name}.json").read_text())
        return self.files[name]

    @cached_property
    def speeds(self) -> dict[tuple[str, str, str], Row]:
        """Rows by piece, routing and policy, at the paper's batches and with the most layers."""
        batches = {"plain": 16, "eagle3": 4}
        rows = [row for row in deepest(self["paper_speed"]) if row["batch"] == batches.get(row["piece"])]
        return {(row["piece"], row["regime"], bare(row)): row for row in rows}

    def gain(self, policy: str, piece: str = "plain", regime: str = "carried") -> float:
        return float(self.speeds[piece, regime, policy]["ratio"] - 1)

    def met(self, policy: str, piece: str = "plain") -> tuple[bool, ...]:
        """Whether the paper's range was reached, by routing."""
        return tuple(bool(self.speeds[piece, regime, policy]["paper_met"]) for regime in REGIMES)

    def answers(self, policy: str, model: str = "nano", score: str = "full", setting: Any = PLAIN) -> Row | None:
        """The row of one of the paper's policies, whose budgets are for twice nano's experts."""
        file = "paper_quality" if model == "nano" else "paper_quality_lab"
        parts = [part.split("=") for part in policy.split(",")]
        budgets = [f"m={int(n) // 2}" if name == "m" and model == "nano" else f"{name}={n}" for name, n in parts]
        return row_with_policy(self[file], ",".join(budgets) + (",score=full" if score == "full" else ""), setting)

    def points(self, policy: str, model: str = "nano", score: str = "full", setting: Any = PLAIN) -> float:
        """Change in accuracy against native, in points."""
        row = self.answers(policy, model, score, setting)
        if row is None:
            raise KeyError(f"{policy} {score} of {model}")
        return 100 * float(row["change"])

    def drafted(self, policy: str, score: str = "full") -> float:
        return self.points(policy, "nano", score, DRAFTED)

    def overlaps(self, model: str, pair: str = "same domain") -> dict[int, float]:
        """By top: experts that consecutive tokens share, as a multiple of what `pair` shares."""
        rows = self["assumptions" if model == "nano" else "assumptions_lab"]["overlap"]
        at = {(row["pair"], row["top"]): row["overlap"] for row in rows}
        return {top: at["consecutive", top] / at[pair, top] for kind, top in at if kind == "consecutive"}

    def ep(self, score: str = "full") -> Steps:
        return steps_of(self["paper_ep" if score == "full" else "paper_ep_topk"])


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def point(value: float) -> str:
    return f"{value:+.1f}"


def letters(configuration: str) -> str:
    m, k0 = configuration.split(",")
    return f"k0={k0},m={m}"


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
            "paper_quality frontier",
        ),
    ]


def within_a_point(e: Evidence) -> dict[str, list[Row]]:
    """By model: rows of policies that lose less than a point on fresh questions, in batches of 16."""
    rows = [row for row in e["frontier"]["rows"] if row["set"] == "confirming" and row["method"] == "xshare"]
    rows = [row for row in rows if (row["batch"], row["drafts"]) == (16, 0)]
    rows += [row for row in e["paper_quality"]["rows"] if row["method"] == "xshare" and row["mixed"]]
    good = [row for row in rows if row["change"] > -0.01 and row["batch"] == 16]
    return {model: [row for row in good if row["model"] == model] for model in ("nano", "lab")}


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


def undominated(at: dict[str, tuple[float, float]]) -> list[str]:
    """The names that no other beats in one number without losing in the other."""
    return [
        name
        for name, (gain, points) in at.items()
        if not any(g >= gain and p >= points and (g, p) != (gain, points) for g, p in at.values())
    ]


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
            if abs(near["active"] / tau["active"] - 1) < 0.1:
                pairs.append((tau, near))
    texts = [
        f"`{tau['policy']}` {point(100 * tau['change'])}, `{near['policy']}` {point(100 * near['change'])}"
        for tau, near in pairs
    ]
    held = tuple(near["change"] >= tau["change"] for tau, near in pairs)
    claim = "a fixed budget is better than a threshold at as many experts (within 10 %)"
    return [Claim(claim, "found, not shown", "nano: " + "; ".join(texts), held, "further_quality paper_quality")]


def assumptions(e: Evidence) -> list[Claim]:
    models = {"nano": e["assumptions"], "lab": e["assumptions_lab"]}

    between = {name: float(between_policies(results)["spearman"]) for name, results in models.items()}
    within = {name: max(within_policies(results)) for name, results in models.items()}
    shares = {name: of_first_layer(results) for name, results in models.items()}
    even = {name: 1 / max(1, len({row["layer"] for row in results["layers"]}) - 1) for name, results in models.items()}
    warm = [-100 * row["change"] for row in models["nano"]["matched"]]
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
            "-20.8, -3.9, -19.6 without",
            f"nano loses {min(warm):.0f} to {max(warm):.0f} points more without one, at as many experts",
            (min(warm) > 3,),
            "assumptions",
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


def row_of_rival(e: Evidence, method: str) -> Row:
    """The row of a rival matched to the paper's k0=1,m=24."""
    rows = [row for row in e["paper_quality"]["matched"] if row["rival"] == method and row["reference"] == "k0=1,m=12"]
    name = next(row["policy"] for row in rows if (row["batch"], row["drafts"], row["mixed"]) == PLAIN)
    row = row_with_policy(e["paper_quality"], name, PLAIN)
    assert row is not None
    return row


PARTS: dict[str, list[Callable[[Evidence], list[Claim]]]] = {
    "claims_experts": [number_of_experts],
    "claims_plain": [without_drafts],
    "claims_drafts": [with_drafts],
    "claims_devices": [expert_parallel],
    "claims_assumed": [assumptions, threshold],
}  # by table


def claims(folder: Path, table: str) -> Table:
    evidence = Evidence(folder)
    cells = [
        [claim.said, claim.paper, claim.ours, claim.verdict, commands(claim.files.split())]
        for part in PARTS[table]
        for claim in part(evidence)
    ]
    return ["claim", "paper", "ours", "verdict", "command"], cells


def commands(files: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(COMMANDS.get(f, f"benchmarks/{f}.py") for f in files))


def accepted(speed: Row, quality: Row) -> Table:
    """Speed with drafts, with the tokens accepted taken into account: speed is of random weights, acceptance is
    nano's."""
    evidence = Evidence(Path())
    evidence.files = {"paper_speed": speed, "paper_quality": quality}
    native = row_with_policy(quality, "native", DRAFTED)
    assert native is not None
    cells = []
    for (piece, regime, policy), row in evidence.speeds.items():
        answered = evidence.answers(policy, setting=DRAFTED) if row["method"] == "xshare" else None
        if (piece, regime) == ("eagle3", "carried") and answered is not None:
            accepted_share = answered["accepted"] / native["accepted"]
            line = [f"`{row['policy']}`", f"{row['ratio']:.3f}", f"{answered['accepted']:.2f}"]
            cells.append([*line, f"{native['accepted']:.2f}", f"{row['ratio'] * accepted_share:.3f}"])
    return ["policy", "speed, drafts as before", "tokens accepted", "natively", "speed with acceptance"], cells
