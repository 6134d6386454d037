"""The conditions of a measurement: rows may be compared where these are the same."""

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
BARE = {"model", "shape", "engine", "task", "dataset", "regime"}  # values that say by themselves what they are
# Not worth a word.
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
    """The conditions of one row; what it does not say itself, its file may say for all."""
    both = {name: row.get(name, file.provenance.get(name)) for name in COLUMNS}
    return {name: value for name, value in both.items() if isinstance(value, str | int | float)}


def by_regime(file: ResultFile, rows: list[Row], but: str | None = None) -> list[tuple[Regime, list[Row]]]:
    """Rows of the same conditions together; `but` is one that may differ."""
    groups: dict[tuple[tuple[str, Any], ...], list[Row]] = {}
    for row in rows:
        key = tuple((name, value) for name, value in regime_of(row, file).items() if name != but)
        groups.setdefault(key, []).append(row)
    return [(dict(key), group) for key, group in groups.items()]


def regime_text(regime: Regime) -> str:
    """`gpt-oss-20b, batch 16, draft 3`"""
    if regime.get("drafts") == 0:  # then the drafter has nothing to do
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
    """The conditions of all rows of a file together: `gpt-oss-120b, batch 4, 16, 32`."""
    values: dict[str, dict[Any, None]] = {}
    for row in file.rows:
        for name, value in regime_of(row, file).items():
            values.setdefault(name, {})[value] = None
    lists = {name: sorted(found, key=lambda v: (isinstance(v, str), v)) for name, found in values.items()}
    return regime_text({name: found[0] if len(found) == 1 else _listed(found) for name, found in lists.items()})


def _listed(found: list[Any]) -> str:
    return "or not" if set(found) == {True, False} else ", ".join(map(str, found))
