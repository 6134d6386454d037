"""BatchLayout: which request each row belongs to, and who votes. Placement: which device holds each expert."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from xshare.errors import LayoutError


class BatchLayout:
    """Rows -> requests. A row whose request is -1 (padding, prefill) does not vote.

    Any map is allowed: ragged drafts, interleaved rows, request ids with gaps. A tensor may carry leading batch
    dimensions, `[..., n]`, for many steps at once.
    """

    def __init__(self, requests: Sequence[int] | Tensor) -> None:
        given = _whole_numbers(requests, "requests")
        if given.ndim == 0:
            raise LayoutError("requests must hold one request id a row, not a single number")
        if given.device.type == "cpu" and given.numel() and int(given.min()) < -1:
            raise LayoutError(f"requests must be -1 (does not vote) or a request id from 0 up, not {int(given.min())}")
        self.requests = given  # [..., n]
        self.slots, self.num_slots = _compact(given)  # [..., n], values in [0, num_slots)

    @classmethod
    def one_per_row(cls, n: int, device: torch.device | str | None = None) -> Self:
        """Plain decoding: every row a request of its own, all voting."""
        return cls(torch.arange(n, device=device))

    @property
    def rows(self) -> int:
        return self.requests.shape[-1]

    @property
    def voting(self) -> Tensor:
        return self.requests >= 0  # [..., n]

    def to(self, device: torch.device) -> BatchLayout:
        moved = copy(self)
        moved.requests, moved.slots = self.requests.to(device), self.slots.to(device)
        return moved

    def __repr__(self) -> str:
        return f"BatchLayout(rows={self.rows}, device={self.requests.device})"


def _compact(requests: Tensor) -> tuple[Tensor, int]:
    """Request ids -> consecutive slots, by sorting: linear storage, no n x n table and no host synchronisation."""
    n = requests.shape[-1]
    ordered, order = requests.sort(dim=-1, stable=True)
    first = torch.zeros_like(ordered)
    first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    slots = torch.empty_like(requests).scatter_(-1, order, first.cumsum(-1))
    # On the CPU the true number of requests is free to read; elsewhere n is the bound that costs no synchronisation.
    return slots, (int(slots.max()) + 1 if requests.device.type == "cpu" and slots.numel() else n)


class Placement:
    """Experts -> devices, for expert parallelism. `devices[j]` is the device that holds expert j."""

    def __init__(self, devices: Sequence[int] | Tensor, num_devices: int | None = None) -> None:
        self.devices = _whole_numbers(devices, "placement")  # [..., N]
        if self.devices.ndim == 0 or self.devices.shape[-1] == 0:
            raise LayoutError("placement must name a device for every expert, and it names none")
        # Reading values is free on the CPU; elsewhere it would synchronise, so only a missing num_devices is read.
        on_cpu = self.devices.device.type == "cpu"
        if on_cpu and int(self.devices.min()) < 0:
            missing = int(self.devices.flatten().argmin()) % self.num_experts
            raise LayoutError(f"placement misses expert {missing}: every expert needs a device number from 0 up")
        highest = int(self.devices.max()) if on_cpu or num_devices is None else -1
        self.num_devices = highest + 1 if num_devices is None else num_devices
        if self.num_devices < 1 or highest >= self.num_devices:
            raise LayoutError(f"placement uses device {highest}, expected devices from 0 to {self.num_devices - 1}")

    @classmethod
    def of(cls, devices: Sequence[int] | Tensor, num_devices: int | None = None) -> Self:
        """Any map, one device number an expert."""
        return cls(devices, num_devices)

    @classmethod
    def contiguous(cls, num_experts: int, devices: int) -> Self:
        """Blocks of neighbours; with a remainder, the first N mod G devices hold one expert more."""
        _check_sizes(num_experts, devices)
        share, more = divmod(num_experts, devices)
        sizes = torch.tensor([share + (d < more) for d in range(devices)])
        return cls(torch.arange(devices).repeat_interleave(sizes), devices)

    @classmethod
    def round_robin(cls, num_experts: int, devices: int) -> Self:
        """Expert j on device j mod G."""
        _check_sizes(num_experts, devices)
        return cls(torch.arange(num_experts) % devices, devices)

    @property
    def num_experts(self) -> int:
        return self.devices.shape[-1]

    def to(self, device: torch.device) -> Placement:
        return Placement(self.devices.to(device), self.num_devices)

    def __repr__(self) -> str:
        return f"Placement(experts={self.num_experts}, devices={self.num_devices})"


def _check_sizes(num_experts: int, devices: int) -> None:
    if num_experts < 1 or devices < 1:
        raise LayoutError(f"placement needs at least one expert and one device, not {num_experts} and {devices}")


def _whole_numbers(values: Sequence[int] | Tensor, name: str) -> Tensor:
    try:
        tensor = values if isinstance(values, Tensor) else torch.tensor(list(values))
    except (TypeError, ValueError, RuntimeError):
        raise LayoutError(f"{name} must be a list or tensor of whole numbers, not {values!r}") from None
    if tensor.numel() == 0:
        return tensor.to(torch.int64)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise LayoutError(f"{name} must be whole numbers, not {str(tensor.dtype).removeprefix('torch.')}")
    return tensor.to(torch.int64)
