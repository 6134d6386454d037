"""What selection does, counted: worked out on the device from the logits of a sampled step, and read rarely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from xshare.engines.counters import FIGURES, PROTECTED
from xshare.engines.serving.layer_buffers import Alike
from xshare.engines.serving.step import Array

SAMPLED = tuple(name for name in FIGURES if name not in ("top1_kept", "excluded", "mass_shared"))  # by Alike.add
HELP = {
    "experts_native": "Experts a layer would load without selection, mean over sampled steps",
    "experts_selected": "Experts in the selected set, mean over sampled steps",
    "experts_active": "Experts a layer loads, mean over sampled steps",
    "mass_kept": "Share of the native gating weight whose expert is kept, mean over sampled steps",
    "rows_below_half": "Share of the voting rows that keep less than half of their native gating weight, mean over "
    "sampled steps",
    "smallest_kept": "The least share of its native gating weight that a voting row keeps, mean over sampled steps",
    "rows_protected": "Rows of protected requests in a step, mean over sampled steps",
    "experts_protected": "Experts a layer loads for protected requests alone, mean over sampled steps",
    "mass_shared": "Share of the native gating weight that rows of requests that are not protected keep, mean over "
    "sampled steps",
    "max_load": "Most selected experts on one rank, mean over sampled steps",
    "samples": "Sampled steps since the last change of policy: what the means are of",
}


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
        self._protected = 0  # how many these are
        self.rows_protected = 0  # in all sampled steps
        # Where the sums are copied without waiting for them; read by other threads.
        self.host = torch.zeros_like(self.sums, device="cpu")
        if device.type == "cuda":
            self.host = self.host.pin_memory()
        # Experts that no other row has loaded, and by how much the others' mass is less than that of all rows.
        self.protected = torch.zeros(2, layers, dtype=torch.float64, device=device)
        self.protected_host = torch.zeros_like(self.host[:2], pin_memory=device.type == "cuda")

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
        self._waiting, self._marks, self._protected = rows, None, 0
        if protected is None:
            return
        self._protected = len(protected)
        if marks is None:
            marks = torch.zeros(rows, dtype=torch.int32)
            marks[torch.as_tensor(protected, dtype=torch.long)] = 1
        self._marks = marks[:rows]

    def settle(self) -> None:
        """Count the step that was sampled, once it has run: the next step calls this before it begins."""
        if self._waiting is None:
            return
        rows, self._waiting = self._waiting, None
        self.rows_protected += self._protected
        for group in self.groups:
            if self._marks is not None:
                group.add_protected(rows, self._marks, self.sums, self.protected)
            group.add(rows, self.sums)
        if self._marks is not None:
            self._marks = None
            self.protected_host.copy_(self.protected, non_blocking=True)
        self.count += 1
        self.host.copy_(self.sums, non_blocking=True)

    def forget(self) -> None:
        """The step that was sampled is not to be counted."""
        self._waiting = None

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
        count = max(1, self.count)
        by_layer = dict(zip(SAMPLED, (self.host / count).tolist(), strict=True))
        only, more = (self.protected_host / count).tolist()
        shared = [mass - each for mass, each in zip(by_layer["mass_kept"], more, strict=True)]
        protected = dict(zip(PROTECTED, (self.rows_protected / count, only, shared), strict=True))
        return {"samples": self.count, **by_layer, **protected}


def line(found: dict[str, Any]) -> str:
    """One line for the log."""
    bypassed = ", ".join(f"{reason} {count}" for reason, count in found["steps_bypassed"].items()) or "none"
    policy = found["policy"] + (" by cost" if found["cost"] else "") + ("" if found["on"] else " (off)")
    text = f"xshare {policy}: {found['steps_pruned']} steps pruned, bypassed: {bypassed}"
    if found.get("samples") and found["layers"]:
        native, active, mass = (
            sum(found[name]) / len(found[name]) for name in ("experts_native", "experts_active", "mass_kept")
        )
        text += f"; experts {active:.1f} of {native:.1f} a layer, gating mass {mass:.3f}"
    return text
