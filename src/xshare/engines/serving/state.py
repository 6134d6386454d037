"""One worker's XShare: the policy, the attached layers, what was counted; told of every step, and changed live."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from xshare.engines.gates import Gates, Reason, Tally
from xshare.engines.serving.layer_facts import Facts
from xshare.engines.serving.metrics import Samples
from xshare.engines.serving.outcomes import Outcomes
from xshare.engines.serving.ranks import Ranks, number_of
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

FOLLOW = 32  # steps between two looks at where the engine has put its experts' replicas
ROUTED = "route"  # mode of a layer that is routed in the selection's own launch

Marks = npt.NDArray[np.bool_]


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
    """Made when the model is loaded; told of every step by the model runner before its forward pass."""

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
        ranks: Ranks | None = None,
    ) -> None:
        """`policy`: what it starts with, the settings' or their profile's. `now` and `tally` are the layers' too.
        `stairs`: whose costs the layers were made with. `model`: the layers of all pipeline stages, None where these
        are all. `ranks`: the data-parallel ones, with which the layers choose."""
        self.settings, self.policy, self.layers = settings, policy, layers
        self.now, self.sizes, self.tally, self.samples = now, sizes, tally, samples
        self.gates: Gates = settings.gates.model_copy(update={"max_rows": sizes.max_rows})
        self.on = True
        self.stairs, self.by_cost = stairs, stairs is not None
        self.every = settings.metrics.every  # steps between two of which experts are counted
        # Gates and budgets are about the whole model, so that all stages act on the same steps.
        self.model: Sequence[Facts | Site] = [layer.site for layer in layers] if model is None else model
        self.numbers = [layer.number for layer in self.model]
        self.top_k = max((layer.top_k for layer in self.model), default=1)
        self.first_within = self.within = rows_within(policy, self.numbers, self.top_k)
        self.forcing: Any = None  # an engine's own, while tokens are forced
        self.ranks = ranks
        self.outcomes: Outcomes | None = None  # on a GPU, where the kernels decide for all ranks
        if ranks is not None:
            ranks.acts = self._act_together
            ranks.policy = self._policy_number
            if now.control is not None and layers:
                self.outcomes = Outcomes(layers[0].selector.said)  # type: ignore[attr-defined]
        self._one_row_each = now.starts
        self._protected: tuple[Marks, Array, Array] | None = None  # requests, their boundaries, their rows
        self._flags: tuple[Marks, Tensor] | None = None  # protected requests, and the same in device memory

    @property
    def device(self) -> torch.device:
        return self.now.device

    @property
    def expert_bytes(self) -> int | None:
        """Of one expert in all layers together, None where some layer's are not known."""
        found = [layer.site.expert_bytes for layer in self.layers]
        return sum(size for size in found if size is not None) if None not in found else None

    @property
    def backend(self) -> str | None:
        """The kernel that computes the experts; all of them, where layers differ."""
        return ", ".join(sorted({layer.site.backend for layer in self.layers})) or None

    @property
    def host_layers(self) -> int:
        """Layers whose experts lie in host memory."""
        return sum(layer.site.in_host_memory for layer in self.layers)

    @cached_property
    def unshared(self) -> int:
        """Rows up to which shared experts save nothing, where most layers' lie in host memory."""
        if sum(layer.in_host_memory for layer in self.model) * 2 <= len(self.model):
            return 0
        return min(layer.rows_unshared for layer in self.model)

    # Every step

    def one_row_each(self, requests: int) -> Array:
        """The boundaries of a step without drafts: the same array as long as the batch stays, so nothing is sent."""
        if len(self._one_row_each) != requests + 1:
            self._one_row_each = np.arange(requests + 1, dtype=np.int32)
        return self._one_row_each

    def rows_protected(self, exact: Marks, starts: Array) -> Array:
        """The rows of protected requests: the same array as long as both stay the same."""
        known = self._protected
        if known is None or known[0] is not exact or known[1] is not starts:
            rows = np.repeat(exact, np.diff(starts)).nonzero()[0].astype(np.int32)
            self._protected = exact, starts, rows
            return rows
        return known[2]

    def step(self, decoding: bool, starts: Array, on_device: Tensor | None = None, exact: Marks | None = None) -> None:
        """A step begins: whether all its requests decode, and where each request's rows begin (query_start_loc).

        `on_device` is the same in device memory, where an engine deals drafts out there. `exact`: requests whose rows
        are protected, None for nobody. The device may be waiting for
        the host, so this takes microseconds, and sends nothing where nothing changed.
        """
        if self.ranks is not None:
            self._vote(decoding, starts, exact, self.ranks)
            if self.now.control is not None:
                self._send_vote(self.now.control, self.ranks, on_device, exact)
            return
        now, control = self.now, self.now.control
        if self.samples is not None:
            self.samples.settle()
        was_open, now.rows = now.gate, int(starts[-1])
        now.laid_out.clear()
        reason = self.why_not(decoding, now.rows, len(starts) - 1)
        now.protected = None
        if exact is not None and reason is None:
            # With all of them it is native's routing, to the bit.
            if exact.all() or not self.settings.protect:
                reason = "protected"
            else:
                now.protected = self.rows_protected(exact, starts)
        now.gate, now.sampling = reason is None, False
        if reason is not None:
            self.tally.bypassed[reason] += 1
        else:
            now.starts = starts
            now.table = self.stairs.table_for(now.rows) if self.stairs is not None and self.by_cost else None
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

    def leave(self, reason: Reason) -> None:
        """A step begins that is left alone, because too little is known of it."""
        now, control = self.now, self.now.control
        if self.samples is not None:
            self.samples.settle()
        self.tally.bypassed[reason] += 1
        if control is not None and now.gate:
            control.set_gate(False)
            control.push()
        now.gate = now.sampling = False

    # Every step, where several ranks choose together

    def _vote(self, decoding: bool, starts: Array, exact: Marks | None, ranks: Ranks) -> None:
        """A step begins: whether this rank's rows vote. Whether selection acts is known in the first layer."""
        now = self.now
        self._settle_together()
        now.rows, now.starts, now.sampling, now.table = int(starts[-1]), starts, False, None
        now.laid_out.clear()
        ranks.begin()
        reason: Reason | None = None if decoding else "prefill"
        if not self.on:
            reason = "off"
        elif decoding and now.rows > self.sizes.max_rows:
            reason = "many_rows"
        elif exact is not None and not self.settings.protect:
            reason = "protected"
        # Where all rows are protected they vote for what they need, and are left alone.
        now.only_votes = exact is not None and bool(exact.all())
        now.protected = None if exact is None or reason is not None else self.rows_protected(exact, starts)
        now.gate = reason is None
        if reason is not None:
            self.tally.bypassed[reason] += 1

    def _send_vote(self, control: Control, ranks: Ranks, on_device: Tensor | None, exact: Marks | None) -> None:
        """The same to the kernels, which decide whether selection acts."""
        now = self.now
        if now.gate:
            for layer in self.layers:
                layer.follow_replicas()  # at every step: ranks must not know different ones
            now.sampling = not now.only_votes and self.samples is not None and self.samples.due(self.every)
            gates = self._gates_of_all
            control.set_group(
                ranks.policy, gates.least_rows(self.within, self.unshared), gates.max_rows, gates.max_requests
            )
            control.set_step(now.rows, now.starts, now.protected)
            if self.outcomes is not None:
                self.outcomes.begin(partial(self._counted, within=self.within, only_votes=now.only_votes))
        control.set_gate(now.gate, now.sampling, now.only_votes)
        control.push()
        if on_device is not None and now.gate:
            self._read_on_device(control, on_device, exact)
        if now.sampling and self.samples is not None:
            self.samples.begin(now.rows, now.protected, control.protected)

    def _settle_together(self) -> None:
        """The step before has been launched: what is known of it is counted."""
        if self.outcomes is not None:
            self.outcomes.end()
            # A figure is about a step that was acted on: this waits for the device, in one step of so many.
            if self.now.sampling and not self.outcomes.settle() and self.samples is not None:
                self.samples.forget()
        if self.samples is not None:
            self.samples.settle()

    def idle(self) -> None:
        """A dummy pass begins, on a rank that has nothing to do: it has no rows of its own."""
        self._settle_together()
        now = self.now
        now.gate, now.sampling, now.only_votes, now.rows = False, False, False, 0
        now.laid_out.clear()
        if self.ranks is not None:
            self.ranks.begin()
        if now.control is not None:
            now.control.set_gate(False)
            now.control.push()

    def _act_together(self, rows: int, requests: int, agree: bool) -> bool:
        """The first layer of a step in which this rank votes: what all ranks have, and whether they agree."""
        now = self.now
        now.gate = self._counted(rows, requests, agree, within=self.within, only_votes=now.only_votes)
        if not now.gate:
            return False
        for layer in self.layers:
            layer.follow_replicas()  # at every step: ranks must not know different ones
        now.table = self.stairs.table_for(rows) if self.stairs is not None and self.by_cost else None
        if now.only_votes:
            return True
        now.sampling = self.samples is not None and self.samples.due(self.every)
        if now.sampling and self.samples is not None:
            self.samples.begin(now.rows, now.protected)
        return True

    def _counted(self, rows: int, requests: int, agree: bool, *, within: int, only_votes: bool) -> bool:
        """A step in which this rank votes is counted; whether a set is chosen in it."""
        reason = self._gates_of_all.why_not(rows, within, requests, self.unshared) if agree else "changing"
        if reason is None and not only_votes:
            self.tally.pruned += 1
        else:
            self.tally.bypassed[reason or "protected"] += 1
        return reason is None

    @property
    def _gates_of_all(self) -> Gates:
        """Which count the rows of all ranks. Unless a bound on rows was asked for it is what a kernel takes, of one."""
        asked = self.settings.gates
        most = asked.max_rows if "max_rows" in asked.model_fields_set else None
        return self.gates.model_copy(update={"max_rows": most})

    @property
    def _policy_number(self) -> int:
        return number_of(str(self.policy), self.by_cost)

    def _read_on_device(self, control: Control, starts: Tensor, exact: Marks | None) -> None:
        """The boundaries of this step's requests, and the rows that are protected, where the engine has dealt drafts
        out in device memory."""
        count = len(self.now.starts)
        control.starts[:count].copy_(starts[:count])
        if exact is not None and self.now.protected is not None:
            control.protected.copy_(self._marked_on_device(exact, starts))

    def _marked_on_device(self, exact: Marks, starts: Tensor) -> Tensor:
        """Which rows are protected, int32 [MAX_ROWS], by boundaries that only the device knows."""
        if self._flags is None or self._flags[0] is not exact:
            flags = torch.from_numpy(exact.astype(np.int32))
            flags = flags.pin_memory() if self.device.type == "cuda" else flags
            self._flags = exact, flags.to(self.device, non_blocking=True)
        ends = starts[1 : len(exact) + 1].contiguous()
        rows = torch.arange(MAX_ROWS, dtype=ends.dtype, device=self.device)
        whose = torch.searchsorted(ends, rows, right=True).clamp(max=len(exact) - 1)
        return self._flags[1][whose]

    def why_not(self, decoding: bool, rows: int, requests: int = 0) -> Reason | None:
        if not self.on:
            return "off"
        return self.gates.why_not(rows, self.within, requests, self.unshared) if decoding else "prefill"

    # Live control

    def set_policy(self, given: str | dict[str, Any]) -> bool:
        """Another policy from the next step on; whether it is another."""
        policy, control = Policy.of(given), self.now.control
        if policy.method != self.policy.method:
            raise PolicyError(f"method cannot change while serving, from {self.policy.method!r} to {policy.method!r}")
        policy.by_layer(self.numbers)  # may refuse
        own = [policy.for_layer(layer.site.number) for layer in self.layers]
        for layer, mine in zip(self.layers, own, strict=True):
            check_policy(mine, layer.site.placement, layer.site.num_experts)
            layer.selector.check(mine)
        within = rows_within(policy, self.numbers, self.top_k)
        every_size = self.settings.at_every_size or self.ranks is not None
        if control is not None and not every_size and within < self.first_within:
            raise PolicyError(
                f"policy {policy} can act on smaller batches than the one that this engine was started with, for which "
                f"no selection is captured: start with the smaller budget, or with live 'any'"
            )
        if control is not None:
            control.set_policy(policy)  # may refuse
        changed, self.policy, self.within = policy != self.policy, policy, within
        if self.ranks is not None:
            self.ranks.policy = self._policy_number
        for layer, mine in zip(self.layers, own, strict=True):
            layer.selector.set_policy(mine)
        if self.samples is not None:
            self.samples.restart(clear=changed)
        return changed

    def switch(self, on: bool) -> bool:
        if not isinstance(on, bool):
            raise SettingsError(f"xshare_switch takes True or False, not {short_repr(on)}")
        changed, self.on = on != self.on, on
        return changed

    def weigh_costs(self, on: bool) -> bool:
        """Whether the cost table counts from the next step on; whether that is new."""
        if not isinstance(on, bool):
            raise SettingsError(f"xshare_cost takes True or False, not {short_repr(on)}")
        if self.stairs is None:
            raise SettingsError("xshare_cost needs an engine that was started with cost in its xshare key")
        changed, self.by_cost = on != self.by_cost, on
        if self.ranks is not None:
            self.ranks.policy = self._policy_number
        if self.samples is not None:
            self.samples.restart(clear=changed)
        return changed

    def count_every(self, steps: int | None) -> None:
        whole = isinstance(steps, int) and not isinstance(steps, bool)
        if steps is not None and not (whole and 1 <= steps <= MOST):
            raise SettingsError(
                f"xshare_count takes a number of steps from 1 to {MOST}, or None, not {short_repr(steps)}"
            )
        self.every = self.settings.metrics.every if steps is None else steps
        if self.samples is not None:
            self.samples.restart()

    def stats(self) -> dict[str, Any]:
        """Everything that was counted, to the last step: this waits for the device."""
        if self.ranks is not None:
            self._settle_together()
            self.now.sampling = False
        elif self.samples is not None:
            self.samples.settle()
        if self.outcomes is not None:
            self.outcomes.settle()
        if self.samples is not None and self.device.type == "cuda":
            torch.cuda.synchronize()
        return self.snapshot()

    def snapshot(self) -> dict[str, Any]:
        """The same as far as it is known, without touching the device: other threads may ask."""
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
            "routed_layers": sum(layer.mode == ROUTED for layer in self.layers),  # in the selection's own launch
            "backend": self.backend,
            **(self.samples.means() if self.samples is not None else {}),
        }


def rows_within(policy: Policy, layers: list[int], top_k: int) -> int:
    """Rows that natively load no more experts than the budget of any layer: see Gates.why_not."""
    return min((each.batch_budget for each in policy.by_layer(layers)), default=policy.batch_budget) // top_k
