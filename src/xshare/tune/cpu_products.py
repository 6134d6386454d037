"""Matrix products of few rows on a CPU: is there a cliff between two numbers of rows?

An expert's share of a decode step is one to a dozen rows. Some libraries have a cliff there: on an Arm machine,
oneDNN took ten times as long for 9 rows as for 8, and switching it off halved a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

HIDDEN, WIDTH, WEIGHTS = 1024, 2048, 8  # 8 MB a matrix in float32, 64 MB together: more than most caches hold
BELOW, ABOVE = 8, 9  # rows
CLIFF = 2.0  # how many times as long one more row may take


@contextmanager
def onednn(on: bool) -> Iterator[None]:
    """Switch oneDNN on or off. torch has such a context too, but it also sets options that this build warns about."""
    before = torch.backends.mkldnn.enabled
    setattr(torch.backends.mkldnn, "enabled", on)  # noqa: B010  its type is a descriptor's
    try:
        yield
    finally:
        setattr(torch.backends.mkldnn, "enabled", before)  # noqa: B010


def product_ms(rows: int, with_onednn: bool, repeats: int = 5) -> float:
    """The minimum over the repeats: the time on an otherwise idle machine."""
    x, weights = torch.ones(rows, HIDDEN), [torch.ones(WIDTH, HIDDEN) for _ in range(WEIGHTS)]
    times = []
    with onednn(with_onednn):
        for _ in range(repeats + 1):
            began = time.perf_counter()
            for weight in weights:
                torch.nn.functional.linear(x, weight)
            times.append((time.perf_counter() - began) / WEIGHTS * 1000)
    return min(times[1:])


def cliff_text(below: float, above: float, without: float) -> str | None:
    """A sentence if there is a cliff, otherwise None. Times in ms: BELOW and ABOVE rows with oneDNN, ABOVE without."""
    if above < CLIFF * below or above < CLIFF * without:
        return None
    return (
        f"a matrix product of {ABOVE} rows takes {above / below:.1f} times as long as one of {BELOW} here with oneDNN, "
        f"and {without / below:.1f} times without: torch.backends.mkldnn.enabled = False makes large batches faster"
    )


def find_cliff() -> str | None:
    return cliff_text(product_ms(BELOW, True), product_ms(ABOVE, True), product_ms(ABOVE, False))
