"""The conditions of a measurement. Rows may be compared only if these are the same."""

from __future__ import annotations

from typing import Any

from xshare.report.result_files import ResultFile
from xshare.results import Row

COLUMNS = (
    *("model", "shape", "layers", "engine", "task", "dataset", "batch", "rows", "concurrency", "rate"),
    *(
        "prompt_tokens",
        "draft",
        "drafts",
        "devices",
        "drafter",
        "moe_backend",
        "regime",
        "mix",
        "mixed",
        "skew",
        "correlation",
        "presence",
    ),
)
BARE = {"model", "shape", "engine", "task", "dataset", "regime"}  # shown without the column's name
# Defaults that are not shown.
USUAL = (
    {"draft": 0},
    {"drafts": 0},
    {"drafter": "none"},
    {"devices": 1},
    {"mix": "random"},
    {"mixed": True},
    {"presence": False},
)
Regime = dict[str, Any]


def regime_of(row: Row, file: ResultFile) -> Regime:
    """The conditions of one row, completed from the provenance of its file."""
    both = {name: row.get(name, file.provenance.get(name)) for name in COLUMNS}
    return {name: value for name, value in both.items() if isinstance(value, str | int | float)}


def by_regime(file: ResultFile, rows: list[Row], but: str | None = None) -> list[tuple[Regime, list[Row]]]:
    """Rows grouped by their conditions; `but` names one condition that may differ."""
    groups: dict[tuple[tuple[str, Any], ...], list[Row]] = {}
    for row in rows:
        key = tuple((name, value) for name, value in regime_of(row, file).items() if name != but)
        groups.setdefault(key, []).append(row)
    return [(dict(key), group) for key, group in groups.items()]


def regime_text(regime: Regime) -> str:
    """`gpt-oss-20b, batch 16, draft 3`"""
    if regime.get("drafts") == 0:  # without drafts the drafter does not matter
        regime = {name: value for name, value in regime.items() if name != "drafter"}
    return ", ".join(
        name
        if value is True
        else f"not {name}"
        if value is False
        else str(value)
        if name in BARE
        else f"{value} layers"
        if name == "layers"
        else f"{name} {value}"
        for name, value in regime.items()
        if {name: value} not in USUAL
    )


def file_regime_text(file: ResultFile) -> str:
    """The conditions of all rows of a file: `gpt-oss-120b, batch 4, 16, 32`."""
    values: dict[str, dict[Any, None]] = {}
    for row in file.rows:
        for name, value in regime_of(row, file).items():
            values.setdefault(name, {})[value] = None
    lists = {name: sorted(listed, key=lambda v: (isinstance(v, str), v)) for name, listed in values.items()}
    return regime_text({name: listed[0] if len(listed) == 1 else _listed(listed) for name, listed in lists.items()})


def _listed(values: list[Any]) -> str:
    return "or not" if set(values) == {True, False} else ", ".join(map(str, values))
