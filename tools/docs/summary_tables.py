"""The small tables of docs/evidence/ and soak.md, for render.py: for each question, the rows that answer it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import frontier_tables
from quality_tables import SETTINGS, change, experts_and_points, of_native, today
from spans import Span
from speed_tables import REGIMES, bare, deepest, gain_text, measured, paper_range, preset_rows, ratio, topk_rows

from xshare.policy import RECOMMENDED, Policy
from xshare.report.labels import policy_label

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
MIXED = SETTINGS[""]  # 16 requests of all kinds, no drafts
REFERENCE = "k0=1,m=12,score=full"  # the paper's k0=1,m=24 for nano's 64 experts
MATES = ("native", "topk:k=2", "k0=2,m=0,score=full", "k0=1,m=12", REFERENCE, "k0=1,m=0,score=full")
FAMILIES = {
    "a price (`lam`), votes as they are": ("k0=0,lam=0.175", "k0=0,lam=0.2", "k0=0,lam=0.225", "k0=0,lam=0.25"),
    "a price (`lam`), votes squared (`p=2`)": ("k0=0,lam=0.04,p=2", "k0=0,lam=0.05,p=2", "k0=0,lam=0.065,p=2"),
    "two warm-up experts": ("k0=2,m=0",),
    "a guarantee: `balanced`": ("k0=0,rho=0.7",),
    "a guarantee: `fast`": ("k0=0,rho=0.6",),
    "a budget of 20": ("k0=0,m=20",),
    "budgets of 24 and 28": ("k0=0,m=24", "k0=0,m=28"),
}


HEADLINE = ("k0=2,m=0", "k0=1,m=32", "k0=1,m=24", "k0=1,m=12")  # of the paper's, those that lose least first


def headline(frontier: Row, speed: Row, nano: Row, lab: Row) -> Table:
    """Speed and answers in one line each, at 16 requests without drafts: the presets first, the paper's second. lab's
    are of the presets' training where it was asked, else of an earlier one."""
    titles, presets = frontier_tables.presets(frontier, speed)
    place = titles.index("drafts")
    cells = [line[:place] + line[place + 1 :] for line in presets if line[place] == "none"]
    readings = {
        "full": {bare(row): row for row in deepest(speed) if _paper_at_16(row)},
        "topk": topk_rows(speed, "carried", 0),
    }
    for policy in HEADLINE:
        half = for_nano(policy)
        lines = [
            (
                f"{policy},score={score}",
                readings[score].get(policy),
                [
                    row_with_policy(nano, half + named),
                    frontier_tables.fresh_row(frontier, "lab", 16, 0, policy + named)
                    or row_with_policy(lab, policy + named),
                ],
            )
            for score, named in (("full", ",score=full"), ("topk", ""))  # results leave out the default
        ]
        if not Policy.parse(policy).batch_budget:  # nothing is summed, so that both readings are one policy
            (_, by_full, of_full), (_, by_topk, of_topk) = lines
            lines = [(policy, by_topk or by_full, [b or a for a, b in zip(of_full, of_topk, strict=True)])]
        for label, timed, answered in lines:
            if timed or any(answered):
                speed_cells = [Span.of_starts(timed), of_native(timed)] if timed else ["", ""]
                cells.append([f"the paper's `{label}`", *speed_cells, *experts_and_points(answered)])
    return ["policy", *titles[1:place], *titles[place + 1 :]], cells


def _paper_at_16(row: Row) -> bool:
    return (row["piece"], row["regime"], row["batch"], row["method"]) == ("plain", "carried", 16, "xshare")


def paper_gains(results: Row) -> Table:
    """The paper's policies at 16 requests without drafts: what it says, and what was measured on each routing."""
    rows = [row for row in deepest(results) if (row["piece"], row["batch"]) == ("plain", 16) and row["paper_high"]]
    at = {(row["policy"], row["regime"]): row for row in rows if row["method"] == "xshare"}
    cells = []
    for policy in dict.fromkeys(policy for policy, _ in at):
        by_regime = [at[policy, regime] for regime in REGIMES]
        paper = paper_range(by_regime[0])
        topk = topk_rows(results, "carried", 0).get(bare(by_regime[0]))
        cells.append([f"`{policy}`", paper, *map(measured, by_regime), Span.of_starts(topk, "%") if topk else ""])
    titles = ["policy", "the paper", *REGIMES, "carried, `score=topk` (95 %)"]
    if not any(line[-1] for line in cells):
        return titles[:-1], [line[:-1] for line in cells]
    return titles, cells


def control_costs(results: Row, every_policy: Row) -> Table:
    """Selection that keeps all experts, on carried routing: masking logits, and routing in one launch, with code for
    every policy in the kernel and with that of one policy."""

    def by_cell(rows: list[Row]) -> dict[tuple[Any, ...], Row]:
        named = ((row["piece"].replace("plain", "presets"), row) for row in rows if _control(row))
        return {(piece, row["drafts"], row["batch"]): row for piece, row in named}

    masked, full = by_cell(deepest(results)), by_cell(preset_rows(every_policy))
    cells = []
    for cell, row in sorted(by_cell(preset_rows(results)).items(), key=lambda item: item[0][1:]):
        line = [str(row["drafts"] or "none"), str(row["batch"]), f"{row['step_ms']:.2f}"]
        cells.append(
            [*line, *(ratio(earlier[cell]) if cell in earlier else "" for earlier in (masked, full)), ratio(row)]
        )
    titles = ["selection before vLLM's routing (95 %)", "one launch, code for every policy (95 %)", "one launch (95 %)"]
    return ["drafts", "requests", "ms per step", *titles], cells


def routing_profile(results: Row) -> Table:
    """Kernel time of routing per layer and step without drafts, vLLM's own and ours, beside that of all kernels of
    vLLM's layer."""

    def took(rows: list[Row]) -> tuple[float, float]:
        return sum(row["launches"] for row in rows), sum(row["us"] for row in rows)

    cells = []
    plain = [row for row in results["rows"] if not row.get("drafts")]
    for shape, batch in dict.fromkeys((row["shape"], row["batch"]) for row in plain):
        rows = [row for row in plain if (row["shape"], row["batch"]) == (shape, batch)]
        native, control = ([row for row in rows if row["who"] == who] for who in ("native", "control"))
        routing = [took([row for row in of if row["part"] in ("routing", "selection")]) for of in (native, control)]
        texts = [text for launches, us in routing for text in ((f"{launches:.0f}", f"{us:.1f}") if us else ("", ""))]
        cells.append([shape, str(batch), *texts, f"{took(native)[1]:.0f}"])
    return ["shape", "requests", "vLLM: launches", "µs", "ours: launches", "µs", "vLLM's whole layer, µs"], cells


def _control(row: Row) -> bool:
    return row["method"] == "noop" and row["regime"] == "carried" and "prompt_tokens" not in row


def answers(speed: Row, nano: Row, lab: Row | None) -> Table:
    """The paper's policies at 16 requests, mixed: points lost by nano with either reading, and by lab."""
    timed = [row for row in deepest(speed) if (row["piece"], row["regime"], row["batch"]) == ("plain", "carried", 16)]
    order = sorted((row for row in timed if row["method"] == "xshare" and row["paper_high"]), key=lambda r: -r["ratio"])
    titles = ["policy", "nano, `score=full`: experts", "points (95 %)", "nano, `score=topk`: experts", "points (95 %)"]
    cells = []
    for policy in map(bare, order):
        half = for_nano(policy)
        full, topk = (row_with_policy(nano, half + score) for score in (",score=full", ""))
        lab_row = row_with_policy(lab, policy + ",score=full") if lab else None
        cells.append([policy, *experts_and_points((full, topk, lab_row))])
    return [*titles, "lab, `score=full`: experts", "points (95 %)"], cells


def for_nano(policy: str) -> str:
    """One of the paper's policies with the batch budget for nano, which has half as many experts as its model."""
    parts = [part.split("=") for part in policy.split(",")]
    return ",".join(f"m={int(value) // 2}" if name == "m" else f"{name}={value}" for name, value in parts)


def row_with_policy(results: Row, policy: str, setting: tuple[int, int, bool] = MIXED) -> Row | None:
    rows = (row for row in results["rows"] if (row["batch"], row["drafts"], row["mixed"]) == setting)
    return next((row for row in rows if today(results, row["policy"]) == policy), None)


def rivals(results: Row) -> Table:
    """The paper's k0=1,m=24 by both readings and the rivals at as many experts; most right answers first."""
    names = [
        pair["policy"]
        for pair in results["matched"]
        if (pair["batch"], pair["drafts"], pair["mixed"]) == MIXED and today(results, pair["reference"]) == REFERENCE
    ]
    rows = [row_with_policy(results, name) for name in ("native", REFERENCE, *(today(results, name) for name in names))]
    cells = [
        [f"`{row['policy']}`", f"{row['active']:.1f}", f"{row['accuracy']:.1%}", change(row), f"{row['kl']:.4f}"]
        for row in sorted((row for row in rows if row), key=lambda row: -row["accuracy"])
    ]
    return ["policy or rival", "experts", "right answers", "points against native (95 %)", "KL"], cells


def assumed(nano: Row, lab: Row | None) -> Table:
    """One line per assumption of the paper, with both models' numbers."""
    lines: dict[str, Callable[[Row], str]] = {
        "mass lost and KL, between policies: Spearman (95 %)": _between,
        "mass lost and KL, between steps of one policy: Spearman": _within,
        "KL of the first layer pruned alone, of that of all layers": _first,
        "experts that consecutive tokens share, times chance": lambda results: f"{_shared(results):.1f}",
        "the same, times texts of different domains": lambda results: f"{_shared(results, domains=True):.1f}",
        "points that no warm-up loses at as many experts": _warmup,
    }
    cells = [[name, text(nano), text(lab) if lab else ""] for name, text in lines.items()]
    return ["", "nano", "lab"], cells


def between_policies(results: Row) -> Row:
    """Correlation of mass lost and KL with all layers pruned, over the steps of all policies."""
    rows = results["correlation"]
    row: Row = next(row for row in rows if row["policy"] is None and row["layer"] is None and row["steps"])
    return row


def within_policies(results: Row) -> list[float]:
    """The same correlation, within each policy."""
    rows = results["correlation"]
    return [row["spearman"] for row in rows if row["policy"] is not None and row["layer"] is None]


def of_first_layer(results: Row) -> float:
    """KL of pruning the first layer alone, as a share of that of pruning all."""
    policy = results["layers"][0]["policy"]
    kl = {row["layer"]: row["kl"] for row in results["layers"] if row["policy"] == policy}
    return float(kl[0] / kl[None])


def _between(results: Row) -> str:
    row = between_policies(results)
    return f"{row['spearman']:.2f} ({row['spearman_low']:.2f} to {row['spearman_high']:.2f})"


def _within(results: Row) -> str:
    values = within_policies(results)
    return f"{min(values):.2f} to {max(values):.2f}"


def _first(results: Row) -> str:
    return f"{of_first_layer(results):.0%}"


def _shared(results: Row, domains: bool = False) -> float:
    """Experts that consecutive tokens share among their top 5, in multiples of chance or of other domains."""
    at = {row["pair"]: row for row in results["overlap"] if row["top"] == 5}
    reference: float = at["different domains"]["overlap"] if domains else at["consecutive"]["chance"]
    return float(at["consecutive"]["overlap"] / reference)


def _warmup(results: Row) -> str:
    lost = [-100 * row["change"] for row in results.get("matched", [])]
    if not lost:
        return "not measured"
    return f"{min(lost):.0f} to {max(lost):.0f}"


def mates(results: Row) -> Table:
    """Shares of texts that change with their neighbours, and of prompts that are right with some of them only."""
    at = {(today(results, row["policy"]), row["mixed"]): row for row in results["rows"]}
    return _with_mates({f"`{at[policy, True]['policy']}`": policy for policy in MATES}, at)


def mates_presets(results: Row) -> Table:
    """The same of the presets."""
    at = {(row["policy"], row["mixed"]): row for row in results["rows"]}
    presets = {f"`{name}` ({form})": str(Policy.parse(name)) for name, form in RECOMMENDED.items()}
    return _with_mates({"`native`": "native"} | presets, at)


def _with_mates(policies: dict[str, str], at: dict[tuple[str, bool], Row]) -> Table:
    """A line for each policy, in mixed batches and in those of one kind. `policies`: by what they are called."""
    columns = [f"{kind}: {what}" for kind in ("mixed", "one kind") for what in ("texts that change", "right and wrong")]
    cells = [
        [name, *(_share(at[policy, mixed], which) for mixed in (True, False) for which in ("changed", "flipped"))]
        for name, policy in policies.items()
    ]
    return ["policy", *(f"{column} (95 %)" for column in columns)], cells


def followed(results: Row) -> Table:
    """What weighing sets by their measured cost gains: the least and the most of each kind of policy."""
    at = {row["policy"]: row for row in results["rows"] if row["cost"]}
    cells = []
    for name, policies in FAMILIES.items():
        rows = sorted((at[policy] for policy in policies if policy in at), key=lambda row: row["gain_at_equal_votes"])
        texts = [Span.of(_range(row), row, "gain_at_equal_votes") for row in rows]
        if texts:
            cells.append([name, texts[0], texts[-1] if len(texts) > 1 else ""])
    return ["sets are chosen by", "faster at equal votes lost (95 %)", "where there are several: most (95 %)"], cells


def _range(row: Row) -> str:
    return f"{gain_text(row['gain_at_equal_votes'])} ({gain_text(row['gain_low'])} to {gain_text(row['gain_high'])})"


def _share(row: Row, name: str) -> Span:
    return Span(f"{row[name]:.1%} ({abs(row[f'{name}_low']):.1%} to {row[f'{name}_high']:.1%})")  # abs: not -0


def sglang_speed(results: Row) -> Table:
    """Native routing, the control and the presets on a server of SGLang."""
    cells = []
    for row in results["rows"]:
        experts = f"{row['active']:.1f} of {row['active_native']:.1f}"
        times = "" if row["policy"] == "native" else ratio(row)
        name = {"native": "native", "noop": "no-op control"}.get(row["method"], f"`{policy_label(row['policy'])}`")
        cells.append([name, times, f"{row['itl_ms_p50']:.2f}", experts])
    return ["", "times as fast (95 %)", "ms between two tokens", "experts"], cells


def sglang_checks(results: Row) -> Table:
    """How many checks of each case pass, by version and machine."""
    counts: dict[str, dict[str, list[bool]]] = {}  # case -> where -> passed
    for row in results["rows"]:
        where = f"{row['sglang']}, {'CPU' if row['device'] == 'cpu' else row['device'].removeprefix('NVIDIA ')}"
        counts.setdefault(row["check"].partition(":")[0], {}).setdefault(where, []).append(row["passed"])
    places = sorted({where for by_place in counts.values() for where in by_place}, reverse=True)
    cells = [
        [case, *(f"{sum(passed)} of {len(passed)}" if (passed := by_place.get(where)) else "" for where in places)]
        for case, by_place in counts.items()
    ]
    return ["checks that pass", *places], cells


def soak(results: Row, processes: bool = False) -> Table:
    """The checks of requests and steps, or those of the server's processes, which are the last three."""
    rows = results["rows"][-3:] if processes else results["rows"][:-3]
    cells = [[row["check"], "yes" if row["passed"] else "**no**", row["detail"]] for row in rows]
    return ["what must hold", "holds", "what was seen"], cells


def tables() -> dict[str, tuple[str, Callable[..., Table]]]:
    """By marker: the result files, and the function that makes their table."""
    return {
        "headline": ("frontier paper_speed paper_quality paper_quality_lab", headline),
        "paper_gains": ("paper_speed", paper_gains),
        "control_costs": ("paper_speed paper_speed_any", control_costs),
        "routing_profile": ("routing_profile", routing_profile),
        "answers": ("paper_speed paper_quality paper_quality_lab", answers),
        "rivals": ("paper_quality", rivals),
        "assumed": ("assumptions assumptions_lab", assumed),
        "mates": ("neighbours", mates),
        "mates_presets": ("neighbours_presets", mates_presets),
        "followed": ("cost_aware", followed),
        "sglang_speed": ("sglang_speed", sglang_speed),
        "sglang_checks": ("sglang_check", sglang_checks),
        "soak": ("soak", soak),
        "soak_processes": ("soak", partial(soak, processes=True)),
    }
