"""What vLLM leaves out of expert load balancing (EPLB) on a CPU, where it refuses it: experts with replicas, which it
moves from rank to rank while it serves.

Importing this puts it in. What is counted, which experts are moved and how, and the maps of where they are, all of that
is vLLM's own.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
import vllm.config.parallel
from vllm.distributed.eplb import eplb_communicator, eplb_state
from vllm.model_executor.layers.fused_moe.router import base_router
from vllm.v1.worker.cpu_model_runner import CPUModelRunner


class Instead:
    """A module or an object with some of its names replaced, for whoever looks them up there."""

    def __init__(self, native, **names):
        self.native = native
        vars(self).update(names)

    def __getattr__(self, name):
        return getattr(self.native, name)


class Event:
    """Of a stream, which a CPU does not have."""

    def __init__(self, **options):
        pass

    def record(self, stream=None):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return 0.0


def map_and_record(
    topk_ids,
    expert_load_view,
    logical_to_physical_map,
    logical_replica_count,
    record_enabled,
    num_unpadded_tokens=None,
):
    """A row's experts -> the replicas that compute them, in turn, and how often each is asked: vLLM has a kernel."""
    experts = topk_ids.flatten().long()
    turns = torch.arange(len(experts)) % logical_replica_count[experts]
    replicas = logical_to_physical_map[experts, turns]
    if record_enabled:
        rows = len(topk_ids) if num_unpadded_tokens is None else int(num_unpadded_tokens)
        recorded = replicas[: rows * topk_ids.shape[1]].long()
        expert_load_view.index_add_(0, recorded, torch.ones_like(recorded, dtype=expert_load_view.dtype))
    return replicas.reshape(topk_ids.shape).to(topk_ids.dtype)


def load_model(native):
    """With the state that the runner for GPUs makes there."""

    def load(runner, *args, **kwargs):
        native(runner, *args, **kwargs)
        runner._moe_model = runner.model
        runner.eplb_state = eplb_state.EplbState(runner.parallel_config, runner.device)
        runner.eplb_state.add_model(runner.model, runner.model_config)

    return load


parallel_config = vllm.config.parallel
parallel_config.current_platform = Instead(parallel_config.current_platform, is_cuda_alike=lambda: True)
eplb_state.torch = Instead(torch, Event=Event)
stream = SimpleNamespace(synchronize=lambda: None)
eplb_communicator.torch = Instead(torch, accelerator=SimpleNamespace(current_stream=lambda: stream))
base_router.eplb_map_to_physical_and_record = map_and_record
CPUModelRunner.load_model = load_model(CPUModelRunner.load_model)
