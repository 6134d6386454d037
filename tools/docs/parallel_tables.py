"""Tables of expert parallelism, for render.py: a result file -> titles and cells."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from speed_tables import Row, Table, ratio

Steps = dict[tuple[int, str, int | None], Row]  # by rows, method and mg


def devices(results: Row, regime: str) -> Table:
    """What is loaded, and in how many of the steps the fullest device of `level` has more than that of `rounds`."""
    titles = ["policy", "rows", "active experts", "on the fullest device", "cut", "gating mass", "layer, us"]
    titles += ["faster (95 %)", "steps above `rounds`", "paper: active, fullest"]
    steps = results["provenance"]["steps"]
    cells = []
    for row in results["rows"]:
        if row["regime"] == regime:
            line = [f"`{row['policy']}`", str(row["rows"]), f"{row['active']:.1f}", f"{row['peak']:.2f}"]
            line += [f"{row['peak_cut']:.2f}x", f"{row['mass']:.3f}"]
            line += [f"{row['layer_us']:.0f}", ratio(row)] if row["layer_us"] is not None else ["", ""]
            above = row["peak_above_rounds"]
            line += ["" if above is None else f"{above} of {steps}"]
            cells.append([*line, f"{row['paper_active']}, {row['paper_peak']}" if row["paper_active"] else ""])
    return titles, cells


def claims(full: Row, topk: Row) -> Table:
    """The paper's two rows for R1 beside ours at as many rows: either reading of its score, its fill and `level`."""
    ways = [(score, fill) for score in ("full", "topk") for fill in ("rounds", "level")]
    titles = ["rows", "claim", "paper", *(f"`{fill}`, `score={score}`" for score, fill in ways), "as much as the paper"]
    at = {"full": steps_of(full), "topk": steps_of(topk)}
    cells = []
    for (rows, method, _), native in at["full"].items():
        if method != "native" or not native["paper_active"]:
            continue
        for what, name in (("active experts", "active"), ("on the fullest device", "peak")):
            paper = (native[f"paper_{name}"], at["full"][rows, "rounds", 5][f"paper_{name}"])
            ours = [(at[score][rows, "native", None][name], at[score][rows, fill, 5][name]) for score, fill in ways]
            cuts = [1 - after / before for before, after in (paper, *ours)]
            texts = [f"{b:.1f} to {a:.1f} ({-cut:+.0%})" for (b, a), cut in zip((paper, *ours), cuts, strict=True)]
            percents = [round(100 * cut) for cut in cuts]  # in whole percents, as the paper says them
            enough = [way for way, cut in zip(ways, percents[1:], strict=True) if cut >= percents[0]]
            cells.append([str(rows), what, *texts, _those(enough, ways)])
    return titles, cells


def above(full: Row, topk: Row) -> Table:
    """Where `level` has more than `rounds` at the same budget: on average, by MaxLoad of S, and in single steps."""
    titles = ["score", "points", "mean peak above", "MaxLoad above, steps", "peak above, steps", "of them most"]
    cells = []
    for score, results in (("full", full), ("topk", topk)):
        rows = [row for row in results["rows"] if row["method"] == "level"]
        rounds = {(row["regime"], row["rows"], row["mg"]): row for row in results["rows"] if row["method"] == "rounds"}
        means = sum(row["peak"] > rounds[row["regime"], row["rows"], row["mg"]]["peak"] for row in rows)
        steps = len(rows) * results["provenance"]["steps"]
        sets, peaks = (sum(row[f"{name}_above_rounds"] for row in rows) for name in ("max_load", "peak"))
        worst = max(rows, key=lambda row: row["peak_above_rounds"])
        most = f"{worst['peak_above_rounds']} of {results['provenance']['steps']} steps: {worst['regime']}, "
        most += f"{worst['rows']} rows, `mg={worst['mg']}`"
        cells.append([f"`{score}`", str(len(rows)), str(means), f"{sets} of {steps}", f"{peaks} of {steps}", most])
    return titles, cells


def scale(*deployments: Row) -> Table:
    """One set for all ranks beside a set for each."""
    titles = ["devices = ranks", "requests", "policy", "set", "active", "of a rank", "fullest device", "gating mass"]
    cells = []
    for results in deployments:
        for row in results["rows"]:
            native = row["policy"] == "native"
            if native and row["shared"]:
                continue  # the same as without
            which = "" if native else "of all ranks" if row["shared"] else "of each rank"
            line = [str(row["devices"]), str(row["batch"]), f"`{row['policy']}`", which]
            cells.append([*line, *(f"{row[name]:.1f}" for name in ("active", "active_rank")), f"{row['max_load']:.2f}"])
            cells[-1].append(f"{row['mass']:.3f}")
    return titles, cells


def scale_short(*deployments: Row) -> Table:
    """What all devices load and the fullest one, natively, with a budget for the batch and with one for each device."""
    titles = ["devices = ranks", "native", "`m=24`, one set", "`m=24`, one each", "`mg`, one set", "`mg`, one each"]
    cells = []
    for results in deployments:
        by_policy = {(row["policy"], row["shared"]): row for row in results["rows"]}
        spread = next(name for name, _ in by_policy if "mg=" in name)
        columns = [("native", False), *((name, shared) for name in ("k0=1,m=24", spread) for shared in (True, False))]
        texts = [f"{by_policy[key]['active']:.0f}, {by_policy[key]['max_load']:.1f}" for key in columns]
        texts[-2:] = [f"{text} (`{spread.rsplit(',', 1)[-1]}`)" for text in texts[-2:]]
        cells.append([str(results["rows"][0]["devices"]), *texts])
    return titles, cells


def checks(results: Row) -> Table:
    titles = ["layout", "check", "passed", "detail"]
    rows = results["rows"]
    return titles, [[row["layout"], row["check"], "yes" if row["passed"] else "no", row["detail"]] for row in rows]


def steps_of(results: Row) -> Steps:
    rows = (row for row in results["rows"] if row["regime"] == "independent")
    return {(row["rows"], row["method"], row["mg"]): row for row in rows}


def _those(enough: list[tuple[str, str]], ways: list[tuple[str, str]]) -> str:
    if len(enough) in (0, len(ways)):
        return "all" if enough else "none"
    return ", ".join(f"`{fill}` with `{score}`" for score, fill in enough)


def tables() -> dict[str, tuple[str, Callable[..., Table]]]:
    """By marker: the result files, and the function that makes their table."""
    by_marker: dict[str, tuple[str, Callable[..., Table]]] = {
        "ep_claims": ("paper_ep paper_ep_topk", claims),
        "ep_above": ("paper_ep paper_ep_topk", above),
        "scale": ("scale_8 scale_16 scale_64", scale),
        "scale_short": ("scale_8 scale_16 scale_64", scale_short),
        "parallel_check": ("parallel_check", checks),
    }
    for regime in ("independent", "skewed"):
        by_marker[f"paper_ep_{regime}"] = ("paper_ep", partial(devices, regime=regime))
    return by_marker
