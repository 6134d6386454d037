"""Tables of the third model, for render.py: its perplexity, its routing, and what policies do to its texts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

from quality_tables import Row, Table, change, native_first, of_native
from spans import Span
from speed_tables import gain_text

from xshare.policy import RECOMMENDED, Policy
from xshare.report.labels import policy_label

MODELS = {
    "dense": "SmolLM2-135M, as it came",
    "dense-trained": "SmolLM2-135M, trained as well",
    "start": "the mixture, before training",
    "smol": "the mixture, trained",
    "smol-cpu": "the mixture, trained",
}
PROSE = ("k0=0,rho=0.9", "k0=2,m=6", "k0=1,m=12", "k0=1,m=6", "k0=2,m=0,score=full", "topk:k=3")  # beside the presets
SETTINGS = {f"_{batch}{'' if mixed else '_alike'}": (batch, mixed) for batch in (16, 32) for mixed in (True, False)}


def perplexity(results: Row) -> Table:
    """By model and language, on the texts that policies are measured on."""
    rows = results["perplexity"]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    at = {(row["model"], row["kind"]): row for row in rows}
    order = sorted(dict.fromkeys(row["model"] for row in rows), key=lambda name: [*MODELS, name].index(name))
    cells = [
        [MODELS.get(name, name), f"{at[name, None]['parameters'] / 1e6:.0f} M"]
        + [_perplexity(at[name, kind]) for kind in kinds]
        for name in order
    ]
    return ["model", "parameters", *(f"{kind or 'all'} (95 %)" for kind in kinds)], cells


def _perplexity(row: Row) -> Span:
    return Span(f"{row['perplexity']:.1f} ({row['perplexity_low']:.1f} to {row['perplexity_high']:.1f})")


def choice(*results: Row) -> Table:
    """How tokens weigh their experts, and whether these come in groups: means over layers."""
    titles = [
        "model",
        "a token's weights",
        "without its last expert",
        "with the most frequent companion (most in a layer)",
    ]
    cells = []
    described = [row for result in results for row in result["choice"]]
    for model in dict.fromkeys(row["model"] for row in described):
        rows = [row for row in described if row["model"] == model]
        weights = [fmean(column) for column in zip(*(row["weights"] for row in rows), strict=True)]
        company = [row["company"] for row in rows]
        line = [model, ", ".join(f"{weight:.2f}" for weight in weights)]
        cells.append([*line, f"{1 - weights[-1]:.2f}", f"{fmean(company):.0%} ({max(company):.0%})"])
    return titles, cells


def routers(results: Row, nano: Row | None, lab: Row | None, load: Row | None, overlap: Row | None) -> Table:
    """How even the load is, and how many of four experts two tokens share, in times chance: models have other numbers
    of experts. lab's load was not recorded, and its overlap is of the best five."""
    pairs = {
        "consecutive": "shared by neighbours in a text",
        "same domain": "by texts of one domain",
        "different domains": "of two",
    }
    titles = ["model", "entropy of the load", "dead experts", "heaviest, in even loads", *pairs.values()]
    cells = []
    for name, loads, shared, top in (
        (results["rows"][0]["model"], results["load"], results["overlap"], 4),
        ("nano", _list(nano, "load"), _list(nano, "overlap"), 4),
        ("lab", [], _list(lab, "overlap"), 5),
        ("gpt-oss-20b", _list(load, "rows"), _list(overlap, "rows"), 4),
    ):
        at = {row["pair"]: row["overlap"] / row["chance"] for row in shared if row["top"] == top}
        if loads or at:
            cells.append([name, *_spread(loads), *(f"{at[pair]:.1f}x" if pair in at else "" for pair in pairs)])
    return titles, cells


def _list(results: Row | None, name: str) -> list[Row]:
    return [] if results is None else results[name]


def _spread(loads: list[Row]) -> list[str]:
    """Over all layers: the mean, and the worst layer."""
    if not loads:
        return [""] * 3
    entropy = [row["entropy"] for row in loads]
    mean = f"{sum(entropy) / len(entropy):.3f} ({min(entropy):.3f} in the least even layer)"
    dead = sum(row["dead"] for row in loads) / len(loads)
    return [mean, f"{dead:.1%}", f"{max(row['heaviest'] for row in loads):.1f}x"]


def policies(results: Row, batch: int, mixed: bool) -> Table:
    """From most experts to fewest, native and the control first."""
    titles = ["policy", "the paper's", "active experts", "of native", "KL", "perplexity", "against native (95 %)"]
    rows = [row for row in results["rows"] if (row["set"], row["batch"], row["mixed"]) == ("texts", batch, mixed)]
    cells = []
    for row in sorted(rows, key=native_first):
        line = [
            f"`{policy_label(row['policy'])}`",
            row["paper"].replace(",", ", "),
            f"{row['active']:.1f}",
            of_native(row),
        ]
        line += [f"{row['kl']:.4f}", f"{row['perplexity']:.2f}", "" if row["policy"] == "native" else worse(row)]
        cells.append([*line, f"{row['agreement']:.1%}"])
    return [*titles, "agreement"], cells


def worse(row: Row) -> Span:
    """By how much perplexity is above native's."""
    value, low, high = (gain_text(row[f"perplexity_ratio{end}"]) for end in ("", "_low", "_high"))
    return Span(f"{value} ({low} to {high})")


def prose(results: Row) -> Table:
    """What the best-known policies cost in text, by setting: the share of native's experts, and of its perplexity."""
    at = {(row["batch"], row["mixed"], row["policy"]): row for row in results["rows"] if row["set"] == "texts"}
    settings = sorted({(batch, mixed) for batch, mixed, _ in at}, key=lambda place: (place[0], not place[1]))
    titles, cells = ["policy"], []
    for batch, mixed in settings:
        where = f"{batch}, {'mixed' if mixed else 'one kind'}"
        titles += [f"{where}: experts", f"{where}: perplexity (95 %)"]
    for name in [*RECOMMENDED, *PROSE]:
        policy = str(Policy.parse(name))
        rows = [at.get((*setting, policy)) for setting in settings]
        cells.append([f"`{policy_label(policy)}`", *(cell for row in rows for cell in _cost(row))])
    return titles, cells


def kinds(results: Row) -> Table:
    """The same in mixed batches of 16, by what the text is: how much perplexity rises."""
    rows = [row for row in results["rows"] if (row["set"], row["batch"], row["mixed"]) == ("texts", 16, True)]
    at = {row["policy"]: row for row in rows}
    names = list(dict.fromkeys(row["kind"] for row in results["perplexity"] if row["kind"]))
    cells = []
    for name in ("native", *RECOMMENDED):
        row = at["native" if name == "native" else str(Policy.parse(name))]
        cells.append([f"`{policy_label(row['policy'])}`"])
        for kind in names:
            of, native = row[f"perplexity {kind}"], row[f"perplexity_native {kind}"]
            cells[-1].append(f"{native:.1f}" if name == "native" else gain_text(of / native))
    return ["policy", *names], cells


def matched(results: Row) -> Table:
    """By setting and reference: each rival's knob, and the experts that both load in a replay."""
    titles = ["batch", "reference", "its experts", "rival", "policy", "experts"]
    cells = []
    for row in results["calibration"]:
        where = f"{row['batch']}, {'mixed' if row['mixed'] else 'one kind'}"
        line = [where, f"`{policy_label(row['reference'])}`", f"{row['replayed_reference']:.1f}", row["rival"]]
        cells.append([*line, f"`{row['policy']}`", f"{row['replayed']:.1f}"])
    return titles, cells


def _cost(row: Row | None) -> list[str]:
    return ["", Span("")] if row is None else [of_native(row), worse(row)]


def questions(results: Row) -> Table:
    titles = ["policy", "active experts", "of native", "right", "change (95 %)", "KL", "agreement"]
    rows = [row for row in results["rows"] if row["set"] == "questions"]
    cells = []
    for row in sorted(rows, key=native_first):
        line = [f"`{policy_label(row['policy'])}`", f"{row['active']:.1f}", of_native(row), f"{row['accuracy']:.1%}"]
        cells.append([*line, change(row), f"{row['kl']:.4f}", f"{row['agreement']:.1%}"])
    return titles, cells


def tables() -> dict[str, tuple[str, Callable[..., Table]]]:
    """By marker: the result files, and the function that makes their table."""
    by_marker: dict[str, tuple[str, Callable[..., Any]]] = {}
    for prefix, file in (("third", "third_model"), ("prose", "nano_texts")):
        of_texts: dict[str, Callable[..., Table]] = {"": prose, "_kinds": kinds, "_matched": matched}
        of_texts |= {"_perplexity": perplexity, "_choice": choice}
        of_texts |= {name: partial(policies, batch=batch, mixed=mixed) for name, (batch, mixed) in SETTINGS.items()}
        by_marker |= {f"{prefix}{name}": (file, table) for name, table in of_texts.items()}
    by_marker["third_choice"] = ("third_model nano_texts", choice)
    by_marker["third_routers"] = ("third_model nano_texts assumptions_lab load overlap", routers)
    return by_marker | {"third_questions": ("third_model", questions)}
