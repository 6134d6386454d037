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
        ids = _whole_numbers(requests, "requests")
        if ids.ndim == 0:
            raise LayoutError("requests must hold one request id a row, not a single number")
        if ids.device.type == "cpu" and ids.numel() and int(ids.min()) < -1:
            raise LayoutError(f"requests must be -1 (does not vote) or a request id from 0 up, not {int(ids.min())}")
        self.requests = ids  # [..., n]
        self.protected = None if protected is None else self._protected_rows(protected)  # bool [..., n]

    def _protected_rows(self, rows: Sequence[int] | Tensor) -> Tensor:
        marks = rows if isinstance(rows, Tensor) else torch.tensor(rows) if _all_bools(rows) else None
        if marks is not None and marks.dtype == torch.bool:
            if marks.ndim == 0 or marks.shape[-1] != self.rows:
                got = list(marks.shape)
                raise LayoutError(f"protected must be row numbers, or True or False for {self.rows} rows, not {got}")
            protected = marks.to(self.requests.device)
        else:
            numbers = _whole_numbers(rows, "protected").flatten()
            on_cpu = numbers.device.type == "cpu"
            if on_cpu and numbers.numel() and (int(numbers.min()) < 0 or int(numbers.max()) >= self.rows):
                wrong = next(number for number in numbers.tolist() if not 0 <= number < self.rows)
                raise LayoutError(f"protected names row {wrong}, and the rows are 0 to {self.rows - 1}")
            protected = torch.zeros(self.rows, dtype=torch.bool, device=self.requests.device)
            protected[numbers.to(protected.device)] = True
        # Reading values is free on the CPU alone.
        if protected.device.type == "cpu" and bool((protected & ~self.voting).any()):
            row = int((protected & ~self.voting).nonzero()[0, -1])
            raise LayoutError(f"protected names row {row}, which does not vote: its request is -1")
        return protected

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
        """The requests as the compiled CPU code reads them, int64 [steps, n]; made once for all layers of a pass."""
        return np.ascontiguousarray(self.requests.reshape(-1, self.rows).numpy())

    @cached_property
    def slots(self) -> Tensor:
        """Request ids as consecutive numbers, [..., n]. Sorting needs no n x n table and no synchronisation."""
        ordered, order = self.requests.sort(dim=-1, stable=True)
        first = torch.zeros_like(ordered)
        first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
        return torch.empty_like(ordered).scatter_(-1, order, first.cumsum(-1))

    @cached_property
    def num_slots(self) -> int:
        """A bound on `slots`: the exact number on a CPU; n on a GPU, where reading it would synchronise."""
        return int(self.slots.max()) + 1 if self.requests.device.type == "cpu" and self.requests.numel() else self.rows

    @cached_property
    def starts(self) -> list[int] | None:
        """The first row of each request, then the end of the last one, as an engine's query_start_loc.

        None if voting rows do not come first, if a request's rows are not contiguous, or on a GPU, where reading would
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
        """The same layout on another device. Better create it there: this copies, and a copy synchronises."""
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
        # On a GPU, reading values would synchronise: there they are read only to find a missing num_devices.
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
        """Any map, one device number per expert."""
        return cls(devices, num_devices)

    @classmethod
    def contiguous(cls, num_experts: int, devices: int) -> Self:
        """Contiguous blocks; if G does not divide N, the first N mod G devices hold one expert more."""
        share, remainder = divmod(_count(num_experts, "num_experts"), _count(devices, "devices"))
        sizes = torch.tensor([share + (d < remainder) for d in range(devices)])
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
    return isinstance(values, Sequence) and len(values) > 0 and all(isinstance(value, bool) for value in values)


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
