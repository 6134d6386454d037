"""Tables of speed, for render.py: a result file -> titles and cells."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from spans import Span

from xshare import latency_law as law
from xshare.report.labels import policy_label
from xshare.staircase import clear_edges, cost_of

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
REGIMES = ("independent", "fitted", "carried")
# Pieces with the paper's policies: by score=full, and by score=topk
SHOWN = {"plain": "no drafts", "eagle3": "EAGLE-3 head", "fixed": "fixed drafts"}
TOPK = {"topk": SHOWN["plain"], "topk-eagle3": SHOWN["eagle3"]}
SHOWN |= TOPK
ENGINES = {"topk": "budgets", "topk-eagle3": "budgets per request"}  # what its kernel has code for, by piece
FULL = ",score=full"
SHORT = 8  # tokens of a prompt where a row does not say
BUDGET = ("k0=1,m=24", "k0=0,m=24")  # judged at every batch; other policies at 4, 8 and 32 are points of the law


def deepest(results: Row, of: str = "rows") -> list[Row]:
    """The rows of every cell with the most layers. Rows of single starts are left out: `pooled` has them all."""

    def cell(row: Row) -> tuple[Any, ...]:
        return row["piece"], row["regime"], row["batch"], row.get("prompt_tokens")

    rows = [row for row in results.get(of, []) if "start" not in row]
    if of == "pooled":
        rows = [with_range(row, results["runs"]) for row in rows]
    most: dict[tuple[Any, ...], int] = {}
    for row in rows:
        most[cell(row)] = max(row["layers"], most.get(cell(row), 0))
    return [row for row in rows if row["layers"] == most[cell(row)]]


def with_range(row: Row, runs: list[Row]) -> Row:
    """A pooled row, of one start of the engines with the range of its pairs as `ratio_least` and `ratio_most`: starts
    differ more than pairs of one do, so what README and choosing.md show of it is no 95 % interval."""

    def cell(record: Row) -> tuple[Any, ...]:
        named = (record[name] for name in ("piece", "regime", "batch", "layers"))
        return (*named, record.get("prompt_tokens", SHORT))

    if row.get("starts") != 1 or row["method"] == "native":
        return row
    (run,) = (run for run in runs if "start" in run and cell(run) == cell(row))
    ratios = [native / own for native, _, own, _ in run["decodes"][row["policy"]]]
    return row | {"ratio_least": min(ratios), "ratio_most": max(ratios)}


def preset_rows(results: Row) -> list[Row]:
    """The presets and their controls, over all starts: without the paper's policies, which are measured alike."""
    return [row for row in deepest(results, "pooled") if row["piece"] not in TOPK]


def bare(row: Row) -> str:
    """A row's policy without its score: older files do not name the full score."""
    policy: str = row["policy"]
    return policy.removesuffix(FULL)


def score_of(row: Row) -> str:
    """A row's reading of the paper's score, which its policy names."""
    return "full" if row["policy"].endswith(FULL) else "topk"


def topk_rows(results: Row, regime: str, drafts: int) -> dict[str, Row]:
    """The paper's policies by `score=topk`, as far as they were timed, by policy."""
    piece = "topk-eagle3" if drafts else "topk"
    rows = (row for row in deepest(results, "pooled") if (row["piece"], row["regime"]) == (piece, regime))
    return {row["policy"]: row for row in rows if row["method"] == "xshare"}


def claims(results: Row, regime: str, piece: str) -> Table:
    """The paper's configurations: its gains, the measured ones, and the best possible."""
    titles = [
        "policy",
        "active experts",
        "paper",
        "ours (95 %)",
        "predicted",
        "lower bound of predicted",
        "paper's range",
    ]
    cells = []
    for row in [*deepest(results), *deepest(results, "pooled")]:
        if (row["regime"], row["piece"], row["method"]) == (regime, piece, "xshare") and row["paper_high"]:
            line = [f"`{row['policy']}`", _experts(row), paper_range(row)]
            line += [measured(row), gain_text(row["predicted"]), _bound(row)]
            cells.append([*line, {True: "reached", False: "not reached", None: ""}[row["paper_met"]]])
    return titles, cells


def verdicts(results: Row) -> Table:
    """Per demand and regime: how many rows meet it."""
    rows = [*deepest(results), *deepest(results, "pooled")]
    ours = [row for row in rows if row["method"] == "xshare" and row["piece"] in SHOWN]
    judged = [row for row in ours if row["paper_high"] or bare(row) in BUDGET]
    demands: dict[str, list[tuple[str, bool]]] = {
        "control at least 0.99 of unmodified vLLM, batch 16 and 32": [
            (row["regime"], row["ratio"] >= 0.99)
            for row in rows
            if row["method"] == "noop" and row["piece"] == "plain" and row["batch"] >= 16
        ],
        "lower bound at least 95 % of predicted": [(row["regime"], row["of_predicted"] >= 0.95) for row in judged],
        "the same as a share of the gain": [
            (row["regime"], row["of_gain"] >= 0.95) for row in judged if row["of_gain"] is not None
        ],
    }
    for piece, name in SHOWN.items():
        claimed = [row for row in judged if row["piece"] == piece and row["paper_high"]]
        for score in dict.fromkeys(map(score_of, claimed)):
            met = [(row["regime"], row["paper_met"]) for row in claimed if score_of(row) == score]
            demands[f"the paper's range reached, {name}, `score={score}`"] = met
    cells = []
    for demand, held in demands.items():
        by_regime = [[true for where, true in held if where == regime] for regime in REGIMES]
        cells.append([demand, *(f"{sum(marks)} of {len(marks)}" if marks else "" for marks in by_regime)])
    return ["asked", *REGIMES], cells


def controls(results: Row) -> Table:
    """The cost of selection that saves nothing, and of a plugin that is loaded and not used."""
    what = {"noop": "no-op control", "unused": "plugin there, no key"}
    cells = []
    for row in deepest(results):
        if row["method"] in what and row["piece"] != "budgets":
            line = [what[row["method"]], row["regime"], _drafts(row), str(row["batch"]), str(row["layers"])]
            cells.append([*line, f"{row['step_ms']:.2f}", ratio(row)])
    return ["engine", "routing", "drafts", "batch", "layers", "ms per step", "of unmodified vLLM's speed (95 %)"], cells


def batches(results: Row, regime: str) -> Table:
    """A budget of 24 at every batch, beside the rule and the claims of vLLM pull request 35551."""
    pieces = ("plain", "logit-sum")
    rows = [row for row in results["rows"] if row["regime"] == regime and row["piece"] in pieces]
    budgets = {bare(row): f"`{row['policy']}`" for row in rows if bare(row) in BUDGET}
    titles = ["batch", "layers", "native experts", "pull request says", "its rule, here"]
    titles += [*(budgets[policy] for policy in ("k0=0,m=24", "k0=1,m=24")), "predicted"]
    cells = []
    for batch in sorted({row["batch"] for row in rows}):
        depths = [{row["layers"] for row in rows if (row["piece"], row["batch"]) == (name, batch)} for name in pieces]
        layers = max(depths[0] & depths[1] or depths[0])  # both rules in as many
        at = {bare(row): row for row in rows if (row["batch"], row["layers"]) == (batch, layers)}
        rule = next((row for row in at.values() if row["method"] == "logit-sum"), None)
        line = [
            str(batch),
            str(layers),
            f"{at['k0=1,m=24']['active_native']:.1f}",
            gain_text(rule["paper_low"]) if rule else "",
        ]
        line += [measured(rule) if rule else "", *(measured(at[name]) for name in ("k0=0,m=24", "k0=1,m=24"))]
        cells.append([*line, gain_text(at["k0=1,m=24"]["predicted"])])
    return titles, cells


def presets(results: Row, contexts: bool = False) -> Table:
    """The presets and the control on `carried` routing; contexts: with long prompts"""
    rows = [row for row in preset_rows(results) if row["regime"] == "carried"]
    at: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        if ("prompt_tokens" in row) == contexts:
            cell = (row["piece"], row.get("prompt_tokens"), row["batch"])
            at.setdefault(cell, {})[row["policy"] if row["method"] == "xshare" else row["method"]] = row
    policies = list(dict.fromkeys(row["policy"] for row in rows if row["method"] == "xshare"))
    titles = ["tokens of a prompt" if contexts else "drafts", "batch", "layers", "native experts", "native, ms"]
    titles += ["control (95 %)", *(f"`{policy_label(policy)}` (95 %)" for policy in policies)]
    cells = []
    for (_, prompt, batch), methods in at.items():
        native = methods["native"]
        line = [str(prompt) if contexts else _drafts(native), str(batch), str(native["layers"])]
        line += ["" if native["active"] is None else f"{native['active']:.1f}", f"{native['step_ms']:.2f}"]
        line += [
            ratio(methods["noop"]),
            *(Span.of_starts(methods[policy], "%") if policy in methods else "" for policy in policies),
        ]
        cells.append(line)
    return titles, cells


def acted(results: Row) -> Table:
    """The controls of several starts, and whether selection ran in all of their steps."""
    titles = ["engine for", "routing", "drafts", "tokens of a prompt", "batch", "layers", "ms per step"]
    titles += ["of unmodified vLLM's speed (95 %)", "pairs", "starts", "steps selected in", "commits"]
    cells = []
    for row in deepest(results, "pooled"):
        if row["method"] == "noop":
            line = [ENGINES.get(row["piece"], "presets"), row["regime"], str(row["drafts"] or "none")]
            line += [str(row.get("prompt_tokens", SHORT)), str(row["batch"])]
            line += [str(row["layers"]), f"{row['step_ms']:.2f}", ratio(row), str(row["pairs"]), str(row["starts"])]
            cells.append([*line, f"{row['steps_pruned']} of {row['steps_decoded']}", _commits(row, results)])
    return titles, cells


def _commits(row: Row, results: Row) -> str:
    """The commits of the runs that measured a pooled row's pairs."""
    stamps = [results["provenance"], *results.get("stamps", [])]
    return ", ".join(dict.fromkeys(f"`{stamps[number]['git'][:7]}`" for number in row.get("stamps", [])))


def cost_aware(results: Row) -> Table:
    """Policies by cost beside the same without, and the gain at equal votes lost."""
    titles = [
        "policy",
        *(f"{form}: {what}" for form in ("plain", "by cost") for what in ("experts", "votes lost", "ms")),
    ]
    plain = {row["policy"]: row for row in results["rows"] if not row["cost"]}
    cells = []
    for row in (row for row in results["rows"] if row["cost"]):
        gain = {"ratio": row["gain_at_equal_votes"], "ratio_low": row["gain_low"], "ratio_high": row["gain_high"]}
        gain["rounds"] = row["rounds"]
        pair = [
            text
            for side in (plain[row["policy"]], row)
            for text in (f"{side['active']:.1f}", f"{side['votes_lost']:.1%}", f"{side['ms']:.2f}")
        ]
        cells.append([f"`{policy_label(row['policy'])}`", *pair, measured(gain)])
    return [*titles, "faster at equal votes lost (95 %)"], cells


def one_launch(results: Row) -> Table:
    """Microseconds of routing per layer, without the router's own product."""
    titles = [
        "rows",
        "of a request",
        "vLLM's routing",
        "selection in front of it",
        "one launch",
        "one launch, gate closed",
    ]
    cells = [
        [
            str(row["rows"]),
            str(row["each"] or 1),
            *(f"{row[f'{form}_us'] - row['none_us']:.1f}" for form in ("native", "masked", "one", "closed")),
            f"{row['differ']} of {row['compared']}",
        ]
        for row in results["rows"]
    ]
    return [*titles, "batches that differ"], cells


def staircase(results: Row) -> Table:
    """Where stairs end, by the rows of a step."""
    titles = ["rows", "experts", "ms per step", "per expert, µs", "stairs end at"]
    cells = []
    for rows in dict.fromkeys(row["batch"] for row in results["rows"]):
        by_size = sorted((row for row in results["rows"] if row["batch"] == rows), key=lambda row: row["experts"])
        times = {row["experts"]: (row["ms"], row["ms_low"], row["ms_high"]) for row in by_size}
        sizes, ms = list(times), [time for time, _, _ in times.values()]
        stairs = clear_edges(cost_of(sizes, ms, results["provenance"]["experts"]), times)
        line = [str(rows), f"{sizes[0]} to {sizes[-1]}", f"{ms[0]:.2f} to {ms[-1]:.2f}"]
        cells.append([*line, f"{law.fit_law(sizes, ms).b * 1000:.0f}", ", ".join(map(str, stairs))])
    return titles, sorted(cells, key=lambda line: int(line[0]))


def laws(results: Row, drafts: bool) -> Table:
    titles = ["routing", "drafts", "batch", "layers", "native experts", "step, ms", "law, ms", "GB/s of the law"]
    cells = [
        [
            row["regime"],
            _drafts(row),
            str(row["batch"]),
            str(row["layers"]),
            f"{row['active_native']:.1f}",
            f"{row['step_ms']:.2f}",
            f"{row['a']:.2f} + {row['b']:.4f} T",
            f"{row['law_gb_s']:.0f}",
            f"{row['floor_ms']:.2f}",
        ]
        for row in deepest(results)
        if row["method"] == "native" and row["piece"] in SHOWN and row["b"] and bool(row["drafts"]) == drafts
    ]
    return [*titles, "floor, ms"], cells


def hosts(results: Row) -> Table:
    """Where a slow host sets the pace: the law, the control and one policy."""
    titles = ["routing", "drafts", "batch", "native, ms", "law, ms", "GB/s of the law", "control (95 %)", "policy"]
    at = {(row["piece"], row["regime"], row["batch"], row["policy"]): row for row in results["rows"]}
    cells = []
    for (piece, regime, batch, policy), row in at.items():
        if policy == "native":
            control, one = (
                at[piece, regime, batch, "noop"],
                at[piece, regime, batch, "k0=1,m=0,mr=4" if row["drafts"] else "k0=1,m=24"],
            )
            line = [regime, _drafts(row), str(batch), f"{row['step_ms']:.2f}", f"{row['a']:.2f} + {row['b']:.4f} T"]
            line += [f"{row['law_gb_s']:.0f}", ratio(control), f"`{one['policy']}`", measured(one)]
            cells.append([*line, gain_text(one["predicted"])])
    return [*titles, "ours (95 %)", "predicted"], cells


def fit(results: Row, of: str | None) -> Table:
    """What is known of gpt-oss-20b and, by the paper, of gpt-oss-120b, beside what either fit makes of it.

    `of`: the quantities that this regime was fitted to; None: those that neither was, as checks.
    """
    at: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in results["rows"]:
        key = (row["quantity"], row["experts"], row.get("batch"), row.get("top"))
        at.setdefault(key, {})[row["regime"]] = row
    cells = []
    for (quantity, experts, batch, top), rows in at.items():
        first = next(iter(rows.values()))
        target = "" if first["target"] is None else f"{first['target']:.3f}"
        target = f"{first['target_low']} to {first['target_high']} (paper)" if "target_low" in first else target
        name = quantity + ("" if batch is None else f", batch {batch}") + ("" if top is None else f", of top {top}")
        by = next((regime for regime, row in rows.items() if row["fit"]), None)
        shown = [of] if of else ["fitted", "carried"]
        if by == of:
            cells.append(
                [name, str(experts), target, *(f"{rows[r]['reached']:.3f}" if r in rows else "" for r in shown)]
            )
    return ["quantity", "experts", "known", *(f"`{regime}`" for regime in shown)], cells


def gain_text(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * (ratio - 1):+z.1f} %"


def paper_range(row: Row) -> str:
    return f"{gain_text(row['paper_low'])} to {gain_text(row['paper_high'])}"


def measured(row: Row) -> Span:
    return Span.of(f"{gain_text(row['ratio'])} ({gain_text(row['ratio_low'])} to {gain_text(row['ratio_high'])})", row)


def ratio(row: Row) -> Span:
    return Span.ratio(row, digits=3)


def _bound(row: Row) -> str:
    if row["of_predicted"] is None:
        return ""
    gain = row["of_gain"]
    share = "" if gain is None else ", none of the gain" if gain < 0 else f", {gain:.0%} of the gain"
    return f"{row['of_predicted']:.1%}{share}"


def _experts(row: Row) -> str:
    return f"{row['active']:.1f} of {row['active_native']:.1f}"


def _drafts(row: Row) -> str:
    return f"{row['drafts']}, {row['piece'].removeprefix('presets-')}" if row["drafts"] else "none"


def tables() -> dict[str, tuple[str, Callable[[Row], Table]]]:
    """By marker: the result file, and the function that makes its table."""
    by_marker: dict[str, tuple[str, Callable[[Row], Table]]] = {
        "controls": ("paper_speed", controls),
        "laws": ("paper_speed", partial(laws, drafts=False)),
        "laws_drafts": ("paper_speed", partial(laws, drafts=True)),
        "speed_verdicts": ("paper_speed", verdicts),
        "preset_speed": ("paper_speed", presets),
        "context_speed": ("paper_speed", partial(presets, contexts=True)),
        "qwen3_speed": ("qwen3_speed", presets),
        "qwen3_speed_first": ("qwen3_speed_first", presets),
        "acted": ("paper_speed", acted),
        "cost_aware": ("cost_aware", cost_aware),
        "one_launch": ("one_launch", one_launch),
        "one_launch_modular": ("one_launch_modular", one_launch),
        "staircase": ("staircase", staircase),
        "slow_host": ("paper_speed_slow_host", hosts),
        "fit_checks": ("fit_routing", partial(fit, of=None)),
        "fit_fitted": ("fit_routing", partial(fit, of="fitted")),
        "fit_carried": ("fit_routing", partial(fit, of="carried")),
    }
    for regime in REGIMES:
        for piece in SHOWN:
            name = "paper_speed" if piece == "plain" else f"paper_speed_{piece.replace('-', '_')}"
            by_marker[f"{name}_{regime}"] = ("paper_speed", partial(claims, regime=regime, piece=piece))
        by_marker[f"batches_{regime}"] = ("paper_speed", partial(batches, regime=regime))
    return by_marker
