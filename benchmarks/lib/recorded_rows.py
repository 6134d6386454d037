"""What vllm_check.py has the layers of an engine in this process keep of every step, inside captured graphs too."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lib.recorded_routing import RecordedRouting
from xshare.engines.serving.state import ROUTED


def record_rows() -> None:
    """Layers of this process keep what every row gets."""
    layer: Any = import_module("xshare.engines.vllm.layer")
    make_hook = layer.make_hook
    layer.make_hook = lambda mode, site, *args: RecordingHook(make_hook(mode, site, *args), site.top_k, args[-1])


def record_routing() -> None:
    """Layers of this process that route in one launch keep what each step's kernel has left."""
    layer: Any = import_module("xshare.engines.vllm.layer")
    make_hook = layer.make_hook

    def recording(mode: str, site: Any, selector: Any, device: Any) -> Any:
        if mode == ROUTED:
            RecordedRouting(selector)
        return make_hook(mode, site, selector, device)

    layer.make_hook = recording


def take_path_of_several(by_vllm: bool) -> None:
    """Engines of this process choose as data-parallel ranks do, and keep what every row gets. `by_vllm`: the sum goes
    through vLLM's own communicator, which it makes for several ranks only, or else through torch's."""
    ranks: Any = import_module("xshare.engines.vllm.ranks")
    ranks.EVEN_ALONE = True
    record_rows()
    if by_vllm:
        ranks.nccl_of = lambda group: nccl_of_one(group.device)


def nccl_of_one(device: Any) -> Any:
    """vLLM's communicator with a group of one rank."""
    import torch
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
    from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary

    communicator = PyNcclCommunicator.__new__(PyNcclCommunicator)
    communicator.nccl, communicator.rank, communicator.world_size, communicator.device = NCCLLibrary(), 0, 1, device
    communicator.available, communicator.disabled = True, False
    with torch.cuda.device(device):
        communicator.comm = communicator.nccl.ncclCommInitRank(1, communicator.nccl.ncclGetUniqueId(), 0)
    return communicator


class RecordingHook:
    """A hook that also copies each row's experts and weights into buffers of its own, inside captured graphs too."""

    def __init__(self, hook: Any, top_k: int, device: Any) -> None:
        import torch

        self.hook, self.mode = hook, hook.mode
        self.ids = torch.zeros(64, top_k, dtype=torch.int64, device=device)
        self.weights = torch.zeros(64, top_k, device=device)

    def route(self, native: Any, logits: Any) -> Any:
        weights, ids = self.hook.route(native, logits)
        if len(ids) <= len(self.ids):
            self.ids[: len(ids)].copy_(ids)
            self.weights[: len(ids)].copy_(weights)
        return weights, ids

    def compute(self, native: Any, logits: Any) -> Any:
        return self.hook.compute(native, logits)  # its experts do their own routing

    def routed_as(self, logits: Any, routing: Any) -> bool:
        """Whether the rows have the reference's experts and weights; of experts with equal logits, either is right."""
        import torch

        n = len(logits)
        ids, weights = self.ids[:n].cpu(), self.weights[:n].cpu()
        chosen = [logits.gather(1, experts).sort(-1) for experts in (ids, routing.ids)]
        ours, want = (
            row_weights.gather(1, order.indices)
            for row_weights, order in zip((weights, routing.weights), chosen, strict=True)
        )
        inside = bool(routing.selected[ids].all())
        return inside and torch.equal(chosen[0].values, chosen[1].values) and torch.allclose(ours, want.float(), 1e-3)
