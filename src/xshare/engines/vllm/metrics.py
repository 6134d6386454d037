"""What selection does, counted: worked out on the device from the logits of a sampled step, and read rarely.

The worker leaves its figures in a small file of its own; the process that serves /metrics reads it when it is scraped.
"""

from __future__ import annotations

import contextlib
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
from xshare.engines.vllm.settings import SettingsError
from xshare.errors import XShareError
from xshare.files import whole_file
from xshare.policy import Policy
from xshare.router import RouterSpec
from xshare.routing import apply, fit, prepare

if TYPE_CHECKING:
    from xshare.engines.vllm.layer import Layer
    from xshare.engines.vllm.state import State

log = logging.getLogger("vllm.xshare")
FIGURES = ("experts_native", "experts_selected", "experts_active", "mass_kept", "max_load")


class Alike:
    """Layers with the same number of experts and the same rule, counted in one go."""

    def __init__(self, layers: list[tuple[int, Layer]], rows: int) -> None:
        self.numbers = [number for number, _ in layers]
        first = layers[0][1]
        device, N = first.keep.device, first.num_experts
        # The logits of a sampled step, in float32, which holds any engine's exactly; and S of every step.
        self.seen = torch.zeros(len(layers), rows, N, device=device)  # [L, R, N]
        self.keep = torch.ones(len(layers), N, dtype=torch.bool, device=device)  # [L, N]
        for i, (_, layer) in enumerate(layers):
            layer.seen, layer.keep = self.seen[i], self.keep[i]
        biases = [layer.router.correction_bias for _, layer in layers if layer.router.correction_bias is not None]
        self.bias = torch.stack(biases).float() if biases else torch.zeros(len(layers), N, device=device)
        self.router = first.router.with_bias(self.bias if biases else None)
        self.layers = [layer for _, layer in layers]

    def placement(self) -> Placement | None:
        """Read afresh: an engine may move experts."""
        found = [layer.placement for layer in self.layers if layer.placement is not None]
        return Placement(torch.stack([each.devices for each in found]), found[0].num_devices) if found else None

    def add(self, rows: int, sums: Tensor) -> None:
        """Add a step of that many voting rows to `sums`, float64 [figures, all layers]."""
        placement = self.placement()
        if not self.seen.is_cuda:
            layout = BatchLayout.one_per_row(rows)  # whose rows they are is in S already
            sums[:, self.numbers] += figures(self.seen[:, :rows], self.keep, self.router, layout, placement)
            return
        from xshare.kernels.launch import count_step

        mine = sums if len(self.numbers) == sums.shape[1] else sums[:, self.numbers].contiguous()
        devices = torch.zeros_like(self.bias) if placement is None else placement.devices
        ranks = 1 if placement is None else placement.num_devices
        count_step(self.seen, rows, self.keep, self.router, self.bias, devices.int(), ranks, mine)
        if mine is not sums:
            sums[:, self.numbers] = mine


class Samples:
    """Sums of each figure over the sampled steps, by layer, float64 [figures, layers] on the device."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.sums = torch.zeros(len(FIGURES), len(state.layers), dtype=torch.float64, device=state.device)
        self.count = 0
        self._steps = 0  # that could have been sampled
        self._waiting: int | None = None  # voting rows of the sampled step that has not been counted
        kinds: dict[Any, list[tuple[int, Layer]]] = {}
        for number, layer in enumerate(state.layers):
            rule = replace(layer.router, correction_bias=None)
            kinds.setdefault((layer.num_experts, repr(rule), layer.placement is None), []).append((number, layer))
        self.alike = [Alike(layers, state.buckets[-1]) for layers in kinds.values()]
        # Where the sums are copied without waiting for them; read by other threads.
        self.host = torch.zeros_like(self.sums, device="cpu")
        if state.device.type == "cuda":
            self.host = self.host.pin_memory()

    def compile(self) -> None:
        """Compile what counts, before the engine serves."""
        for layers in self.alike:
            layers.add(1, self.sums)
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
        for layers in self.alike:
            layers.add(rows, self.sums)
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
        return {"samples": self.count, **dict(zip(FIGURES, by_layer, strict=True))}


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
    if folder.stat().st_uid != os.getuid():
        raise SettingsError(f"{folder} belongs to another user: remove it, or set metrics in xshare to false")
    return folder / f"{instance}.json"


def remove_stale(folder: Path) -> None:
    """Remove the files of workers that were killed and could not do so themselves."""
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if not Path("/proc", str(json.loads(path.read_text())["pid"])).exists():
                path.unlink()


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
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with whole_file(self.path) as temporary:
                    temporary.write_text(spelled)
            except (OSError, XShareError) as error:  # a full disk, a folder that was cleaned: not the engine's trouble
                log.warning("xshare: cannot write %s: %s", self.path, error)
            if waited >= every:
                waited = 0.0
                log.info(line(found))

    def snapshot(self) -> dict[str, Any] | None:
        """The figures now; None once the engine has gone."""
        state = self._state()
        return None if state is None else state.snapshot()

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
