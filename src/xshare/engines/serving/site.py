"""One MoE layer of an engine, as selection sees it: its routing rule, its experts and where they are."""

from __future__ import annotations

from typing import Protocol

from xshare.batch import Placement
from xshare.router import RouterSpec


class Site(Protocol):
    number: int  # in the model
    name: str
    router: RouterSpec
    num_experts: int
    placement: Placement | None

    @property
    def top_k(self) -> int:
        """Experts per row."""

    @property
    def expert_bytes(self) -> int | None:
        """Bytes of one expert on this rank; None where unknown."""

    @property
    def backend(self) -> str:
        """The kernel that computes the experts."""

    @property
    def in_host_memory(self) -> bool:
        """Whether a GPU reads the experts from host memory."""

    @property
    def rows_unshared(self) -> int:
        """Rows up to which the engine loads experts once per row, even those that rows share."""
