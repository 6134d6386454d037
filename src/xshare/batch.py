"""BatchLayout: which request each row belongs to, and who votes. Placement: which device holds each expert."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xshare.errors import LayoutError


class BatchLayout:
    """Rows -> requests. A row whose request is -1 (padding, prefill) does not vote.

    Any map is allowed: ragged drafts, interleaved rows, request ids with gaps. A tensor may carry leading batch
    dimensions, `[..., n]`, for many steps at once.
    """

    def __init__(self, requests: Sequence[int] | Tensor, protected: Sequence[int] | Tensor | None = None) -> None:
        """`protected`: rows that keep their native experts whatever the others do, as row numbers or bool [..., n]."""
        given = _whole_numbers(requests, "requests")
        if given.ndim == 0:
            raise LayoutError("requests must hold one request id a row, not a single number")
        if given.device.type == "cpu" and given.numel() and int(given.min()) < -1:
            raise LayoutError(f"requests must be -1 (does not vote) or a request id from 0 up, not {int(given.min())}")
        self.requests = given  # [..., n]
        self.protected = None if protected is None else self._protected(protected)  # bool [..., n]

    def _protected(self, given: Sequence[int] | Tensor) -> Tensor:
        marks = given if isinstance(given, Tensor) else torch.tensor(given) if _all_bools(given) else None
        if marks is not None and marks.dtype == torch.bool:
            if marks.ndim == 0 or marks.shape[-1] != self.rows:
                got = list(marks.shape)
                raise LayoutError(f"protected must be row numbers, or True or False for {self.rows} rows, not {got}")
            found = marks.to(self.requests.device)
        else:
            numbers = _whole_numbers(given, "protected").flatten()
            on_cpu = numbers.device.type == "cpu"
            if on_cpu and numbers.numel() and (int(numbers.min()) < 0 or int(numbers.max()) >= self.rows):
                wrong = next(each for each in numbers.tolist() if not 0 <= each < self.rows)
                raise LayoutError(f"protected names row {wrong}, and the rows are 0 to {self.rows - 1}")
            found = torch.zeros(self.rows, dtype=torch.bool, device=self.requests.device)
            found[numbers.to(found.device)] = True
        # Reading values is free on the CPU alone.
        if found.device.type == "cpu" and bool((found & ~self.voting).any()):
            row = int((found & ~self.voting).nonzero()[0, -1])
            raise LayoutError(f"protected names row {row}, which does not vote: its request is -1")
        return found

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

    @cached_property
    def array(self) -> NDArray[Any]:
        """The requests as compiled code reads them, int64 [steps, n]: made once for all layers of a pass. On a CPU."""
        return np.ascontiguousarray(self.requests.reshape(-1, self.rows).numpy())

    @cached_property
    def slots(self) -> Tensor:
        """Request ids as consecutive numbers, [..., n]: by sorting, without an n x n table or a synchronisation."""
        ordered, order = self.requests.sort(dim=-1, stable=True)
        first = torch.zeros_like(ordered)
        first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
        return torch.empty_like(ordered).scatter_(-1, order, first.cumsum(-1))

    @cached_property
    def num_slots(self) -> int:
        """A bound on `slots`: the true number where reading it is free, on the CPU; n where it would synchronise."""
        return int(self.slots.max()) + 1 if self.requests.device.type == "cpu" and self.requests.numel() else self.rows

    @cached_property
    def starts(self) -> list[int] | None:
        """Where each request's rows begin, and where the last one's end, as an engine's query_start_loc.

        None where voting rows do not come first, where a request's rows are not neighbours, or where looking would
        synchronise.
        """
        if self.requests.device.type != "cpu" or self.requests.ndim != 1:
            return None
        ids: list[int] = self.requests.tolist()
        voting = [request for request in ids if request >= 0]
        begins = [row for row, request in enumerate(voting) if row == 0 or request != voting[row - 1]]
        tidy = ids[: len(voting)] == voting and len(set(voting)) == len(begins)
        return [*begins, len(voting)] if tidy else None

    def to(self, device: torch.device) -> BatchLayout:
        """The same on another device. A layout for a GPU is best made there: this copies, and a copy synchronises."""
        if self.requests.device == device:
            return self
        return BatchLayout(self.requests.to(device), None if self.protected is None else self.protected.to(device))

    def __repr__(self) -> str:
        return f"BatchLayout(rows={self.rows}, device={self.requests.device})"


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
        self.num_devices = highest + 1 if num_devices is None else _count(num_devices, "num_devices")
        if self.num_devices < 1 or highest >= self.num_devices:
            raise LayoutError(f"placement uses device {highest}, expected devices from 0 to {self.num_devices - 1}")

    @classmethod
    def of(cls, devices: Sequence[int] | Tensor, num_devices: int | None = None) -> Self:
        """Any map, one device number an expert."""
        return cls(devices, num_devices)

    @classmethod
    def contiguous(cls, num_experts: int, devices: int) -> Self:
        """Blocks of neighbours; with a remainder, the first N mod G devices hold one expert more."""
        share, more = divmod(_count(num_experts, "num_experts"), _count(devices, "devices"))
        sizes = torch.tensor([share + (d < more) for d in range(devices)])
        return cls(torch.arange(devices).repeat_interleave(sizes), devices)

    @classmethod
    def round_robin(cls, num_experts: int, devices: int) -> Self:
        """Expert j on device j mod G."""
        return cls(torch.arange(_count(num_experts, "num_experts")) % _count(devices, "devices"), devices)

    @property
    def num_experts(self) -> int:
        return self.devices.shape[-1]

    def to(self, device: torch.device) -> Placement:
        return self if self.devices.device == device else Placement(self.devices.to(device), self.num_devices)

    def __repr__(self) -> str:
        return f"Placement(experts={self.num_experts}, devices={self.num_devices})"


def _all_bools(values: Sequence[int] | Tensor) -> bool:
    return isinstance(values, Sequence) and len(values) > 0 and all(isinstance(each, bool) for each in values)


def _count(value: int, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise LayoutError(f"{name} must be a whole number from 1 up, not {value!r}")
    return value


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
