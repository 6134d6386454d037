"""Expert parallelism in the shape of DeepSeek-R1: how many experts a step loads, the most on one device, how long.

    python benchmarks/paper_ep.py [--json evidence/paper_ep.json]      (--tiny: a small layer, few steps, any machine)
    python benchmarks/paper_ep.py --score topk --json evidence/paper_ep_topk.json     its score as its text has it

Counting (CPU): seeded steps of random logits through R1's router (256 experts, sigmoid + correction bias, top-8 in the
best 4 of 8 groups), experts in blocks of 32 on 8 devices. `active` is what the rows are routed to, `peak` the most of
it on one device (`max_load`: of S), `mass` the native gating weight kept; means with 95 % intervals over the steps.

  independent  logit = own[row, e], standard normal: no two rows have anything in common
  skewed       logit = 0.4 popular[e] + own[row, e]. With 0.4, native routing loads 0.94 / 0.89 / 0.85 / 0.84 of the
               closed form at 8 / 16 / 32 / 64 rows; real tokens of gpt-oss-20b load 0.96 / 0.91 / 0.85 / 0.81 of it at
               the same rows * k / N (evidence/curve.json). Rows stand for different requests: nothing else is shared.

Timing (GPU): lib/expert_parallel_layer.py, device by device on one GPU, in bfloat16 (R1 is served in fp8: half the
bytes) with random weights: speed, not quality. `layer_us` is the slowest device, median over steps; `ratio` is
native's time over it, paired by step. Left out are selection (benchmarks/kernel.py; hence no no-op control here), the
exchange between devices and the shared experts. `gbps` is what the slowest device loads over its time, `copy_share`
that over the card's own copy bandwidth: near one, loading weights decides; well below it, torch's grouped product does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from lib.expert_parallel_layer import DEVICES, EXPERTS, HIDDEN, WIDTH, Layer, most_pairs, plans_of
from torch import Tensor

from xshare import BatchLayout, Placement, Policy, RouterSpec
from xshare.algorithms import load
from xshare.cli.output import number_table, progress_bar, wide_console
from xshare.results import Results, Row
from xshare.results.columns import mean_text
from xshare.routing import prepare_step, route_prepared
from xshare.statistics import interval, median_interval
from xshare.tune.doctor import copy_gbps

ROWS, BUDGETS, FILLS = (8, 16, 32, 64), (3, 4, 5, 6, 8), ("level", "rounds")
SKEW = {"independent": 0.0, "skewed": 0.4}
BIAS = 0.01  # deviation of the correction bias: choice and score differ, and experts stay about equally popular
STEPS, TIMED, CHUNK = 200, 32, 25
COPIED = 4096  # MB, for the bandwidth
EVIDENCE = Path("evidence/paper_ep.json")
# The paper's table of R1 (k0=1, mg=5): rows -> (active, peak) native, and with its Algorithm 6, whose fill is `rounds`.
# GSM8K is its batch of 8. IFEval stands there as batch 16, but 16 rows of 8 reach 128 experts at most and it counts
# 160.4; 32 rows have 163 in closed form, so 32 it is held against.
PAPER = {8: ((50.7, 11.3), (33.2, 5.94)), 32: ((160.4, 25.6), (43.4, 8.64))}


class Choice(NamedTuple):
    """What the experts of a step are chosen by."""

    method: str  # native, or the fill
    mg: int | None
    policy: Policy


def choices(score: str) -> list[Choice]:
    """By one of the two readings of the paper's score: `full` or `topk`."""
    every = [Choice("native", None, Policy.parse("native"))]
    for mg in BUDGETS:
        every += [Choice(f, mg, Policy.parse(f"k0=1,m=0,mg={mg},fill={f},score={score}")) for f in FILLS]
    return every


CHOICES = choices("full")


class Routed(NamedTuple):
    """Steps under one policy."""

    ids: Tensor  # [steps, rows, k]
    weights: Tensor  # [steps, rows, k]
    loads: Tensor  # [steps, DEVICES]: active experts of each device
    max_load: Tensor  # [steps]: most experts of S on a device
    mass: Tensor  # [steps]

    @property
    def peak(self) -> Tensor:
        return self.loads.amax(-1)  # [steps]


def draw(regime: str, steps: int, rows: int, seed: int = 0) -> tuple[Tensor, RouterSpec]:
    """-> logits [steps, rows, EXPERTS] and the router. Popularity and bias are the same at every number of rows."""
    generator = torch.Generator().manual_seed(seed)
    popular, bias = torch.randn(2, EXPERTS, generator=generator)
    own = torch.randn(steps, rows, EXPERTS, generator=generator)
    return SKEW[regime] * popular + own, RouterSpec.for_model("deepseek-r1").with_bias(BIAS * bias)


def route_all(logits: Tensor, router: RouterSpec, points: Sequence[Choice] = CHOICES) -> list[Routed]:
    """The steps at each of the `points`, as `xshare.route` has them; what policies share is computed once."""
    layout, placement = BatchLayout.one_per_row(logits.shape[1]), Placement.contiguous(EXPERTS, DEVICES)
    parts: list[list[Routed]] = [[] for _ in points]
    for chunk in torch.split(logits, CHUNK):  # twice as fast as all at once: it stays in the caches
        step = prepare_step(chunk, router, layout, placement)
        for part, choice in zip(parts, points, strict=True):
            routing = route_prepared(step, router, choice.policy)
            loads = load(routing.active, placement.devices, DEVICES)
            part.append(Routed(routing.ids, routing.weights, loads, routing.max_load, routing.mass))
    return [Routed(*(torch.cat(column) for column in zip(*part, strict=True))) for part in parts]


def counts(routed: Routed, native: Routed, rounds: Routed | None) -> Row:
    """The columns that are counted. `rounds` is for `level`: the other fill at the same m_g."""
    row: Row = {}
    for name, values in {"active": routed.loads.sum(-1), "peak": routed.peak, "mass": routed.mass}.items():
        low, high = interval(values.double().numpy())
        row |= {name: float(values.double().mean()), f"{name}_low": low, f"{name}_high": high}
    row["max_load"] = float(routed.max_load.double().mean())
    whole = native.peak.double()
    row["peak_cut"] = float(whole.mean()) / row["peak"]
    row["peak_cut_low"] = interval(whole.numpy())[0] / row["peak_high"]  # both at the end that speaks against it
    for name in ("peak", "max_load"):  # in how many single steps
        above = None if rounds is None else int((getattr(routed, name) > getattr(rounds, name)).sum())
        row[f"{name}_above_rounds"] = above
    return row


def times(us: Tensor, native_us: Tensor, loads: Tensor, expert_bytes: int, copy: float) -> Row:
    """The columns that are timed: of each step its slowest device. us, native_us, loads [steps, DEVICES]"""
    slowest, which = us.max(-1)
    gbps = loads.gather(-1, which.unsqueeze(-1)).squeeze(-1) * expert_bytes / slowest / 1000
    row: Row = {}
    for name, values in {"layer_us": slowest, "ratio": native_us.amax(-1) / slowest, "gbps": gbps}.items():
        row[name], row[f"{name}_low"], row[f"{name}_high"] = median_interval(values.tolist())
    return row | {"copy_share": row["gbps"] / copy}


TIMES = [f"{name}{end}" for name in ("layer_us", "ratio", "gbps") for end in ("", "_low", "_high")] + ["copy_share"]


def paper(rows: int, mg: int | None) -> Row:
    active, peak = PAPER[rows][mg is not None] if rows in PAPER and mg in (None, 5) else (None, None)
    return {"paper_active": active, "paper_peak": peak}


def layer_times(layer: Layer, routings: list[Routed], pairs: int, timed: bool) -> Tensor | None:
    """Check the layer on two of the routings, and time it on all -> [points, steps, DEVICES]; None if not `timed`."""
    plans = torch.stack([plans_of(at.ids, at.weights, pairs) for at in routings])
    for number in (0, -1):
        layer.check(routings[number].ids[0], routings[number].weights[0], plans[number, 0])
    return layer.times_us(plans.to(layer.where)) if timed else None


def measured(steps: int, layer: Layer | None, copy: float | None, points: Sequence[Choice] = CHOICES) -> list[Row]:
    rows: list[Row] = []
    with progress_bar("regimes and rows", len(ROWS) * len(SKEW)) as advance:
        for n in ROWS:
            regimes = {regime: route_all(*draw(regime, steps, n), points) for regime in SKEW}
            first = {regime: [Routed(*(x[:TIMED] for x in at)) for at in routed] for regime, routed in regimes.items()}
            pairs = max(most_pairs(at.ids) for routed in first.values() for at in routed)
            if layer is not None:
                layer.capture(n, pairs)
            for regime, routed in regimes.items():
                us = None if layer is None else layer_times(layer, first[regime], pairs, copy is not None)
                for number, (choice, at) in enumerate(zip(points, routed, strict=True)):
                    row: Row = {"regime": regime, "rows": n, "method": choice.method, "policy": str(choice.policy)}
                    row |= {"mg": choice.mg, **paper(n, choice.mg), **dict.fromkeys(TIMES)}
                    row |= counts(at, routed[0], routed[number + 1] if choice.method == "level" else None)
                    if us is not None and layer is not None and copy is not None:
                        row |= times(us[number], us[0], first[regime][number].loads, layer.expert_bytes, copy)
                    rows.append(row)
                advance(1)
    return rows


def show(rows: list[Row], regime: str) -> None:
    names = ["rows", "active", "peak", "cut", "mass", "paper active", "peak", "layer us", "ratio", "GB/s", "of copy"]
    table = number_table(f"{regime}: experts active, and on the fullest device; the layer's time", "policy", *names)
    for row in (row for row in rows if row["regime"] == regime):
        cells = [
            str(row["rows"]),
            mean_text(row, "active", 1),
            mean_text(row, "peak", 2),
            f"{row['peak_cut']:.2f}",
        ]
        cells += [f"{row['mass']:.3f}", *(str(row[f"paper_{name}"] or "") for name in ("active", "peak"))]
        if row["layer_us"] is not None:
            cells += [mean_text(row, "layer_us", 0), mean_text(row, "ratio", 2), f"{row['gbps']:.0f}"]
            cells += [f"{row['copy_share']:.0%}"]
        table.add_row(row["policy"], *cells)
    wide_console().print(table)


def verdict(rows: list[Row]) -> list[str]:
    """What must hold, and whether it does."""
    level = [row for row in rows if row["method"] == "level"]
    lines = []
    for n in (16, 32):
        at = [row for row in level if row["rows"] == n and row["regime"] == "independent"]
        enough = [str(row["mg"]) for row in at if row["peak_cut_low"] >= 3]
        short = [f"{row['peak_cut']:.2f} at {row['mg']}" for row in at if str(row["mg"]) not in enough]
        says = f"holds at mg {', '.join(enough)}" if enough else "does not hold"
        lines.append(
            f"level cuts the peak at least 3x, {n} independent rows: {says}" + f" ({', '.join(short)})" * bool(short)
        )
    rounds = {(row["regime"], row["rows"], row["mg"]): row["peak"] for row in rows if row["method"] == "rounds"}
    means = sum(row["peak"] > rounds[row["regime"], row["rows"], row["mg"]] for row in level)
    sets, peaks = (sum(row[f"{name}_above_rounds"] for row in level) for name in ("max_load", "peak"))
    says = "does not hold" if means or sets else "holds"
    text = f"level's mean peak and MaxLoad are not above rounds' at equal mg: {says} (means at {means} of {len(level)},"
    # The rows need not use all of S, so what they are routed to may stand the other way round now and then.
    lines.append(f"{text} MaxLoad(S) in {sets} single steps; what the rows use of S in {peaks})")
    if shares := [row["copy_share"] for row in rows if row["copy_share"] is not None]:
        lines.append(f"the slowest device loads weights at {min(shares):.0%} to {max(shares):.0%} of copy bandwidth")
    return lines


def main(
    json: Annotated[Path | None, typer.Option(help=f"Write the rows here; with a GPU, {EVIDENCE} if not said.")] = None,
    score: Annotated[str, typer.Option(help="How the paper's score is read: full, or topk.")] = "full",
    tiny: Annotated[bool, typer.Option("--tiny", help="A small layer and few steps.")] = False,
) -> None:
    torch.set_num_threads(1)  # counting: many small operations, and the same speed beside other work
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    copy = copy_gbps("cuda", COPIED) if gpu else None
    hidden, width = (64, 32) if tiny else (HIDDEN, WIDTH)
    steps = 8 if tiny else STEPS
    torch.manual_seed(0)  # weights and rows
    layer = Layer(hidden, width, "cuda" if gpu else "cpu") if gpu or tiny else None
    rows = measured(steps, layer, copy, choices(score))
    for regime in SKEW:
        show(rows, regime)
    print(*verdict(rows), sep="\n")
    if copy is not None:
        print(f"copy bandwidth of this {gpu}: {copy:.0f} GB/s")
    if json is None and gpu and not tiny and score == "full":  # what has no times does not replace what has
        json = EVIDENCE
    about: Row = {"gpu": gpu, "copy_gbps": copy, "hidden": hidden, "width": width, "dtype": "bfloat16"}
    results = Results(json, None, about | {"seed": 0, "steps": steps, "timed_steps": min(steps, TIMED)}, lists=())
    results.rows = rows
    results.write()


if __name__ == "__main__":
    typer.run(main)
