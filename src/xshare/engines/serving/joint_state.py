"""The state of one data-parallel rank of several that choose one set together (ranks.py says how they vote).

On a CPU the first layer of a step hears what all ranks have, and `_decide` says whether selection acts. On a GPU the
kernels decide, inside a captured graph, and the host counts their decision afterwards (outcomes.py).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from xshare.engines.gates import Gates, Reason
from xshare.engines.serving.outcomes import Outcomes
from xshare.engines.serving.ranks import Ranks, policy_fingerprint
from xshare.engines.serving.state import Marks, State
from xshare.engines.serving.step import Array
from xshare.kernels.control import Control


class JointState(State):
    ranks: Ranks

    def __init__(self, *args: Any, ranks: Ranks, **kwargs: Any) -> None:
        """`ranks`: those that this rank's layers choose with. The other arguments are State's."""
        super().__init__(*args, **kwargs)
        self.ranks = ranks
        ranks.decide = self._decide
        self._announce_policy()
        self.outcomes: Outcomes | None = None  # on a GPU, where the kernels decide
        if self.now.control is not None and self.layers:
            self.outcomes = Outcomes(self.layers[0].selector.said)  # type: ignore[attr-defined]

    # Every step

    def step(self, decoding: bool, starts: Array, on_device: Tensor | None = None, exact: Marks | None = None) -> None:
        """A step begins: whether this rank's rows vote. Whether selection acts is known in the first layer."""
        now = self.now
        self.settle()
        now.rows, now.starts, now.sampling, now.table = int(starts[-1]), starts, False, None
        now.laid_out.clear()
        self.ranks.begin()
        reason: Reason | None = None if decoding else "prefill"
        if not self.on:
            reason = "off"
        elif decoding and now.rows > self.sizes.max_rows:
            reason = "many_rows"
        elif exact is not None and not self.settings.protect:
            reason = "protected"
        # Rows that are all protected vote for the experts they need, and keep their native routing.
        now.only_votes = exact is not None and bool(exact.all())
        now.protected = None if exact is None or reason is not None else self.protected_rows(exact, starts)
        now.gate = reason is None
        if reason is not None:
            self.tally.bypassed[reason] += 1
        if now.control is not None:
            self._send(now.control, on_device, exact)

    def _send(self, control: Control, on_device: Tensor | None, exact: Marks | None) -> None:
        """Send the step to the kernels, which decide whether selection acts."""
        now = self.now
        if now.gate:
            self._follow_replicas()
            now.sampling = not now.only_votes and self.samples is not None and self.samples.due(self.every)
            gates = self._joint_gates
            least_rows = gates.least_rows(self.within, self.rows_unshared)
            control.set_group(self.ranks.policy, least_rows, gates.max_rows, gates.max_requests)
            control.set_step(now.rows, now.starts, now.protected)
            if self.outcomes is not None:
                self.outcomes.begin(partial(self._count_step, within=self.within, only_votes=now.only_votes))
        control.set_gate(now.gate, now.sampling, now.only_votes)
        control.push()
        if on_device is not None and now.gate:
            self._read_on_device(control, on_device, exact)
        if now.sampling and self.samples is not None:
            self.samples.begin(now.rows, now.protected, control.protected)

    def idle(self) -> None:
        """A dummy pass begins: this rank has no requests, and keeps step with the others."""
        self.settle()
        now = self.now
        now.gate, now.sampling, now.only_votes, now.rows = False, False, False, 0
        now.laid_out.clear()
        self.ranks.begin()
        if now.control is not None:
            now.control.set_gate(False)
            now.control.push()

    def settle(self) -> None:
        """Count what is known of the step that was launched last."""
        if self.outcomes is not None:
            self.outcomes.end()
            # A sampled step counts only if selection acted on it. To know that, the host waits for the device.
            if self.now.sampling and not self.outcomes.settle() and self.samples is not None:
                self.samples.forget()
        super().settle()

    def settle_all(self) -> None:
        super().settle_all()
        self.now.sampling = False
        if self.outcomes is not None:
            self.outcomes.settle()

    # What all ranks decide

    def _decide(self, rows: int, requests: int, agree: bool) -> bool:
        """Called in the first layer of a step in which this rank votes; whether selection acts. `rows` and `requests`
        are those of all voting ranks; `agree`: they have the same policy."""
        now = self.now
        now.gate = self._count_step(rows, requests, agree, within=self.within, only_votes=now.only_votes)
        if not now.gate:
            return False
        self._follow_replicas()
        now.table = self.cost_table(rows)
        if now.only_votes:
            return True
        now.sampling = self.samples is not None and self.samples.due(self.every)
        if now.sampling and self.samples is not None:
            self.samples.begin(now.rows, now.protected)
        return True

    def _count_step(self, rows: int, requests: int, agree: bool, *, within: int, only_votes: bool) -> bool:
        """Count a step in which this rank voted; whether a set is chosen in it."""
        reason = self._joint_gates.why_not(rows, within, requests, self.rows_unshared) if agree else "changing"
        if reason is None and not only_votes:
            self.tally.pruned += 1
        else:
            self.tally.bypassed[reason or "protected"] += 1
        return reason is None

    @property
    def _joint_gates(self) -> Gates:
        """The gates for the rows of all ranks. A rank's own limit, what a kernel can take, is no limit for the sum:
        only a `max_rows` from the settings is."""
        gates = self.settings.gates
        max_rows = gates.max_rows if "max_rows" in gates.model_fields_set else None
        return self.gates.model_copy(update={"max_rows": max_rows})

    def _follow_replicas(self) -> None:
        """At every step: all ranks must know the same replicas."""
        for layer in self.layers:
            layer.follow_replicas()

    # Live control

    @property
    def at_every_size(self) -> bool:
        return True  # with the rows of other ranks, a small batch may be acted on

    def set_policy(self, policy: str | dict[str, Any]) -> bool:
        changed = super().set_policy(policy)
        self._announce_policy()
        return changed

    def weigh_costs(self, on: bool) -> bool:
        changed = super().weigh_costs(on)
        self._announce_policy()
        return changed

    def _announce_policy(self) -> None:
        """Send the present policy's fingerprint with this rank's votes from now on."""
        self.ranks.policy = policy_fingerprint(str(self.policy), self.by_cost)
