"""Data-parallel ranks: one set for the rows of all of them.

Ranks run a model layer by layer in step, the idle ones on dummy batches, because their experts need one another. So at
every MoE layer of every pass each rank sends a message, whatever its own gate says, and gets the sum of all messages.
It holds the votes of the rank's rows, none where the rank reads prompts, idles or is switched off; and what every rank
must know to come to the same decision about the step (control_words.MessageWord): the rows and requests of the ranks
that vote, which gates count, and whether these have the same policy. While a change is under way from rank to rank they
have not, and such steps are left alone on every rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xshare.engines.serving.step import Step
from xshare.kernels.control_words import MessageWord

BITS = 20  # of a policy's number: squares of 2048 ranks' fit


def number_of(*what: Any) -> int:
    """Of a policy and how it is applied: the same in every process."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:4], "big") >> (32 - BITS)


class Ranks:
    """This rank's, of a group of several."""

    def __init__(self, step: Step, add_up: Callable[[Tensor], None]) -> None:
        """`add_up` puts the sum over all ranks in place of a tensor."""
        self.step, self.add_up = step, add_up
        self.policy = 0  # its number
        # Asked once a step in which this rank votes: the rows and requests of all, and whether they agree on the policy
        # -> whether selection acts.
        self.acts: Callable[[int, int, bool], bool] = lambda rows, requests, agree: agree
        self._decided: bool | None = None  # about this step

    def begin(self) -> None:
        """A step begins."""
        self._decided = None

    def exchange(self, votes: Tensor | None, size: int) -> Tensor | None:
        """Send this rank's votes, int64 [size], or None for none; the sum over all ranks, or None where this rank's
        rows are left alone. The last of them is how many rows vote."""
        message = torch.zeros(size + len(MessageWord) - 1, dtype=torch.int64, device=self.step.device)
        if votes is not None:
            message[:size] = votes
            said = {
                MessageWord.ROWS: self.step.rows,
                MessageWord.REQUESTS: len(self.step.starts) - 1,
                MessageWord.VOTING: 1,
                MessageWord.POLICY: self.policy,
                MessageWord.SQUARED: self.policy**2,
            }
            message[size:] = torch.tensor(list(said.values()))
        self.add_up(message)
        if votes is None:
            return None
        if self._decided is None:
            rows, requests, voting, policy, squared = message[size:].tolist()
            self._decided = self.acts(rows, requests, voting * squared == policy**2)
        return message[:size] if self._decided else None
