"""Selection in two launches, with an all-reduce over the ranks in between: the first launch writes this rank's message,
the second reads the sum of all messages.

A message is int64 [2 * BN + len(MessageWord)]: per expert its votes, per expert the number of ranks that keep it
whatever the others vote, and what every rank must know to reach the same decision.
"""

import triton
import triton.language as tl

from xshare.kernels.control_words import MessageWord, Word
from xshare.kernels.row_votes import VOTER

GATE, ROWS, REQUESTS = (tl.constexpr(int(word)) for word in (Word.GATE, Word.ROWS, Word.REQUESTS))
LEAST_ROWS, MOST_ROWS, MOST_REQUESTS, NUMBER = (
    tl.constexpr(int(word)) for word in (Word.LEAST_ROWS, Word.MOST_ROWS, Word.MOST_REQUESTS, Word.POLICY)
)
ALL_VOTERS, ALL_ROWS, ALL_REQUESTS, VOTING, POLICY, SQUARED = (tl.constexpr(int(word)) for word in MessageWord)


@triton.jit
def leave_message(
    sums, totals, control, message, BLOCKS: tl.constexpr, BN: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """One program: the sums and counts of all programs of the first launch -> this rank's message, zeros if its gate is
    closed."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    cols = tl.arange(0, BN)
    u, count = tl.zeros([BN], tl.int64), tl.zeros([BN], tl.int32)
    votes = (tl.load(control + GATE) != 0).to(tl.int64)
    if votes != 0:
        for block in range(BLOCKS):
            u += tl.load(sums + block * BN + cols)
            count += tl.load(totals + block * BN + cols)
    tl.store(message + cols, u)
    tl.store(message + BN + cols, ((count & (VOTER - 1)) > 0).to(tl.int64))
    words = message + 2 * BN
    number = tl.load(control + NUMBER).to(tl.int64) * votes
    tl.store(words + ALL_VOTERS, tl.max(count, axis=0).to(tl.int64) // VOTER)
    tl.store(words + ALL_ROWS, tl.load(control + ROWS).to(tl.int64) * votes)
    tl.store(words + ALL_REQUESTS, tl.load(control + REQUESTS).to(tl.int64) * votes)
    tl.store(words + VOTING, votes)
    tl.store(words + POLICY, number)
    tl.store(words + SQUARED, number * number)


@triton.jit
def all_act(control, message, BN: tl.constexpr):
    """Whether the voting ranks have the same policy, and their rows and requests are within the limits of selection."""
    words = message + 2 * BN
    rows, requests = tl.load(words + ALL_ROWS), tl.load(words + ALL_REQUESTS)
    number = tl.load(words + POLICY)
    agree = tl.load(words + VOTING) * tl.load(words + SQUARED) == number * number
    enough = (rows >= tl.load(control + LEAST_ROWS)) & (rows <= tl.load(control + MOST_ROWS))
    return (agree & enough & (requests <= tl.load(control + MOST_REQUESTS))).to(tl.int32)


@triton.jit
def votes_of_all(message, BN: tl.constexpr):
    """-> column sums int64 [BN] and counts int32 [BN] of the rows of all ranks, in the form of `add_up`"""
    cols = tl.arange(0, BN)
    any_voter = (tl.load(message + 2 * BN + ALL_VOTERS) > 0).to(tl.int32)
    kept = (tl.load(message + BN + cols) > 0).to(tl.int32)
    return tl.load(message + cols), kept + any_voter * VOTER
