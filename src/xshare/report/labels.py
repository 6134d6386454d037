"""Labels and number formats of the page: columns, shares, policies and intervals."""

from __future__ import annotations

from typing import Any

from xshare.policy import RECOMMENDED, Policy
from xshare.results import Row
from xshare.results.columns import interval_of, number
from xshare.statistics import FEWEST, interval_names

BARS = f"Bars are 95 % intervals; of a median of fewer than {FEWEST} runs, its range."
Value = tuple[float, float, float]  # value and the ends of its interval, which may all be equal
# Shares of a whole, written in percent.
SHARES = {
    *("accuracy", "accuracy_least", "accuracy_most", "agreement", "mass", "top1_kept", "diverged", "cut", "unsettled"),
    *("changed", "changed_answer", "flipped", "copy_share", "identical", "acted", "dead", "entropy"),
}
POINTS = {"change"}  # differences of shares, written in points
NAMES = {
    "active": "experts loaded",
    "active_native": "experts loaded natively",
    "peak": "experts loaded on the fullest device",
    "max_load": "experts on the fullest device",
    "mass": "routing weight kept",
    "top1_kept": "best expert kept",
    "change": "accuracy against native, points",
    "p": "p value of the change",
    "lost": "answers lost",
    "won": "answers won",
    "agreement": "tokens as native's",
    "diverged": "answers that differ",
    "diverged_at": "differ from token",
    "cut": "answers cut off",
    "kl": "KL, nats per token",
    "otps": "tokens/s per request",
    "otps_total": "tokens/s in all",
    "tokens_per_s": "tokens/s",
    "ratio": "speed against native",
    "total_ratio": "speed in all against native",
    "step_ratio": "step against native",
    "token_ratio": "tokens/s against native",
    "ttft_ms_p50": "TTFT, median, ms",
    "ttft_ms_p99": "TTFT, 99 %, ms",
    "itl_ms_p50": "between tokens, median, ms",
    "itl_ms_p99": "between tokens, 99 %, ms",
    "accepted": "tokens accepted per step",
    "acted": "steps pruned",
    "cost": "weighed by cost",
    "equals": "as many experts as, by cost",
    "equal_ratio": "speed against as many experts",
    "protected": "requests protected",
    "nobody_ratio": "speed against nobody protected",
    "mass_shared": "weight kept by the others",
    "closed_form": "experts if independent",
    "n": "rows",
    "k": "top-k",
    "impl": "implementation",
}
UNITS = {"ms": ", ms", "us": ", µs", "gbps": "GB/s", "kl": "KL"}
PRESETS = {str(Policy.parse(name)): name for name in RECOMMENDED}  # policy text -> preset name


def column_title(column: str) -> str:
    """The title of a column: `step_ms` is `step, ms`."""
    if column in NAMES:
        return NAMES[column]
    return " ".join(UNITS.get(word, word) for word in column.split("_")).replace(" ,", ",").strip(", ") or column


BY_COST = " by cost"  # suffix of a policy whose sets were weighed by cost


def policy_label(policy: object) -> str:
    """The text of a policy; a recommended preset with its name."""
    text = str(policy).removesuffix(BY_COST)
    preset = PRESETS.get(text)
    return str(policy) if preset is None else str(policy).replace(text, f"{preset} ({RECOMMENDED[preset]})")


def with_variant_name(row: Row) -> Row:
    """The row with its variant in the policy name, since a file may hold several variants of one policy."""
    if number(row.get("protected")):
        return row | {"policy": f"{row['policy']}, {row['protected']:.0%} protected"}
    if row.get("cost") is True:
        return row | {"policy": f"{row['policy']}{BY_COST}"}
    return row if row.get("equals") is None else row | {"policy": f"{row['policy']} (as many as {row['equals']})"}


def printable(text: object, most: int = 40) -> str:
    """A name from a file, made safe for a plot: one line, not too long, no control characters."""
    cleaned = "".join(char if char.isprintable() else "�" for char in str(text))
    return cleaned if len(cleaned) <= most else cleaned[: most - 1] + "…"


def clipped_interval(row: Row, column: str) -> tuple[float, float] | None:
    """The interval of a column, clipped to what is possible: older files have changes below -100 %."""
    interval = interval_of(row, column)
    if interval is None or column not in SHARES | POINTS:
        return interval
    least = 0.0 if column in SHARES else -1.0
    low, high = (max(least, min(1.0, end)) for end in interval)
    return low, high


def value(row: Row, column: str) -> Value | None:
    """A number with its interval, widened if needed so that it contains the number."""
    middle = number(row.get(column))
    if middle is None:
        return None
    low, high = clipped_interval(row, column) or (middle, middle)
    return middle, min(low, middle), max(high, middle)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def signed_percent(share: float) -> str:
    """`+12.5 %`"""
    return f"{round(100 * share, 1) + 0:+.1f} %"  # + 0: not -0


def signed_points(change: float) -> str:
    return f"{round(change, 1) + 0:+.1f}"


def interval_text(measured: Value, to_text: Any, count: int | None = None) -> str:
    """The interval of a value in words, or that there is none. `count`: the runs behind a median."""
    if measured[1] == measured[2]:
        return "no interval"
    kind, _ = interval_names([count])
    return f"{kind}: {to_text(measured[1])} to {to_text(measured[2])}"
