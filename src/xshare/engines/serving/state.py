"""One worker's XShare: the policy, the attached layers and the counters. It hears of every step and can change live."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from xshare.engines.gates import Gates, Reason, Tally
from xshare.engines.serving.layer_facts import Facts
from xshare.engines.serving.metrics import Samples
from xshare.engines.serving.ranks import Ranks
from xshare.engines.serving.selector import Selector
from xshare.engines.serving.settings import Settings, SettingsError
from xshare.engines.serving.site import Site
from xshare.engines.serving.step import Array, Step
from xshare.engines.serving.step_sizes import Sizes
from xshare.errors import PolicyError, short_repr
from xshare.kernels.control import Control
from xshare.kernels.limits import MAX_ROWS
from xshare.policy import MOST, Policy
from xshare.routing import check_policy
from xshare.staircase import Stairs

FOLLOW = 32  # steps after which the positions of experts' replicas are read again
ROUTED = "route"  # mode of a layer whose routing runs in the selection's own launch

Marks = npt.NDArray[np.bool_]  # per request: whether its rows are protected


class Attached(Protocol):
    """A layer of an engine with selection attached."""

    @property
    def site(self) -> Site: ...

    @property
    def selector(self) -> Selector: ...

    @property
    def mode(self) -> str:
        """How S reaches the engine."""

    def attach(self) -> None:
        """Put selection in front of the layer's routing."""

    def follow_replicas(self) -> None:
        """Read where an expert's first replica is, after the engine may have moved it."""


class State:
    """Built when the model is loaded. The model runner calls `step` before every forward pass."""

    ranks: Ranks | None = None  # the data-parallel ranks that choose one set together: see JointState

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        layers: Sequence[Attached],
        now: Step,
        sizes: Sizes,
        tally: Tally,
        samples: Samples | None = None,
        stairs: Stairs | None = None,
        model: Sequence[Facts] | None = None,
    ) -> None:
        """`policy`: the one to start with, from the settings or their profile. `now` and `tally` are shared with the
        layers. `stairs`: the staircase whose costs the layers were built with. `model`: the layers of all pipeline
        stages; None where `layers` are all of them."""
        self.settings, self.policy, self.layers = settings, policy, layers
        self.now, self.sizes, self.tally, self.samples = now, sizes, tally, samples
        self.gates: Gates = settings.gates.model_copy(update={"max_rows": sizes.max_rows})
        self.on = True
        self.stairs, self.by_cost = stairs, stairs is not None
        self.every = settings.metrics.every  # experts are counted in one of so many steps
        # Gates and budgets are about the whole model, so that all stages act on the same steps.
        self.model: Sequence[Facts | Site] = [layer.site for layer in layers] if model is None else model
        self.numbers = [layer.number for layer in self.model]
        self.top_k = max((layer.top_k for layer in self.model), default=1)
        self.first_within = self.within = rows_within(policy, self.numbers, self.top_k)
        self.forcing: Any = None  # the engine's Forcing object, while tokens are forced
        self._one_row_starts = now.starts
        self._protected: tuple[Marks, Array, Array] | None = None  # requests, their boundaries, their rows
        self._flags: tuple[Marks, Tensor] | None = None  # protected requests, and the same in device memory

    @property
    def device(self) -> torch.device:
        return self.now.device

    @property
    def expert_bytes(self) -> int | None:
        """Bytes of one expert, summed over all layers; None where a layer's size is unknown."""
        sizes = [layer.site.expert_bytes for layer in self.layers]
        return sum(size for size in sizes if size is not None) if None not in sizes else None

    @property
    def backend(self) -> str | None:
        """The kernel that computes the experts, or a list where layers differ."""
        return ", ".join(sorted({layer.site.backend for layer in self.layers})) or None

    @property
    def host_layers(self) -> int:
        """How many layers have their experts in host memory."""
        return sum(layer.site.in_host_memory for layer in self.layers)

    @cached_property
    def rows_unshared(self) -> int:
        """Rows up to which sharing experts saves nothing. It is 0 unless most layers' experts lie in host memory."""
        if sum(layer.in_host_memory for layer in self.model) * 2 <= len(self.model):
            return 0
        return min(layer.rows_unshared for layer in self.model)

    # Every step

    def one_row_per_request(self, requests: int) -> Array:
        """The boundaries of a step without drafts. It is the same array while the batch size stays, so nothing is sent
        to the device."""
        if len(self._one_row_starts) != requests + 1:
            self._one_row_starts = np.arange(requests + 1, dtype=np.int32)
        return self._one_row_starts

    def protected_rows(self, exact: Marks, starts: Array) -> Array:
        """The row numbers of protected requests. It is the same array while both arguments stay the same objects."""
        cached = self._protected
        if cached is None or cached[0] is not exact or cached[1] is not starts:
            rows = np.repeat(exact, np.diff(starts)).nonzero()[0].astype(np.int32)
            self._protected = exact, starts, rows
            return rows
        return cached[2]

    def step(self, decoding: bool, starts: Array, on_device: Tensor | None = None, exact: Marks | None = None) -> None:
        """A step begins. `decoding`: all its requests decode. `starts`: where each request's rows begin, as in
        query_start_loc.

        `on_device`: the same boundaries in device memory, where the engine assigns drafts to requests there. `exact`:
        which requests are protected; None where none is. The device may be waiting for the host, so this takes
        microseconds, and sends nothing where nothing changed.
        """
        now, control = self.now, self.now.control
        self.settle()
        was_open, now.rows = now.gate, int(starts[-1])
        now.laid_out.clear()
        reason = self.why_not(decoding, now.rows, len(starts) - 1)
        now.protected = None
        if exact is not None and reason is None:
            # If all are protected, the routing is bit for bit the native one.
            if exact.all() or not self.settings.protect:
                reason = "protected"
            else:
                now.protected = self.protected_rows(exact, starts)
        now.gate, now.sampling = reason is None, False
        if reason is not None:
            self.tally.bypassed[reason] += 1
        else:
            now.starts = starts
            now.table = self.cost_table(now.rows)
            now.sampling = self.samples is not None and self.samples.due(self.every)
            self.tally.pruned += 1
            if self.tally.pruned % FOLLOW == 1:
                for layer in self.layers:
                    layer.follow_replicas()
        if control is not None and (now.gate or was_open):
            control.set_gate(now.gate, now.sampling)
            if now.gate:
                control.set_step(now.rows, starts, now.protected, table=now.table)
            control.push()
            if on_device is not None and now.gate:
                self._read_on_device(control, on_device, exact)
        if now.sampling and self.samples is not None:
            self.samples.begin(now.rows, now.protected, None if control is None else control.protected)

    def bypass(self, reason: Reason) -> None:
        """A step begins that is left alone, because the host does not know its rows."""
        now, control = self.now, self.now.control
        self.settle()
        self.tally.bypassed[reason] += 1
        if control is not None and now.gate:
            control.set_gate(False)
            control.push()
        now.gate = now.sampling = False

    def settle(self) -> None:
        """Count the step that was launched last, if it was sampled."""
        if self.samples is not None:
            self.samples.settle()

    def cost_table(self, rows: int) -> int | None:
        """The number of the cost table for a step of so many rows; None where costs do not count."""
        return self.stairs.table_for(rows) if self.stairs is not None and self.by_cost else None

    def _read_on_device(self, control: Control, starts: Tensor, exact: Marks | None) -> None:
        """Copy the boundaries of this step's requests, and its protected rows, from boundaries that the engine worked
        out in device memory."""
        count = len(self.now.starts)
        control.starts[:count].copy_(starts[:count])
        if exact is not None and self.now.protected is not None:
            control.protected.copy_(self._protected_on_device(exact, starts))

    def _protected_on_device(self, exact: Marks, starts: Tensor) -> Tensor:
        """1 for each protected row, int32 [MAX_ROWS], from boundaries that only the device knows."""
        if self._flags is None or self._flags[0] is not exact:
            flags = torch.from_numpy(exact.astype(np.int32))
            flags = flags.pin_memory() if self.device.type == "cuda" else flags
            self._flags = exact, flags.to(self.device, non_blocking=True)
        ends = starts[1 : len(exact) + 1].contiguous()
        rows = torch.arange(MAX_ROWS, dtype=ends.dtype, device=self.device)
        request = torch.searchsorted(ends, rows, right=True).clamp(max=len(exact) - 1)
        return self._flags[1][request]

    def why_not(self, decoding: bool, rows: int, requests: int = 0) -> Reason | None:
        """Why a step of so many rows is left alone; None where selection acts on it."""
        if not self.on:
            return "off"
        return self.gates.why_not(rows, self.within, requests, self.rows_unshared) if decoding else "prefill"

    # Live control

    @property
    def at_every_size(self) -> bool:
        """Whether selection is captured for batches of every size, also for those within the budget."""
        return self.settings.at_every_size

    def set_policy(self, policy: str | dict[str, Any]) -> bool:
        """Use this policy from the next step on; whether it differs from the present one."""
        new, control = Policy.of(policy), self.now.control
        if new.method != self.policy.method:
            raise PolicyError(f"method cannot change while serving, from {self.policy.method!r} to {new.method!r}")
        new.by_layer(self.numbers)  # may refuse
        policies = [new.for_layer(layer.site.number) for layer in self.layers]
        for layer, layer_policy in zip(self.layers, policies, strict=True):
            check_policy(layer_policy, layer.site.placement, layer.site.num_experts)
            layer.selector.check_policy(layer_policy)
        within = rows_within(new, self.numbers, self.top_k)
        if control is not None and not self.at_every_size and within < self.first_within:
            raise PolicyError(
                f"policy {new} can act on smaller batches than the one that this engine was started with, for which "
                f"no selection is captured: start with the smaller budget, or with live 'any'"
            )
        if control is not None:
            control.set_policy(new)  # may refuse
        changed, self.policy, self.within = new != self.policy, new, within
        for layer, layer_policy in zip(self.layers, policies, strict=True):
            layer.selector.set_policy(layer_policy)
        if self.samples is not None:
            self.samples.restart(clear=changed)
        return changed

    def switch(self, on: bool) -> bool:
        """Turn selection on or off; whether that is a change."""
        if not isinstance(on, bool):
            raise SettingsError(f"xshare_switch takes True or False, not {short_repr(on)}")
        changed, self.on = on != self.on, on
        return changed

    def weigh_costs(self, on: bool) -> bool:
        """Count costs, or not, from the next step on; whether that is a change."""
        if not isinstance(on, bool):
            raise SettingsError(f"xshare_cost takes True or False, not {short_repr(on)}")
        if self.stairs is None:
            raise SettingsError("xshare_cost needs an engine that was started with cost in its xshare key")
        changed, self.by_cost = on != self.by_cost, on
        if self.samples is not None:
            self.samples.restart(clear=changed)
        return changed

    def count_every(self, steps: int | None) -> None:
        """Count experts in one of so many steps; None: as the settings say."""
        is_whole = isinstance(steps, int) and not isinstance(steps, bool)
        if steps is not None and not (is_whole and 1 <= steps <= MOST):
            raise SettingsError(
                f"xshare_count takes a number of steps from 1 to {MOST}, or None, not {short_repr(steps)}"
            )
        self.every = self.settings.metrics.every if steps is None else steps
        if self.samples is not None:
            self.samples.restart()

    def stats(self) -> dict[str, Any]:
        """All counters up to the last step. This waits for the device."""
        self.settle_all()
        if self.samples is not None and self.device.type == "cuda":
            torch.cuda.synchronize()
        return self.snapshot()

    def settle_all(self) -> None:
        """Count every step that was launched, also one whose outcome is still on its way to the host."""
        self.settle()

    def snapshot(self) -> dict[str, Any]:
        """The counters as far as the host knows them. It does not touch the device, so any thread may call it."""
        return {
            "pid": os.getpid(),
            "policy": str(self.policy),
            "on": self.on,
            "cost": self.by_cost,
            "stairs": None if self.stairs is None else self.stairs.sha256,
            **self.tally.snapshot(),
            "layers": [layer.site.name for layer in self.layers],
            "experts": max((layer.site.num_experts for layer in self.layers), default=0),
            "top_k": self.top_k if self.layers else 0,
            "expert_bytes": self.expert_bytes,
            "host_layers": self.host_layers,
            "routed_layers": sum(layer.mode == ROUTED for layer in self.layers),
            "backend": self.backend,
            **(self.samples.means() if self.samples is not None else {}),
        }


def rows_within(policy: Policy, layers: list[int], top_k: int) -> int:
    """Rows that natively load no more experts than any layer's budget: see Gates.why_not."""
    return min((layer.batch_budget for layer in policy.by_layer(layers)), default=policy.batch_budget) // top_k
