"""What selection does, counted on the device from the logits of sampled steps, and read rarely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from xshare.engines.counters import FIGURES, PROTECTED
from xshare.engines.serving.layer_buffers import LayerGroup
from xshare.engines.serving.step import Array

SAMPLED = tuple(name for name in FIGURES if name not in ("top1_kept", "excluded", "mass_shared"))  # by LayerGroup.add
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

    def __init__(self, groups: Sequence[LayerGroup], device: torch.device) -> None:
        self.groups = groups
        layers = sum(len(group.places) for group in groups)
        self.sums = torch.zeros(len(SAMPLED), layers, dtype=torch.float64, device=device)
        self.count = 0
        self._steps = 0  # since the last restart: candidates for sampling
        self._waiting: int | None = None  # voting rows of a sampled step that is not counted yet
        self._marks: Tensor | None = None  # nonzero at its protected rows
        self._protected = 0  # how many rows that are
        self.rows_protected = 0  # sum over all sampled steps
        # The sums are copied here without waiting. Other threads read them.
        self.host = torch.zeros_like(self.sums, device="cpu")
        if device.type == "cuda":
            self.host = self.host.pin_memory()
        # Experts loaded for protected rows only, and the mass of all rows minus that of unprotected ones.
        self.protected = torch.zeros(2, layers, dtype=torch.float64, device=device)
        self.protected_host = torch.zeros_like(self.host[:2], pin_memory=device.type == "cuda")

    def compile(self) -> None:
        """Compile the counting kernels before the engine serves."""
        for group in self.groups:
            group.add(1, self.sums)
            group.add_protected(1, torch.zeros(1, device=self.sums.device), self.sums, self.protected)
        self.clear()

    def due(self, every: int) -> bool:
        """Whether to sample the step that now begins: the first after a restart, then every `every`-th."""
        self._steps += 1
        return (self._steps - 1) % every == 0

    def begin(self, rows: int, protected: Sequence[int] | Array | None = None, marks: Tensor | None = None) -> None:
        """The step that now begins is sampled. `protected`: its protected rows, by number. `marks`: the same in device
        memory, where it is complete once the step has run."""
        self._waiting, self._marks, self._protected = rows, None, 0
        if protected is None:
            return
        self._protected = len(protected)
        if marks is None:
            marks = torch.zeros(rows, dtype=torch.int32)
            marks[torch.as_tensor(protected, dtype=torch.long)] = 1
        self._marks = marks[:rows]

    def settle(self) -> None:
        """Count the sampled step. The next step calls this before it begins, when the sampled one has run."""
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
        """Do not count the sampled step."""
        self._waiting = None

    def clear(self) -> None:
        self.sums.zero_()
        self.host.zero_()
        self.protected.zero_()
        self.protected_host.zero_()
        self.count, self._steps, self._waiting, self._marks, self.rows_protected = 0, 0, None, None, 0

    def restart(self, clear: bool = False) -> None:
        """Sample the next step. `clear`: also drop the sums."""
        self._steps = 0
        if clear:
            self.clear()

    def means(self) -> dict[str, Any]:
        """Means over the sampled steps, per layer, as far as the host has them."""
        count = max(1, self.count)
        by_layer = dict(zip(SAMPLED, (self.host / count).tolist(), strict=True))
        experts_protected, excess = (self.protected_host / count).tolist()
        mass_shared = [mass - more for mass, more in zip(by_layer["mass_kept"], excess, strict=True)]
        protected = dict(zip(PROTECTED, (self.rows_protected / count, experts_protected, mass_shared), strict=True))
        return {"samples": self.count, **by_layer, **protected}


def log_line(stats: dict[str, Any]) -> str:
    """A worker's counters in one line, for the log."""
    bypassed = ", ".join(f"{reason} {count}" for reason, count in stats["steps_bypassed"].items()) or "none"
    policy = stats["policy"] + (" by cost" if stats["cost"] else "") + ("" if stats["on"] else " (off)")
    text = f"xshare {policy}: {stats['steps_pruned']} steps pruned, bypassed: {bypassed}"
    if stats.get("samples") and stats["layers"]:
        native, active, mass = (
            sum(stats[name]) / len(stats[name]) for name in ("experts_native", "experts_active", "mass_kept")
        )
        text += f"; experts {active:.1f} of {native:.1f} per layer, gating mass {mass:.3f}"
    return text
