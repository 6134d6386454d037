"""Tables of what policies do to the answers, for render.py: a result file -> titles and cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from spans import Span
from speed_tables import FULL, deepest, topk_rows

from xshare.policy_text import current_policy_text
from xshare.quality.paired import paired

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
Setting = tuple[int, int, bool]  # batch, drafts, mixed


def policies(results: Row, setting: Setting) -> Table:
    """Native, the control, the paper's configurations and the rivals, from most experts to fewest."""
    titles = ["policy", "the paper's", "active experts", "of native", "accuracy", "change (95 %)", "agreement", "KL"]
    cells = []
    for row in sorted(_rows_in(results["rows"], setting), key=native_first):
        line = [f"`{row['policy']}`", _paper(row, results).replace(",", ", "), f"{row['active']:.1f}"]
        line += [of_native(row), _share(row, "accuracy"), change(row)]
        line += [f"{row['agreement']:.1%}", f"{row['kl']:.4f}"]
        cells.append(line + ([f"{row['accepted']:.2f}"] if setting[1] else []))
    return titles + (["accepted"] if setting[1] else []), cells


def today(results: Row, policy: str) -> str:
    """A policy in today's words: an older file that names no score means the full one."""
    return policy if "format" in results else current_policy_text(policy)


def _read(results: Row, row: Row) -> tuple[str, str]:
    """A policy without its score, and its reading of the paper's score."""
    policy = today(results, row["policy"])
    return policy.removesuffix(FULL), "full" if policy.endswith(FULL) else "topk"


def _readings(results: Row) -> dict[tuple[Setting, str, str], Row]:
    return {(_setting_of(row), *_read(results, row)): row for row in results["rows"]}


def _paper(row: Row, results: Row) -> str:
    """What the paper calls a policy, and by which reading of its score, where greedy has something to choose.

    Rows of score=topk carry no name of the paper's: theirs is that of the same numbers.
    """
    policy, score = _read(results, row)
    full = _readings(results).get((_setting_of(row), policy, "full"), row)
    name: str = full["paper"]
    chosen = "=" in name and _numbers(name).keys() & {"m", "mr"}
    return f"{name},{score}" if chosen else name


def readings(results: Row) -> Table:
    """Both readings of the paper's score beside OEA, and the gain of score=topk over OEA on the same questions."""
    titles = ["batches", "policy", "rival", *(f"{what}: full / topk / OEA" for what in ("experts", "right", "KL"))]
    at = _readings(results)
    right = {
        (_setting_of(sample), sample["policy"]): [mark == "1" for mark in sample["right"]]
        for sample in results["samples"]
    }
    cells = []
    for pair in results["matched"]:
        setting, (policy, _) = _setting_of(pair), _read(results, pair | {"policy": pair["reference"]})
        full, topk = (at.get((setting, policy, score)) for score in ("full", "topk"))
        if not pair["policy"].startswith("oea") or full is None or topk is None:
            continue
        three = (
            full,
            topk,
            next(r for r in results["rows"] if (_setting_of(r), r["policy"]) == (setting, pair["policy"])),
        )
        compared = paired(right[setting, pair["policy"]], right[setting, topk["policy"]])
        batch, drafts, mixed = setting
        batches = f"{batch}, {drafts} drafts" if drafts else str(batch)
        line = [f"{batches}, {'mixed' if mixed else 'alike'}", policy, f"`{pair['policy']}`"]
        line += [" / ".join(f"{row['active']:.1f}" for row in three), " / ".join(f"{r['accuracy']:.1%}" for r in three)]
        line += [" / ".join(f"{row['kl']:.4f}" for row in three)]
        cells.append([*line, Span(f"{_points(compared.change)} ({_points(compared.low)} to {_points(compared.high)})")])
    return [*titles, "topk over OEA, points (95 %)"], cells


def _setting_of(row: Row) -> Setting:
    return row["batch"], row["drafts"], row["mixed"]


def matched(results: Row, setting: Setting) -> Table:
    """Rivals against their references, with the rival's gain."""
    titles = ["reference", "rival", "active experts", "accuracy", "rival's gain (95 %)", "p", "KL", "agreement"]
    cells = [
        [
            f"`{row['reference']}`",
            f"`{row['policy']}`",
            f"{row['active_reference']:.1f} / {row['active']:.1f}",
            f"{row['accuracy_reference']:.1%} / {row['accuracy']:.1%}",
            Span(f"{_points(row['change'])} ({_points(row['low'])} to {_points(row['high'])})"),
            f"{row['p']:.2g}",
            f"{row['kl_reference']:.4f} / {row['kl']:.4f}",
            f"{row['agreement_reference']:.1%} / {row['agreement']:.1%}",
        ]
        for row in _rows_in(results["matched"], setting)
    ]
    return titles, cells


def correlation(results: Row) -> Table:
    """Correlation of mass lost and KL per layer: over all policies, and the least and most within one."""
    titles = ["layer", "steps", "Pearson (95 %)", "Spearman (95 %)", "Spearman within a policy"]
    cells = []
    for row in (row for row in results["correlation"] if row["policy"] is None):
        within = [
            policy_row["spearman"]
            for policy_row in results["correlation"]
            if policy_row["policy"] is not None and policy_row["layer"] == row["layer"] and row["steps"] is not None
        ]
        name = "all" if row["layer"] is None else str(row["layer"])
        line = [name, f"{row['steps']:,}"] if row["steps"] is not None else ["means of single layers", ""]
        both = [f"{row[n]:.2f} ({row[f'{n}_low']:.2f} to {row[f'{n}_high']:.2f})" for n in ("pearson", "spearman")]
        line += map(Span, both)
        cells.append([*line, f"{min(within):.2f} to {max(within):.2f}" if within else ""])
    return titles, cells


def layers(results: Row) -> Table:
    """KL and mass lost of each layer pruned alone, one column per policy."""
    names = list(dict.fromkeys(row["policy"] for row in results["layers"]))
    cells = []
    for layer in dict.fromkeys(row["layer"] for row in results["layers"]):
        at = {row["policy"]: row for row in results["layers"] if row["layer"] == layer}
        line = [f"{at[name]['kl']:.4f} / {at[name]['mass_lost']:.1%} / {at[name]['same']:.1%}" for name in names]
        cells.append(["all" if layer is None else str(layer), *line])
    return ["layer, KL / mass lost / same token", *(f"`{name}`" for name in names)], cells


def overlap(results: Row) -> Table:
    cells = [
        [row["pair"], str(row["top"]), *(f"{n:.2f}" for n in (row["overlap"], row["chance"])), _times_chance(row)]
        for row in results["overlap"]
    ]
    return ["pair of tokens", "of their top", "experts shared", "by chance", "times chance"], cells


def _times_chance(row: Row) -> str:
    return f"{row['overlap'] / row['chance']:.2f}"


def neighbours(results: Row) -> Table:
    titles = ["policy", "batches", "active experts", "texts that change", "other answer", "right and wrong"]
    titles += ["texts per prompt", "accuracy over the mates", "KL", "its spread"]
    cells = [
        [
            f"`{row['policy']}`",
            "mixed" if row["mixed"] else "alike",
            f"{row['active']:.1f} of {row['active_native']:.1f}",
            _share(row, "changed"),
            _share(row, "changed_answer"),
            _share(row, "flipped"),
            f"{row['distinct']:.2f}",
            f"{row['accuracy_least']:.1%} to {row['accuracy_most']:.1%}",
            f"{row['kl']:.4f}",
            f"{row['kl_spread']:.4f}",
        ]
        for row in by_mates(results["rows"])
    ]
    return titles, cells


def by_mates(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (not row["mixed"], row["policy"] != "native", -row["active"]))


def _rows_in(rows: list[Row], setting: Setting) -> list[Row]:
    return [row for row in rows if (row["batch"], row["drafts"], row["mixed"]) == setting]


def native_first(row: Row) -> tuple[bool, bool, float]:
    """Native first, then the control, then by experts."""
    return row["policy"] != "native", row["paper"] != "no-op control", -row["active"]


def of_native(row: Row) -> str:
    return f"{row['active'] / row['active_native']:.0%}"


def _share(row: Row, name: str) -> str:
    low, high = abs(row[f"{name}_low"]), row[f"{name}_high"]  # abs: rounding may leave -0
    return f"{row[name]:.1%} ({low:.1%} to {high:.1%})"


def change(row: Row) -> str:
    if row["policy"] == "native":
        return ""
    return Span(f"{_points(row['change'])} ({_points(row['change_low'])} to {_points(row['change_high'])})")


def experts_and_points(rows: Iterable[Row | None]) -> list[str]:
    """Two cells per row, its share of native's experts and its change; empty ones where a row was not measured."""
    return [cell for row in rows for cell in ((of_native(row), change(row)) if row else ("", ""))]


def _points(change: float) -> str:
    """A change in points: percent would leave open of what."""
    return f"{round(100 * change, 1) + 0:+.1f}"  # + 0: not -0


def choosing(speed: Row, nano: Row, lab: Row | None, setting: Setting) -> Table:
    """The paper's configurations from fastest to slowest: what each gains in speed, and costs in answers."""
    piece = "eagle3" if setting[1] else "plain"
    timed = [r for r in deepest(speed) if (r["piece"], r["regime"], r["batch"]) == (piece, "carried", setting[0])]
    gains = {row["policy"]: row for row in timed if row["method"] == "xshare"}
    order = sorted(gains, key=lambda policy: -gains[policy]["ratio"])
    timed_topk = topk_rows(speed, "carried", setting[1])
    other_gains = [timed_topk.get(policy.removesuffix(FULL)) for policy in order]
    columns: dict[str, list[str]] = {
        "policy": [f"`{policy}`" for policy in order],
        "tokens per second (95 %)": [Span.of_starts(gains[policy], "%") for policy in order],
        "experts": [of_native(gains[policy]) for policy in order],
        "`score=topk`: tokens per second (95 %)": [Span.of_starts(row, "%") if row else "" for row in other_gains],
        "`score=topk`: experts": [of_native(row) if row else "" for row in other_gains],
    }
    for results in (results for results in (nano, lab) if results is not None):
        name = results["rows"][0]["model"]
        mixed, alike = ([named_row(results, policy, (*setting[:2], mix)) for policy in order] for mix in (True, False))
        topk_answers = [
            row and _readings(results).get((_setting_of(row), _read(results, row)[0], "topk")) for row in mixed
        ]
        columns |= {
            f"{name}: experts": [of_native(row) if row else "" for row in mixed],
            f"{name}: points (95 %)": [change(row) if row else "" for row in mixed],
            f"{name}: KL": [f"{row['kl']:.4f}" if row else "" for row in mixed],
            f"{name}, `score=topk`: experts": [of_native(row) if row else "" for row in topk_answers],
            f"{name}, `score=topk`: points (95 %)": [change(row) if row else "" for row in topk_answers],
            f"{name}: one kind at a time": [change(row) if row else "" for row in alike],
        }
    filled = {title: cells for title, cells in columns.items() if any(cells)}
    return list(filled), [list(line) for line in zip(*filled.values(), strict=True)]


def named_row(results: Row, policy: str, setting: Setting) -> Row | None:
    """The row of one of the paper's configurations, whose budgets are scaled to the model's number of experts."""
    return next((row for row in _rows_in(results["rows"], setting) if _numbers(row["paper"]) == _numbers(policy)), None)


def _numbers(text: str) -> dict[str, int]:
    """A configuration's numbers by letter: the paper has another order, and zeros may be left out."""
    pairs = [part.split("=") for part in text.removesuffix(",score=full").split(",") if "=" in part]
    return {name: int(value) for name, value in pairs if int(value)}


SETTINGS = {"": (16, 0, True), "_alike": (16, 0, False), "_drafts": (4, 3, True), "_drafts_alike": (4, 3, False)}


def tables() -> dict[str, tuple[str, Callable[..., Table]]]:
    """By marker: the result files, and the function that makes their table. `lab_`: of the larger model."""
    by_marker: dict[str, tuple[str, Callable[..., Table]]] = {"neighbours": ("neighbours", neighbours)}
    by_marker["readings"] = ("paper_quality", readings)
    for name, setting in SETTINGS.items():
        by_marker[f"paper_quality{name}"] = ("paper_quality", partial(policies, setting=setting))
        by_marker[f"paper_matched{name}"] = ("paper_quality", partial(matched, setting=setting))
        if not setting[1]:
            by_marker[f"warmup{name}"] = ("assumptions", partial(matched, setting=setting))
    for name, table in (("mass_and_kl", correlation), ("pruned_layers", layers), ("token_overlap", overlap)):
        by_marker[name] = ("assumptions", table)
    by_marker |= {f"lab_{name}": (f"{file}_lab", table) for name, (file, table) in by_marker.items()}
    files = "paper_speed paper_quality paper_quality_lab"
    return by_marker | {
        "choosing": (files, partial(choosing, setting=SETTINGS[""])),
        "choosing_drafts": (files, partial(choosing, setting=SETTINGS["_drafts"])),
    }
