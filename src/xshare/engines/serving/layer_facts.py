"""What a worker must know of a layer, also of one that another worker has: of another pipeline stage.

A policy is for the model: its layer budgets, a profile, the gates and a staircase are about all layers. So every stage
tells the others what it has found, once, when the model is loaded, and each comes to the same conclusions.
"""

from __future__ import annotations

from dataclasses import dataclass

from xshare.engines.serving.site import Site


@dataclass(frozen=True)
class Facts:
    """A layer that is served, of this stage or another."""

    number: int
    name: str
    experts: int
    top_k: int
    backend: str
    placed: bool  # whether its experts are spread over devices
    in_host_memory: bool
    rows_unshared: int  # rows up to which shared experts save nothing

    @classmethod
    def of(cls, site: Site) -> Facts:
        return cls(
            number=site.number,
            name=site.name,
            experts=site.num_experts,
            top_k=site.top_k,
            backend=site.backend,
            placed=site.placement is not None,
            in_host_memory=site.in_host_memory,
            rows_unshared=site.rows_unshared,
        )
