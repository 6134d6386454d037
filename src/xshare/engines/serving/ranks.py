"""Data-parallel ranks: one set for the rows of all of them.

Ranks run the model in lockstep, layer by layer, and idle ranks run dummy batches, because each rank holds experts that
the others need. So at every MoE layer of every pass each rank sends a message, whatever its own gate says, and gets the
sum of all messages. A message has two parts:

- the votes of the rank's rows: zeros where the rank prefills, idles or is switched off;
- what all ranks need to reach the same decision about the step (control_words.MessageWord): how many rows and requests
  vote, which the gates look at, and whether the voting ranks have the same policy.

While a change of policy spreads from rank to rank, policies differ. Every rank then leaves the step alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from xshare.engines.serving.step import Step
from xshare.kernels.control_words import MessageWord

BITS = 20  # of a policy's fingerprint: the sum of 2048 ranks' squares fits into int64


def policy_fingerprint(policy: str, by_cost: bool) -> int:
    """A number for a policy and whether costs count: the same in every process."""
    digest = hashlib.sha256(repr((policy, by_cost)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> (32 - BITS)


class Ranks:
    """This rank's side of the exchange with the others."""

    def __init__(self, step: Step, add_up: Callable[[Tensor], None]) -> None:
        """`add_up` replaces a tensor by its sum over all ranks."""
        self.step, self.add_up = step, add_up
        self.policy = 0  # its fingerprint
        # Called once per step in which this rank votes, with the rows and requests of all voting ranks and whether they
        # agree on the policy. It returns whether selection acts.
        self.decide: Callable[[int, int, bool], bool] = lambda rows, requests, agree: agree
        self._decided: bool | None = None  # whether selection acts on this step; None before the first layer

    def begin(self) -> None:
        """A step begins."""
        self._decided = None

    def exchange(self, votes: Tensor | None, size: int) -> Tensor | None:
        """Send this rank's votes, int64 [size], or None where it has none. Returns the sum over all ranks, whose last
        entry is the number of voting rows; None where this rank's rows are left alone."""
        message = torch.zeros(size + len(MessageWord) - 1, dtype=torch.int64, device=self.step.device)
        if votes is not None:
            message[:size] = votes
            facts = {
                MessageWord.ROWS: self.step.rows,
                MessageWord.REQUESTS: len(self.step.starts) - 1,
                MessageWord.VOTING: 1,
                MessageWord.POLICY: self.policy,
                MessageWord.SQUARED: self.policy**2,
            }
            message[size:] = torch.tensor(list(facts.values()))
        self.add_up(message)
        if votes is None:
            return None
        if self._decided is None:
            rows, requests, voting, policy, squared = message[size:].tolist()
            self._decided = self.decide(rows, requests, voting * squared == policy**2)
        return message[:size] if self._decided else None
