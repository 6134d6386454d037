"""Pairs of decodes -> rows: ratios with intervals, the latency law, the floor, and what the paper says beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from lib.engine_process import PROMPT
from xshare.latency_law import Law, fit_law
from xshare.results import Row
from xshare.results.resumable import STAMP
from xshare.statistics import interval_mark, median_interval

Sample = dict[str, Any]  # one decode: seconds, steps, tokens
Pairs = Mapping[str, Sequence[tuple[Sample, Sample]]]  # by policy: unmodified vLLM's decode and this one's
NATIVE, NOOP, UNUSED = "native", "noop", "unused"
STAMPS = "stamps"  # column of a pooled row: the numbers of the runs that measured its pairs

# The paper's gain in output tokens per second and request, in percent as printed: the least and the most over its
# datasets, at batch 16, and with 3 drafts at batch 4.
PAPER = {
    (0, 16): {
        "k0=1,m=0": (48.0, 51.9),
        "k0=1,m=12": (19.2, 23.0),
        "k0=1,m=16": (12.8, 16.2),
        "k0=1,m=24": (7.1, 12.7),
        "k0=1,m=32": (4.0, 8.1),
        "k0=2,m=0": (22.7, 24.1),
        "k0=2,m=12": (6.1, 7.3),
        "k0=0,m=24": (24.8, 35.8),
    },
    (3, 4): {
        "k0=0,m=16,mr=4": (3.0, 10.2),
        "k0=1,m=0,mr=4": (13.3, 16.9),
        "k0=1,m=0,mr=5": (8.6, 10.6),
        "k0=2,m=0,mr=4": (3.7, 6.2),
        "k0=1,m=24": (2.5, 5.6),
        "k0=1,m=32": (0.8, 3.9),
        "k0=2,m=10": (2.3, 8.0),
        "k0=0,m=0,mr=8": (1.6, 9.3),
    },
}
FULL = ",score=full"  # the reading of the paper's score that its speed table fits; the other is score=topk
LOGIT_SUM = "logit-sum:m=24"
PULL_REQUEST = {4: 1.054, 8: 1.162, 16: 1.368, 32: 1.530}  # vLLM 35551 on an H200, throughput, by requests
BUDGET = ("k0=1,m=24", "k0=0,m=24")  # judged at every batch; other policies at 4, 8 and 32 are points of the law
LARGE = 8.0  # percent: above it, fitted and carried must reach the top of the paper's range, below it the bottom


@dataclass(frozen=True)
class Counted:
    """What an engine with selection counted: means over samples of experts per layer and step, and of votes kept;
    steps that it acted on, and steps that it should act on. None where nothing was counted."""

    active: float | None = None
    native: float | None = None
    mass: float | None = None
    pruned: int | None = None
    decoded: int | None = None

    @classmethod
    def of(cls, counts: Sequence[Mapping[str, Any]]) -> Counted:
        def mean(name: str) -> float | None:
            sampled = [(count["samples"], count.get(name)) for count in counts if count["samples"]]
            weighted = [(n, value) for n, value in sampled if value is not None]
            return sum(n * value for n, value in weighted) / sum(n for n, _ in weighted) if weighted else None

        def steps(name: str) -> int | None:
            return sum(count[name] for count in counts) if counts and all(name in count for count in counts) else None

        return cls(mean("active"), mean("native"), mean("mass"), steps("pruned"), steps("decoded"))

    def steps(self) -> Row:
        return {"steps_pruned": self.pruned, "steps_decoded": self.decoded}


@dataclass(frozen=True)
class Bytes:
    """Bytes that one more expert in every layer costs a step, and the card's copy bandwidth."""

    expert: float  # bytes of one expert, summed over all layers
    bandwidth: float | None  # bytes per second

    def floor_ms(self, active: float | None) -> float | None:
        return None if active is None or not self.bandwidth else 1000 * active * self.expert / self.bandwidth

    def achieved(self, law: Law | None) -> float | None:
        """GB/s at which one more expert is read, by the law's slope."""
        return None if law is None or law.b <= 0 else self.expert / law.b / 1e6


def law_of(points: Sequence[tuple[float, float]]) -> Law | None:
    """The law through points (active experts, ms); None where they are too close for a slope."""
    active = [experts for experts, _ in points]
    if len(set(active)) < 3 or max(active) - min(active) < 2:
        return None
    law = fit_law(active, [ms for _, ms in points])
    return law if law.b > 0 else None


def predicted(law: Law | None, native_ms: float, native: float | None, active: float | None) -> float | None:
    """The speedup over unmodified vLLM that the saved experts would bring if selection cost nothing."""
    if law is None or native is None or active is None:
        return None
    ms = native_ms - law.b * (native - active)
    return native_ms / ms if ms > 0 else None


def step_ms(sample: Sample) -> float:
    return float(1000 * sample["seconds"] / sample["steps"])


def otps(sample: Sample, batch: int) -> float:
    return float(sample["tokens"] / sample["seconds"] / batch)


def rows_of(
    setting: Row, pairs: Pairs, counted: Mapping[str, Counted], moved: Bytes, plain: Sequence[Row] = ()
) -> list[Row]:
    """Rows of one cell: native, the control, the policies. `setting`: columns that they share.

    plain: rows of the piece without drafts; a method without a law or expert counts of its own borrows theirs
    """
    batch = setting["batch"]
    natives = [native for runs in pairs.values() for native, _ in runs]
    native_ms = median(map(step_ms, natives))
    alike = [row for row in plain if all(row[name] == setting[name] for name in ("regime", "batch", "layers"))]
    natively_active = [counts.native for counts in counted.values() if counts.native is not None]
    experts = (
        sum(natively_active) / len(natively_active)
        if natively_active
        else next((row["active_native"] for row in alike), None)
    )

    ratios = {name: median_interval([step_ms(a) / step_ms(b) for a, b in runs]) for name, runs in pairs.items()}
    # The control keeps all experts.
    active = {name: experts if name == NOOP else counts.active for name, counts in counted.items()}
    # Times for the law are native's over the paired ratio, so that they do not drift with the machine.
    points = {name: (loaded, native_ms / ratios[name][0]) for name, loaded in active.items() if loaded is not None}
    borrowed = next((Law(row["a"], row["b"], 1.0) for row in alike if row["method"] == NATIVE and row["b"]), None)
    whole = law_of(list(points.values())) or borrowed

    first = median_interval([1.0])
    rows = [_row(setting, NATIVE, natives, first, Counted(experts, experts), whole, moved)]
    for name, runs in pairs.items():
        # A policy is predicted from the other policies only.
        law = whole if name == NOOP else law_of([p for n, p in points.items() if n != name]) or borrowed
        own_counts = Counted(active.get(name), experts)
        row = _row(setting, name, [sample for _, sample in runs], ratios[name], own_counts, law, moved)
        row["token_ratio"] = median(otps(b, batch) / otps(a, batch) for a, b in runs)
        if name not in (NOOP, UNUSED):
            row |= _judged(row, predicted(law, native_ms, experts, own_counts.active))
        rows.append(row)
    return rows


def cell_of_starts(record: Row) -> tuple[Any, ...]:
    """The cell of a row or a run, whichever start of the engines it is of."""
    prompt = int(record.get("prompt_tokens", PROMPT))
    return (*(record.get(name) for name in ("piece", "regime", "batch", "layers")), prompt)


def pooled(rows: Sequence[Row], runs: Sequence[Row]) -> list[Row]:
    """One row per cell and policy from the rows of several starts: ratios over all pairs, means of other columns, and
    `starts`, their number.

    runs: records of the same cells with every pair (paper_speed.decodes)
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((*cell_of_starts(row), row["policy"]), []).append(row)
    pooled_rows = []
    for (*cell, policy), starts in groups.items():
        weights = [row["pairs"] for row in starts]
        row = {name: value for name, value in starts[0].items() if name != "start"} | {"starts": len(starts)}
        for name in MEANS:
            values = [(n, start_row[name]) for n, start_row in zip(weights, starts, strict=True)]
            if any(value is None for _, value in values):
                row[name] = None
            else:
                row[name] = sum(n * value for n, value in values) / sum(weights)
        row |= {name: sum(start_row[name] for start_row in starts) for name in SUMS if row[name] is not None}
        decodes_of_cell = [run["decodes"] for run in runs if cell_of_starts(run) == tuple(cell)]
        pairs = [pair for decodes in decodes_of_cell for pair in decodes.get(policy, ())]
        if pairs:
            ratio = median_interval([native / second for native, _, second, _ in pairs])
            row |= dict(zip(("ratio", "ratio_low", "ratio_high"), ratio, strict=True))
        pooled_rows.append(row | (_judged(row, row["predicted"]) if "of_predicted" in row else {}))
    return pooled_rows


def with_stamps(pooled_rows: Sequence[Row], runs: Sequence[Row]) -> list[Row]:
    """Pooled rows with `stamps`: the runs of the file that measured their pairs, by the stamps of `runs`; 0 is the
    provenance."""
    numbers: dict[tuple[Any, ...], set[int]] = {}
    for run in runs:
        numbers.setdefault(cell_of_starts(run), set()).add(run.get(STAMP) or 0)
    return [row | {STAMPS: sorted(numbers.get(cell_of_starts(row), ()))} for row in pooled_rows]


MEANS = ("otps", "step_ms", "token_ratio", "active_native", "active", "predicted", "a", "b", "floor_ms", "law_gb_s")
SUMS = ("pairs", "short_steps", "steps_pruned", "steps_decoded")


def _row(
    setting: Row,
    name: str,
    samples: Sequence[Sample],
    ratio: tuple[float, float, float],
    counted: Counted,
    law: Law | None,
    moved: Bytes,
) -> Row:
    method = name if name in (NATIVE, NOOP, UNUSED) else "logit-sum" if name.startswith("logit-sum") else "xshare"
    row: Row = setting | {"method": method, "policy": name, "pairs": len(samples)}
    row |= {
        "otps": median(otps(sample, setting["batch"]) for sample in samples),
        "step_ms": median(map(step_ms, samples)),
    }
    row |= dict(zip(("ratio", "ratio_low", "ratio_high"), ratio, strict=True)) | {"token_ratio": 1.0}
    row |= {"active_native": counted.native, "active": counted.active, "predicted": None}
    row |= {"a": law.a if law else None, "b": law.b if law else None}
    row |= {"floor_ms": moved.floor_ms(counted.active), "law_gb_s": moved.achieved(law)}
    low, high = _claimed(setting, name)
    short = sum(sample.get("short", 0) for sample in samples)
    return row | {"paper_low": low, "paper_high": high, "short_steps": short}


def _claimed(setting: Row, name: str) -> tuple[float | None, float | None]:
    if name == LOGIT_SUM:
        gain = PULL_REQUEST.get(setting["batch"])
        return gain, gain
    if setting["piece"] == "budgets":  # these are points of the law, not the paper's policies
        return None, None
    gains = PAPER.get((setting["drafts"], setting["batch"]), {}).get(name.removesuffix(FULL))
    return (None, None) if gains is None else (1 + gains[0] / 100, 1 + gains[1] / 100)


def percent(ratio: float) -> float:
    """A gain with as many digits as the paper prints: what rounds to the paper's figure reaches it."""
    return round(100 * (ratio - 1), 1)


def _judged(row: Row, gain: float | None) -> Row:
    """The lower bound over the prediction, as a ratio and as a share of the gain; whether the paper's range is met."""
    verdict: Row = {"predicted": gain, "of_predicted": None, "of_gain": None, "paper_met": None}
    if gain is not None:
        verdict["of_predicted"] = row["ratio_low"] / gain
        verdict["of_gain"] = (
            (row["ratio_low"] - 1) / (gain - 1) if gain > 1.005 else None
        )  # a share of next to nothing says nothing
    if row["paper_high"] is not None and row["method"] == "xshare":
        ours, low, high = (percent(row[name]) for name in ("ratio", "paper_low", "paper_high"))
        demand = high if row["regime"] == "independent" or high > LARGE else low
        verdict["paper_met"] = ours > demand if row["regime"] == "independent" else ours >= demand
    return verdict


def row_text(row: Row) -> str:
    """A row as one line for the terminal."""
    size = f"batch {row['batch']:2}" + (f" of {row['prompt_tokens']}" if "prompt_tokens" in row else "")
    text = f"{row['piece']:9} {row['regime']:11} {size} {row['policy']:20} {row['step_ms']:7.3f} ms "
    mark = "" if row["method"] == NATIVE else interval_mark(row["pairs"])
    text += f"ratio {row['ratio']:.3f} [{row['ratio_low']:.3f}, {row['ratio_high']:.3f}{mark}]"
    if row["active"] is not None:
        native = row["active_native"]
        text += f" active {row['active']:.1f}" + (f" of {native:.1f}" if native is not None else "")
    if row["method"] == NATIVE and row["b"]:
        text += f" law {row['a']:.2f} + {row['b']:.4f} T ms"
        text += f" at {row['law_gb_s']:.0f} GB/s, floor {row['floor_ms']:.2f} ms" if row["floor_ms"] else ""
    if row["method"] in (NOOP, UNUSED) and row["batch"] >= 16:
        text += ": holds 0.99" if row["ratio"] >= 0.99 else ": BELOW 0.99"
    if row.get("steps_decoded"):
        text += f" selected in {row['steps_pruned']} of {row['steps_decoded']} steps"
        text += "" if row["steps_pruned"] == row["steps_decoded"] else ", NOT in all"
    if row.get("predicted"):
        text += f" predicted {row['predicted']:.3f}, lower bound {row['of_predicted']:.3f} of it"
        text += f" and {row['of_gain']:.0%} of its gain" if row["of_gain"] is not None else ""
    if row["paper_high"] is not None:
        low, high = row["paper_low"], row["paper_high"]
        met = {True: ": met", False: ": NOT met", None: ""}[row.get("paper_met")]
        text += f" paper {low:.3f} to {high:.3f}{met}" if low != high else f" pull request {low:.3f}"
    return text + (f" ({row['short_steps']} steps lacked a request)" if row["short_steps"] else "")


def totals(rows: Sequence[Row]) -> list[str]:
    """One line per demand: how many rows meet it. tools/docs/speed_tables.py shows the same by regime."""

    def line(what: str, held: Sequence[bool]) -> list[str]:
        return [f"{what}: {sum(held)} of {len(held)}"] if held else []

    rows = [row for row in rows if row["piece"] not in ("budgets", "contexts")]
    ours = [row for row in rows if row["method"] == "xshare" and row["predicted"]]
    ours = [row for row in ours if row["paper_high"] or row["policy"].removesuffix(FULL) in BUDGET]
    lines = line("lower bound at least 95 % of predicted, as a ratio", [row["of_predicted"] >= 0.95 for row in ours])
    shares = [row["of_gain"] >= 0.95 for row in ours if row["of_gain"] is not None]
    lines += line("lower bound at least 95 % of predicted, as a share of the gain", shares)
    controls = [row for row in rows if row["method"] == NOOP and row["batch"] >= 16]
    lines += line("control at least 0.99 at batch 16 and 32", [row["ratio"] >= 0.99 for row in controls])
    for regime in dict.fromkeys(row["regime"] for row in rows):
        met = [row["paper_met"] for row in rows if row["regime"] == regime and row.get("paper_met") is not None]
        lines += line(f"paper's range met, {regime}", met)
    return lines
