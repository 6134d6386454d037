"""When selection acts on a step, and the counts of steps that it acted on or left alone: for all engines."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from xshare.policy import MOST

Reason = Literal[
    "off",
    "prefill",
    "many_rows",
    "many_requests",
    "few_rows",
    "within_budget",
    "unshared",
    "protected",
    "changing",  # ranks have different policies while a change reaches them
    "mismatch",
]


class Gates(BaseModel):
    """When selection acts, beside decoding itself."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    # A single row loads its own experts in any case.
    min_rows: int = Field(2, ge=1, le=MOST, description="act on steps of at least so many rows")
    max_rows: int | None = Field(default=None, ge=1, le=MOST, description="act on steps of at most so many rows")
    max_requests: int | None = Field(
        default=None, ge=1, le=MOST, description="act on steps of at most so many requests"
    )
    bypass: bool = Field(
        default=True,
        description="leave steps alone on which nothing can be saved; false: act on them too, as a control must",
    )

    @model_validator(mode="after")
    def _some_rows(self) -> Self:
        if self.max_rows is not None and self.min_rows > self.max_rows:
            raise ValueError(f"min_rows ({self.min_rows}) must be at most max_rows ({self.max_rows})")
        return self

    def why_not(self, rows: int, within: int, requests: int = 0, unshared: int = 0) -> Reason | None:
        """Why a decode step of that many voting rows is left alone, or None. `within`: rows that natively load no more
        than the budget allows. `unshared`: rows up to which the engine loads experts once per row, shared or not."""
        if self.max_rows is not None and rows > self.max_rows:
            return "many_rows"
        if self.max_requests is not None and requests > self.max_requests:
            return "many_requests"
        if rows == 0 or (self.bypass and rows < self.min_rows):
            return "few_rows"  # least_rows has the same bounds
        if self.bypass and rows <= within:
            return "within_budget"
        if self.bypass and rows <= unshared:
            return "unshared"
        return None

    def least_rows(self, within: int, unshared: int = 0) -> int:
        """The fewest rows that `why_not` does not refuse."""
        return max(1, self.min_rows, within + 1, unshared + 1) if self.bypass else 1


class Tally:
    """Steps that were acted on, and steps that were left alone, by reason."""

    def __init__(self, log: logging.Logger) -> None:
        self.log = log
        self.clear()

    def clear(self) -> None:
        self.pruned, self.bypassed = 0, Counter[Reason]()

    def mismatch(self, rows: int, expected: int) -> None:
        """A layer got other rows than the step has, and routes natively rather than guess. Counted; logged once."""
        if not self.bypassed["mismatch"]:
            self.log.warning(
                "xshare: a layer got %d rows where the step has %d; such layers route natively", rows, expected
            )
        self.bypassed["mismatch"] += 1

    def snapshot(self) -> dict[str, Any]:
        return {"steps_pruned": self.pruned, "steps_bypassed": dict(self.bypassed)}
