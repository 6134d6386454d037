"""What selection does, counted: worked out on the device from the logits of a sampled step, and read rarely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from xshare.engines.counting import FIGURES
from xshare.engines.counting import PROTECTED as EXPERTS_PROTECTED
from xshare.engines.vllm.alike import Alike
from xshare.engines.vllm.step import Array

SAMPLED = tuple(name for name in FIGURES if name not in ("top1_kept", "excluded"))  # what Alike.add counts
PROTECTED = ("rows_protected", EXPERTS_PROTECTED)  # of protected requests; the second by layer


class Samples:
    """Sums of each figure over the sampled steps, by layer, float64 [figures, layers] on the device."""

    def __init__(self, groups: Sequence[Alike], device: torch.device) -> None:
        self.groups = groups
        layers = sum(len(group.places) for group in groups)
        self.sums = torch.zeros(len(SAMPLED), layers, dtype=torch.float64, device=device)
        self.count = 0
        self._steps = 0  # that could have been sampled
        self._waiting: int | None = None  # voting rows of the sampled step that has not been counted
        self._marks: Tensor | None = None  # those of them that are protected, not zero
        self.rows_protected = 0  # in all sampled steps
        # Where the sums are copied without waiting for them; read by other threads.
        self.host = torch.zeros_like(self.sums, device="cpu")
        if device.type == "cuda":
            self.host = self.host.pin_memory()
        # Experts that no other row has loaded.
        self.protected = torch.zeros(layers, dtype=torch.float64, device=device)
        self.protected_host = torch.zeros_like(self.host[0], pin_memory=device.type == "cuda")

    def compile(self) -> None:
        """Compile what counts, before the engine serves."""
        for group in self.groups:
            group.add(1, self.sums)
            group.add_protected(1, torch.zeros(1, device=self.sums.device), self.sums, self.protected)
        self.clear()

    def due(self, every: int) -> bool:
        """Whether the step that now begins is to be sampled: the first of all, and one of so many."""
        self._steps += 1
        return (self._steps - 1) % every == 0

    def begin(self, rows: int, protected: Sequence[int] | Array | None = None, marks: Tensor | None = None) -> None:
        """The step that now begins leaves its logits behind. `protected`: those of its rows that are, by number;
        `marks` are the same in device memory, as they are when the step has run."""
        self._waiting, self._marks = rows, None
        if protected is None:
            return
        self.rows_protected += len(protected)
        if marks is None:
            marks = torch.zeros(rows, dtype=torch.int32)
            marks[torch.as_tensor(protected, dtype=torch.long)] = 1
        self._marks = marks[:rows]

    def settle(self) -> None:
        """Count the step that was sampled, once it has run: the next step calls this before it begins."""
        if self._waiting is None:
            return
        rows, self._waiting = self._waiting, None
        for group in self.groups:
            if self._marks is not None:
                group.add_protected(rows, self._marks, self.sums, self.protected)
            group.add(rows, self.sums)
        if self._marks is not None:
            self._marks = None
            self.protected_host.copy_(self.protected, non_blocking=True)
        self.count += 1
        self.host.copy_(self.sums, non_blocking=True)

    def clear(self) -> None:
        self.sums.zero_()
        self.host.zero_()
        self.protected.zero_()
        self.protected_host.zero_()
        self.count, self._steps, self._waiting, self._marks, self.rows_protected = 0, 0, None, None, 0

    def restart(self, clear: bool = False) -> None:
        """The next step is a first one again."""
        self._steps = 0
        if clear:
            self.clear()

    def means(self) -> dict[str, Any]:
        """Means over the sampled steps, by layer, as far as they have been copied to the host."""
        by_layer = (self.host / max(1, self.count)).tolist()
        count, only = self.count, (self.protected_host / max(1, self.count)).tolist()
        protected = dict(zip(PROTECTED, (self.rows_protected / max(1, count), only), strict=True))
        return {"samples": count, **dict(zip(SAMPLED, by_layer, strict=True)), **protected}
