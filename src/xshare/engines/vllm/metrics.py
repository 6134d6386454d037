"""What selection does, counted: worked out on the device from the logits of a sampled step, and read rarely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xshare.engines.counting import FIGURES
from xshare.engines.vllm.alike import Alike

SAMPLED = tuple(name for name in FIGURES if name not in ("top1_kept", "excluded"))  # what Alike.add counts


class Samples:
    """Sums of each figure over the sampled steps, by layer, float64 [figures, layers] on the device."""

    def __init__(self, groups: Sequence[Alike], device: torch.device) -> None:
        self.groups = groups
        layers = sum(len(group.places) for group in groups)
        self.sums = torch.zeros(len(SAMPLED), layers, dtype=torch.float64, device=device)
        self.count = 0
        self._steps = 0  # that could have been sampled
        self._waiting: int | None = None  # voting rows of the sampled step that has not been counted
        # Where the sums are copied without waiting for them; read by other threads.
        self.host = torch.zeros_like(self.sums, device="cpu")
        if device.type == "cuda":
            self.host = self.host.pin_memory()

    def compile(self) -> None:
        """Compile what counts, before the engine serves."""
        for group in self.groups:
            group.add(1, self.sums)
        self.clear()

    def due(self, every: int) -> bool:
        """Whether the step that now begins is to be sampled: the first of all, and one of so many."""
        self._steps += 1
        return (self._steps - 1) % every == 0

    def begin(self, rows: int) -> None:
        """The step that now begins leaves its logits behind."""
        self._waiting = rows

    def settle(self) -> None:
        """Count the step that was sampled, once it has run: the next step calls this before it begins."""
        if self._waiting is None:
            return
        rows, self._waiting = self._waiting, None
        for group in self.groups:
            group.add(rows, self.sums)
        self.count += 1
        self.host.copy_(self.sums, non_blocking=True)

    def clear(self) -> None:
        self.sums.zero_()
        self.host.zero_()
        self.count, self._steps, self._waiting = 0, 0, None

    def restart(self, clear: bool = False) -> None:
        """The next step is a first one again."""
        self._steps = 0
        if clear:
            self.clear()

    def means(self) -> dict[str, Any]:
        """Means over the sampled steps, by layer, as far as they have been copied to the host."""
        by_layer = (self.host / max(1, self.count)).tolist()
        return {"samples": self.count, **dict(zip(SAMPLED, by_layer, strict=True))}
