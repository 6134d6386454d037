"""Samples -> one row per policy: medians, and paired ratios against native with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from xshare.bench.interleaved import NATIVE
from xshare.policy import Policy
from xshare.protected_share import protected_requests
from xshare.results import Row
from xshare.statistics import median_interval

RATES = ("otps", "otps_total", "ttft_ms_p50", "ttft_ms_p99", "itl_ms_p50", "itl_ms_p99", "step_ms", "rows_per_step")
COUNTS = ("accepted_length", "active", "active_native", "mass", "mass_shared", "acted", "acted_all", "identical")
# Ratio -> the column it compares. A time is inverted (native's over the policy's), so that more is always faster.
RATIOS = {"ratio": "otps", "total_ratio": "otps_total", "step_ratio": "step_ms"}
FORMS = ("cost", "equals", "protected")  # optional columns that tell variants of one policy apart: see Variant

PLAIN = (None,) * len(FORMS)


def summary_rows(samples: Sequence[Row], control: str, setting: Row) -> list[Row]:
    """One row per variant. `control` is the name of the no-op control, `setting` the columns that all rows share.
    `compiled`, if it is there: how many of its runs waited for a compiler."""
    by_form: dict[tuple[Any, ...], list[Row]] = {}
    for sample in samples:
        by_form.setdefault((sample["policy"], *map(sample.get, FORMS)), []).append(sample)
    native = by_repeat(by_form.get((NATIVE, *PLAIN), []))
    rows = []
    for (name, *forms), variant_samples in by_form.items():
        cost, _, protected = forms
        method = "noop" if name == control and not any(forms) else Policy.parse(name).method
        form = {column: variant_samples[0][column] for column in FORMS if column in variant_samples[0]}
        row: Row = {"policy": name, **form, "method": method, **setting, "repeats": len(variant_samples)}
        row |= {column: _median(variant_samples, column) for column in (*RATES, *COUNTS)}
        row["left_alone"] = next((sample["left_alone"] for sample in variant_samples if sample.get("left_alone")), None)
        if waited := sum("compiled" in sample for sample in variant_samples):
            row["compiled"] = waited
        for ratio, column in RATIOS.items():
            row |= _against(native, variant_samples, ratio, column)
        if cost:
            plain = next((form for form in by_form if form[2] == name), None)
            row |= _against(by_repeat(by_form.get(plain, []) if plain else []), variant_samples, "equal_ratio", "otps")
        if protected is not None:
            row["protected_requests"] = len(protected_requests(protected, setting["requests"]))
            row["protected_identical"] = _median(variant_samples, "protected_identical")
            row |= _against(by_repeat(by_form.get((name, *PLAIN), [])), variant_samples, "nobody_ratio", "otps")
        rows.append(row)
    _fill_native(rows, control)
    return rows


def by_repeat(samples: Sequence[Row]) -> dict[int, Row]:
    return {sample["repeat"]: sample for sample in samples}


def _against(baseline: Mapping[int, Row], samples: Sequence[Row], ratio: str, column: str) -> Row:
    """The columns of a ratio, computed between samples of the same repeat."""
    ratios = [_ratio(column, sample, baseline.get(sample["repeat"], {})) for sample in samples]
    known = [value for value in ratios if value is not None]
    interval = median_interval(known) if known else (None, None, None)
    return dict(zip((ratio, f"{ratio}_low", f"{ratio}_high"), interval, strict=True))


def _median(samples: Sequence[Row], column: str) -> Any:
    known = [sample[column] for sample in samples if sample.get(column) is not None]  # older files lack some columns
    return median(known) if known else None


def _ratio(column: str, sample: Row, baseline: Row) -> float | None:
    if sample.get(column) is None or baseline.get(column) is None:
        return None
    return float(baseline[column] / sample[column] if column == "step_ms" else sample[column] / baseline[column])


def _fill_native(rows: list[Row], control: str) -> None:
    """An engine with selection off counts no experts; the control keeps them all and has counted them."""
    plain_rows = {row["policy"]: row for row in rows if not any(column in row for column in FORMS)}
    if NATIVE in plain_rows and control in plain_rows and plain_rows[NATIVE]["active"] is None:
        experts = plain_rows[control]["active_native"]
        plain_rows[NATIVE] |= {"active": experts, "active_native": experts, "mass": None if experts is None else 1.0}
