"""vLLM's pipeline stages: how they exchange facts (serving/layer_facts.py), and the number of this one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def gather_stages(items: Sequence[Any]) -> list[Any]:
    """The items of all stages of this worker's pipeline, in the stages' order. Every stage must call this."""
    from vllm.distributed import get_pp_group

    stages = get_pp_group()
    if stages.world_size == 1:
        return list(items)
    import torch.distributed

    by_stage: list[Any] = [None] * stages.world_size
    torch.distributed.all_gather_object(by_stage, list(items), group=stages.cpu_group)
    return [item for stage in by_stage for item in stage]


def stage_number() -> int:
    from vllm.distributed import get_pp_group

    return int(get_pp_group().rank_in_group)
