"""vLLM's pipeline stages: what each says to the others, and which one this is (serving/layer_facts.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
