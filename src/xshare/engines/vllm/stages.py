"""The MoE layers of the whole model, whichever pipeline stage has them: what a stage must know of the others.

A policy is for the model: its layer budgets, a profile, the gates and a staircase are about all layers. So every stage
tells the others what it has found, once, when the model is loaded, and each comes to the same conclusions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xshare.engines.vllm.site import Site


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
    unshared: int  # rows up to which shared experts save nothing

    @classmethod
    def of(cls, site: Site) -> Facts:
        return cls(
            number=site.number,
            name=site.name,
            experts=site.num_experts,
            top_k=site.router.top_k,
            backend=site.backend,
            placed=site.placement is not None,
            in_host_memory=site.in_host_memory,
            unshared=site.unshared,
        )


def told_by_all(mine: Sequence[Any]) -> list[Any]:
    """What every stage of this worker's pipeline says, in their order. All of them have to come here."""
    from vllm.distributed import get_pp_group

    stages = get_pp_group()
    if stages.world_size == 1:
        return list(mine)
    import torch.distributed

    found: list[Any] = [None] * stages.world_size
    torch.distributed.all_gather_object(found, list(mine), group=stages.cpu_group)
    return [each for said in found for each in said]


def stage_number() -> int:
    from vllm.distributed import get_pp_group

    return int(get_pp_group().rank_in_group)
