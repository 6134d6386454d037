"""One MoE layer of an engine, as far as selection knows it: its rule, its experts, where they are."""

from __future__ import annotations

from typing import Protocol

from xshare.batch import Placement
from xshare.router import RouterSpec


class Site(Protocol):
    number: int  # the model's own
    name: str
    router: RouterSpec
    num_experts: int
    placement: Placement | None

    @property
    def top_k(self) -> int:
        """Experts of a row."""

    @property
    def expert_bytes(self) -> int | None:
        """Of one expert on this rank, or None where that is not known."""

    @property
    def backend(self) -> str:
        """The kernel that computes the experts."""

    @property
    def in_host_memory(self) -> bool:
        """Whether a GPU reads the experts from host memory."""

    @property
    def rows_unshared(self) -> int:
        """Rows up to which the engine loads each row's experts for it alone."""
