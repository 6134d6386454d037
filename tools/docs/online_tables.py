"""Tables of requests that come and go, for render.py: what is acted on, what is gained, and what a client feels."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from quality_tables import Row, Table
from spans import Span

Cell = dict[str, Row]


def cells_of(results: Row) -> list[Cell]:
    """The rows of each length and rate by their method, in the order of both."""
    cells: dict[tuple[int, float], Cell] = {}
    for row in results["rows"]:
        cells.setdefault((row["tokens"], row["rate"] or inf), {})[row["method"]] = row
    return [cells[key] for key in sorted(cells)]


def workload(cell: Cell) -> list[str]:
    row = cell["native"]
    return [str(row["tokens"]), "all at once" if row["rate"] is None else f"{row['rate']:g}"]


def gained(results: Row) -> Table:
    titles = ["tokens of an answer", "requests a second", "decoded together", "steps acted on"]
    titles += ["control, a request's speed (95 %)", "`balanced`, a request's speed (95 %)"]
    titles += ["`balanced`, tokens per second (95 %)"]
    cells = [
        [
            *workload(cell),
            f"{cell['native']['rows_per_step']:.1f}",
            f"{cell['xshare']['acted_all']:.0%}",
            Span.ratio(cell["noop"], digits=3),
            Span.ratio(cell["xshare"]),
            Span.ratio(cell["xshare"], "total_ratio"),
        ]
        for cell in cells_of(results)
    ]
    return titles, cells


def felt(results: Row) -> Table:
    """What a client sees: times of native routing and of balanced."""
    titles = ["tokens of an answer", "requests a second", "tokens per second", "between tokens, ms"]
    titles += ["between tokens, 99th percentile, ms", "to the first token, ms"]

    def both(cell: Cell, column: str, digits: int) -> str:
        return " / ".join(f"{cell[method][column]:.{digits}f}" for method in ("native", "xshare"))

    cells = [
        [
            *workload(cell),
            both(cell, "otps_total", 0),
            both(cell, "itl_ms_p50", 1),
            both(cell, "itl_ms_p99", 1),
            both(cell, "ttft_ms_p50", 0),
        ]
        for cell in cells_of(results)
    ]
    return titles, cells


def tables() -> dict[str, tuple[str, Callable[..., Table]]]:
    return {"online": ("online", gained), "online_felt": ("online", felt)}
