"""Samples -> one row a policy: medians, and paired ratios against native with their intervals."""

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
# What each ratio is of; of a time it is native's over the policy's, so that more is always faster.
RATIOS = {"ratio": "otps", "total_ratio": "otps_total", "step_ratio": "step_ms"}
FORMS = ("cost", "equals", "protected")  # columns that rows of one policy may differ by, where they have them: see Way

NONE = (None,) * len(FORMS)


def rows_of(samples: Sequence[Row], control: str, setting: Row) -> list[Row]:
    """`control` is the name of the no-op control, `setting` columns that all rows share."""
    by_form: dict[tuple[Any, ...], list[Row]] = {}
    for sample in samples:
        by_form.setdefault((sample["policy"], *map(sample.get, FORMS)), []).append(sample)
    native = by_repeat(by_form.get((NATIVE, *NONE), []))
    rows = []
    for (name, *forms), mine in by_form.items():
        cost, _, protected = forms
        method = "noop" if name == control and not any(forms) else Policy.parse(name).method
        form = {column: mine[0][column] for column in FORMS if column in mine[0]}
        row: Row = {"policy": name, **form, "method": method, **setting, "repeats": len(mine)}
        row |= {column: _median(mine, column) for column in (*RATES, *COUNTS)}
        row["left_alone"] = next((each["left_alone"] for each in mine if each.get("left_alone")), None)
        for ratio, column in RATIOS.items():
            row |= _against(native, mine, ratio, column)
        if cost:
            plain = next((form for form in by_form if form[2] == name), None)
            row |= _against(by_repeat(by_form.get(plain, []) if plain else []), mine, "equal_ratio", "otps")
        if protected is not None:
            row["protected_requests"] = len(protected_requests(protected, setting["requests"]))
            row["protected_identical"] = _median(mine, "protected_identical")
            row |= _against(by_repeat(by_form.get((name, *NONE), [])), mine, "nobody_ratio", "otps")
        rows.append(row)
    _fill_native(rows, control)
    return rows


def by_repeat(samples: Sequence[Row]) -> dict[int, Row]:
    return {sample["repeat"]: sample for sample in samples}


def _against(others: Mapping[int, Row], mine: Sequence[Row], ratio: str, column: str) -> Row:
    """A ratio's columns, each sample held against the other of its repeat."""
    pairs = [_ratio(column, each, others.get(each["repeat"], {})) for each in mine]
    known = [pair for pair in pairs if pair is not None]
    found = median_interval(known) if known else (None, None, None)
    return dict(zip((ratio, f"{ratio}_low", f"{ratio}_high"), found, strict=True))


def _median(samples: Sequence[Row], column: str) -> Any:
    known = [sample[column] for sample in samples if sample.get(column) is not None]  # files of before lack some
    return median(known) if known else None


def _ratio(column: str, mine: Row, native: Row) -> float | None:
    if mine.get(column) is None or native.get(column) is None:
        return None
    return float(native[column] / mine[column] if column == "step_ms" else mine[column] / native[column])


def _fill_native(rows: list[Row], control: str) -> None:
    """Switched off, an engine counts no experts; the control, which keeps all, has counted them."""
    named = {row["policy"]: row for row in rows if not any(column in row for column in FORMS)}
    if NATIVE in named and control in named and named[NATIVE]["active"] is None:
        found = named[control]["active_native"]
        named[NATIVE] |= {"active": found, "active_native": found, "mass": None if found is None else 1.0}
