"""One model's XShare: the policy, the current pass, and the counters."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from xshare.batch import BatchLayout, Placement
from xshare.engines.gates import Gates, Reason, Tally
from xshare.engines.transformers.cost_tables import Share, split_by_table
from xshare.engines.transformers.forward_pass import Generation, Pass
from xshare.engines.transformers.step_rows import Places
from xshare.errors import LayoutError
from xshare.policy import Policy
from xshare.staircase import Stairs

log = logging.getLogger("xshare.transformers")


class State:
    """Hears of every forward pass before it runs. Layers read from it whether to act, and on which rows."""

    def __init__(
        self,
        policy: Policy,
        placement: Placement | None,
        gates: Gates,
        within: int,
        drafts: int,
        stairs: Stairs | None = None,
    ) -> None:
        """`within`: rows that natively load no more experts than the policy's budget: see Gates.why_not."""
        self.policy, self.placement, self.on = policy, placement, True
        self.gates, self.within, self.drafts = gates, within, drafts
        self.stairs, self.costs = stairs, [] if stairs is None else list(stairs.costs)  # by table, float64 [N + 1]
        self.tally = Tally(log)
        self.given: BatchLayout | None = None  # by the caller, through xshare.layout
        self.given_places: Places | None = None  # where its rows are in the pass, if its shape does not tell
        self.guarded: tuple[int, ...] = ()  # protected sequences, from xshare.protect
        self.batch: int | None = None  # sequences per batch, where a pass decodes several batches
        self.kinds: list[int] = []  # of each sequence in the pass; no batch mixes kinds. Empty: all have the same
        self.generation: Generation | None = None  # the current call of `generate`
        self._latest: tuple[tuple[Any, ...], BatchLayout] | None = None  # key and layout of the last plain step
        # The current pass. It has several steps only if the caller lays them out, or decodes several batches.
        self.gate = False
        self.rows = 1
        self.places = Places()
        self.layout: BatchLayout | None = None  # requests [steps, n]
        self.open: Tensor | None = None  # bool [steps], whether each is acted on; None: all are
        self.counted = 0  # steps that are acted on
        self.shares: list[Share] = []  # the steps by cost table
        self.router_called = False  # whether any layer's router was called

    # Every pass

    def begin(self, step: Pass) -> None:
        """A forward pass begins: decide which of its rows vote, and whether it is acted on."""
        self.gate, self.router_called, self.rows = False, False, step.rows
        if not self.on:
            return self._bypass("off")
        if self.given is None and not self._decoding(step):
            return self._bypass("prefill")
        plain = self._plain(step)
        if plain is not None:
            requests, places, voting, marks = plain.requests, Places(), [step.rows], plain.protected
        else:
            requests, places, marks = self._requests(step)  # [steps, n]
            voting = (requests >= 0).sum(-1).tolist()  # one read per pass, so that no layer waits for the device
        reasons = [self.gates.why_not(rows, self.within) for rows in voting]
        if marks is not None:  # if all rows are protected, routing is native
            unprotected = ((requests >= 0) & ~marks).any(-1).tolist()
            reasons = [
                reason or (None if prunable else "protected")
                for reason, prunable in zip(reasons, unprotected, strict=True)
            ]
        for reason in reasons:
            if reason is not None:
                self._bypass(reason)
        self.counted = reasons.count(None)
        self.tally.pruned += self.counted
        self.gate = self.counted > 0
        if self.gate:
            self.places, self.open = places, None
            if self.counted < len(requests):  # a step without voting rows is routed natively
                self.open = torch.tensor([reason is None for reason in reasons], device=step.device)
                requests = requests.where(self.open.unsqueeze(1), -1)
            if plain is None:
                plain = BatchLayout(requests, None if marks is None else marks & (requests >= 0))
            self.layout = plain
            self.shares = split_by_table(self._tables(voting, reasons), self.layout)

    def _tables(self, voting: list[int], reasons: list[Reason | None]) -> list[int | None]:
        """The cost table of each step. Steps that are left alone take the table of the first one acted on."""
        if self.stairs is None:
            return [None] * len(voting)
        tables = [self.stairs.table_for(rows) for rows in voting]
        first = tables[reasons.index(None)]
        return [first if reason else table for table, reason in zip(tables, reasons, strict=True)]

    def _plain(self, step: Pass) -> BatchLayout | None:
        """The layout [1, n] of a step of one batch in which every row votes; None for any other step. It is the same
        object while the batch stays the same."""
        ends = None if self.generation is None else self.generation.ends
        if self.given is not None or self.batch is not None or ends is not None or step.padded:
            return None
        key = step.sequences, step.new, step.device, torch.is_inference_mode_enabled(), self._protected_sequences()
        if self._latest is None or self._latest[0] != key:
            marks = self._marks(step)
            requests = step.requests(None).unsqueeze(0)
            self._latest = key, BatchLayout(requests, None if marks is None else marks.unsqueeze(0))
        return self._latest[1]

    def _decoding(self, step: Pass) -> bool:
        now = self.generation
        if now is not None and step.past < now.prompt:
            return False
        return step.past > 0 and (step.new <= 1 + self.drafts or (now is not None and now.drafts))

    def _protected_sequences(self) -> tuple[int, ...]:
        """The protected sequences of a pass. Within `generate` the caller names prompts, which may have several answers
        each."""
        answers = 1 if self.generation is None else self.generation.answers
        return tuple(answers * sequence + answer for sequence in self.guarded for answer in range(answers))

    def _marks(self, step: Pass) -> Tensor | None:
        """Which rows of a pass are protected, bool [rows], whether they vote or not; None where none is."""
        if not self.guarded:
            return None
        sequences = self._protected_sequences()
        if max(sequences) >= step.sequences:
            raise LayoutError(
                f"protect names sequence {max(self.guarded)}, and the batch has {step.sequences} sequences, from 0 up"
            )
        marks = torch.zeros(step.sequences, step.new, dtype=torch.bool)
        marks[list(sequences)] = True
        return marks.reshape(-1).to(step.device)

    def _requests(self, step: Pass) -> tuple[Tensor, Places, Tensor | None]:
        """The request of each row, int64 [steps, n]; their places in the pass; which are protected, bool [steps, n]."""
        if self.given is None:
            of_rows = step.requests(None if self.generation is None else self.generation.ends)
            places = Places() if self.batch is None else Places.of_batches(self.batch, step, self.kinds)
            requests, marks = places.requests(of_rows), self._marks(step)
            if marks is not None:
                marks = places.by_step(marks.unsqueeze(1)).squeeze(2) & (requests >= 0)
            return requests, places, marks
        requests, marks = self.given.requests, self.given.protected
        if self.given_places is not None:
            return requests, self.given_places, marks
        shape = tuple(requests.shape)
        several = len(shape) == 2 and shape[0] > 0 and step.new % shape[0] == 0 and shape[0] * shape[1] == step.rows
        if shape != (step.rows,) and not several:
            raise LayoutError(
                f"layout must hold [{step.rows}] requests, one a row of the pass, or [{step.new}, {step.sequences}], "
                f"one step a position, not {list(requests.shape)}"
            )
        requests = requests.to(step.device).reshape(-1, requests.shape[-1])
        marks = None if marks is None else marks.to(step.device).expand(shape).reshape(requests.shape)
        return requests, Places.of_positions(len(requests), step), marks

    def _bypass(self, reason: Reason) -> None:
        self.tally.bypassed[reason] += 1

    # What the caller says

    @contextmanager
    def laid_out(self, layout: BatchLayout, places: Places | None = None) -> Iterator[None]:
        if not isinstance(layout, BatchLayout):
            raise LayoutError(f"layout must be an xshare.BatchLayout, not {type(layout).__name__}")
        if self.guarded:
            raise LayoutError("layout says which rows are protected itself: BatchLayout(requests, protected=...)")
        before = self.given, self.given_places
        self.given, self.given_places = layout, places
        try:
            yield
        finally:
            self.given, self.given_places = before

    @contextmanager
    def protecting(self, sequences: Sequence[int]) -> Iterator[None]:
        numbers = tuple(sequences)
        if wrong := [n for n in numbers if not isinstance(n, int) or isinstance(n, bool) or n < 0]:
            raise LayoutError(f"protect takes numbers of sequences from 0 up, not {wrong[0]!r}")
        if self.given is not None:
            raise LayoutError("layout says which rows are protected itself: BatchLayout(requests, protected=...)")
        before, self.guarded = self.guarded, numbers
        try:
            yield
        finally:
            self.guarded = before

    @contextmanager
    def in_batches(self, batch: int | None) -> Iterator[None]:
        """Passes decode several batches of `batch` sequences, each with its own set."""
        before, self.batch = self.batch, batch
        try:
            yield
        finally:
            self.batch, self.kinds, self.guarded = before, [], ()

    def arrange(self, kinds: list[int], protected: Sequence[int] = ()) -> None:
        """For the next pass: the kind of each sequence, which no batch mixes, and which sequences are protected."""
        self.kinds, self.guarded = kinds, tuple(protected)

    @contextmanager
    def generating(self, generation: Generation) -> Iterator[None]:
        before, self.generation = self.generation, generation
        try:
            yield
        finally:
            self.generation = before

    def snapshot(self) -> dict[str, Any]:
        return {"policy": str(self.policy), "on": self.on, "cost": self.stairs is not None, **self.tally.snapshot()}
