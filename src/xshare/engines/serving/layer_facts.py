"""What a worker must know of every layer, also of those in other pipeline stages.

Layer budgets, a profile, the gates and a staircase are about the whole model. So when the model is loaded, every stage
sends the others the facts about its layers, and all stages reach the same conclusions.
"""

from __future__ import annotations

from dataclasses import dataclass

from xshare.engines.serving.site import Site


@dataclass(frozen=True)
class Facts:
    """One served layer, of this stage or another."""

    number: int
    name: str
    experts: int
    top_k: int
    backend: str
    expert_bytes: int | None  # of one expert on this rank; None where unknown
    placed: bool  # whether its experts are spread over devices
    in_host_memory: bool
    rows_unshared: int  # rows up to which sharing experts saves nothing

    @classmethod
    def of(cls, site: Site) -> Facts:
        return cls(
            number=site.number,
            name=site.name,
            experts=site.num_experts,
            top_k=site.top_k,
            backend=site.backend,
            expert_bytes=site.expert_bytes,
            placed=site.placement is not None,
            in_host_memory=site.in_host_memory,
            rows_unshared=site.rows_unshared,
        )
