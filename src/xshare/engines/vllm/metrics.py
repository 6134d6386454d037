"""What selection does, counted: worked out on the device from the logits of a sampled step, and read rarely.

The worker leaves its figures in a small file of its own; the process that serves /metrics reads it when it is scraped.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from xshare.batch import BatchLayout, Placement
from xshare.files import whole_file
from xshare.policy import Policy
from xshare.router import RouterSpec
from xshare.routing import apply, fit, prepare

if TYPE_CHECKING:
    from xshare.engines.vllm.layer import Layer
    from xshare.engines.vllm.state import State

log = logging.getLogger("vllm.xshare")
FIGURES = ("experts_native", "experts_selected", "experts_active", "mass_kept", "max_load")


class Samples:
    """Sums of each figure over the sampled steps, by layer, float64 [figures, layers] on the device."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.sums = torch.zeros(len(FIGURES), len(state.layers), dtype=torch.float64, device=state.device)
        self.count = 0
        self._waiting: tuple[int, BatchLayout] | None = None
        # Where the sums are copied without waiting for them; read by other threads.
        self.host = torch.zeros_like(self.sums, device="cpu")
        if state.device.type == "cuda":
            self.host = self.host.pin_memory()

    def begin(self, rows: int, layout: BatchLayout) -> None:
        """The step that now begins leaves its logits behind."""
        self._waiting = rows, layout

    def settle(self) -> None:
        """Count the step that was sampled, once it has run: the next step calls this before it begins."""
        if self._waiting is None:
            return
        rows, layout = self._waiting
        self._waiting = None
        for layers in self._alike():
            numbers = [number for number, _ in layers]
            logits = torch.stack([layer.seen[:rows] for _, layer in layers if layer.seen is not None])  # [L, n, N]
            keep = torch.stack([layer.keep for _, layer in layers])
            self.sums[:, numbers] += figures(logits, keep, _stacked(layers), layout, _placements(layers))
        self.count += 1
        self.host.copy_(self.sums, non_blocking=True)

    def _alike(self) -> list[list[tuple[int, Layer]]]:
        """Layers with the same number of experts and the same rule, to be counted in one go."""
        found: dict[Any, list[tuple[int, Layer]]] = {}
        for number, layer in enumerate(self.state.layers):
            rule = replace(layer.router, correction_bias=None)
            found.setdefault((layer.num_experts, repr(rule), layer.placement is None), []).append((number, layer))
        return list(found.values())

    def clear(self) -> None:
        self.sums.zero_()
        self.host.zero_()
        self.count, self._waiting = 0, None

    def means(self) -> dict[str, Any]:
        """Means over the sampled steps, by layer."""
        if self.state.device.type == "cuda":
            torch.cuda.synchronize()
        by_layer = (self.host / max(1, self.count)).tolist()
        return {"samples": self.count, **dict(zip(FIGURES, by_layer, strict=True))}


def _stacked(layers: list[tuple[int, Layer]]) -> RouterSpec:
    """One router for layers that differ in their correction bias alone."""
    biases = [layer.router.correction_bias for _, layer in layers if layer.router.correction_bias is not None]
    return layers[0][1].router.with_bias(torch.stack(biases) if biases else None)


def _placements(layers: list[tuple[int, Layer]]) -> Placement | None:
    found = [layer.placement for _, layer in layers if layer.placement is not None]
    return Placement(torch.stack([each.devices for each in found]), found[0].num_devices) if found else None


def figures(
    logits: Tensor, keep: Tensor, router: RouterSpec, layout: BatchLayout, placement: Placement | None
) -> Tensor:
    """The figures of each layer's step, from its logits [L, n, N] and S [L, N]. float64 [figures, L]"""
    layout, placement = fit(logits, layout, placement)
    routing = apply(prepare(logits, router, layout, placement), router, Policy(method="native"), keep=keep)
    counts = (routing.active_native.sum(-1), keep.sum(-1), routing.active.sum(-1), routing.mass, routing.max_load)
    return torch.stack([count.double() for count in counts])


def report_path(instance: str) -> Path:
    """A file that the worker and the server of one engine both know, in a folder that only this user can write to."""
    folder = Path(tempfile.gettempdir(), f"xshare-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{instance}.json"


class Reporter(threading.Thread):
    """Writes the figures to a file, and now and then to the log. It never touches the device.

    It ends with its engine: a process may start one after another, and the state holds the model.
    """

    def __init__(self, state: State, path: Path) -> None:
        super().__init__(name="xshare-metrics", daemon=True)
        self._state, self.path = weakref.ref(state), path
        self._every = state.settings.metrics.interval
        self._done = threading.Event()
        self._last = ""

    def run(self) -> None:
        every, waited = self._every, 0.0
        while not self._done.wait(min(1.0, every)):
            waited += min(1.0, every)
            if (found := self.snapshot()) is None:
                return self.stop()
            if (spelled := json.dumps(found)) == self._last:
                continue
            self._last = spelled
            with whole_file(self.path) as temporary:
                temporary.write_text(spelled)
            if waited >= every:
                waited = 0.0
                log.info(line(found))

    def snapshot(self) -> dict[str, Any] | None:
        """The figures now; None once the engine has gone."""
        if (state := self._state()) is None:
            return None
        samples = state.samples
        found = {
            "policy": str(state.policy),
            "on": state.on,
            "steps_pruned": state.pruned,
            "steps_bypassed": dict(state.bypassed),
            "layers": [layer.name for layer in state.layers],
        }
        if samples is not None:
            by_layer = (samples.host / max(1, samples.count)).tolist()
            found |= {"samples": samples.count, **dict(zip(FIGURES, by_layer, strict=True))}
        return found

    def stop(self) -> None:
        self._done.set()
        self.path.unlink(missing_ok=True)


def line(found: dict[str, Any]) -> str:
    """One line for the log."""
    bypassed = ", ".join(f"{reason} {count}" for reason, count in found["steps_bypassed"].items()) or "none"
    policy = found["policy"] if found["on"] else f"{found['policy']} (off)"
    text = f"xshare {policy}: {found['steps_pruned']} steps pruned, bypassed: {bypassed}"
    if found.get("samples"):
        native, active, mass = (
            sum(found[name]) / len(found[name]) for name in ("experts_native", "experts_active", "mass_kept")
        )
        text += f"; experts {active:.1f} of {native:.1f} a layer, gating mass {mass:.3f}"
    return text
