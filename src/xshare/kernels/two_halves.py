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
ALL_VOTERS, ALL_ROWS, ALL_REQUESTS, VOTING, POLICY, SQUARED = (tl.constexpr(int(said)) for said in MessageWord)


@triton.jit
def leave_message(
    sums, totals, control, message, BLOCKS: tl.constexpr, BN: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """One program: the sums and counts of all programs of the first half -> the rank's message, zero where its gate is
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
    said = message + 2 * BN
    number = tl.load(control + NUMBER).to(tl.int64) * votes
    tl.store(said + ALL_VOTERS, tl.max(count, axis=0).to(tl.int64) // VOTER)
    tl.store(said + ALL_ROWS, tl.load(control + ROWS).to(tl.int64) * votes)
    tl.store(said + ALL_REQUESTS, tl.load(control + REQUESTS).to(tl.int64) * votes)
    tl.store(said + VOTING, votes)
    tl.store(said + POLICY, number)
    tl.store(said + SQUARED, number * number)


@triton.jit
def all_act(control, message, BN: tl.constexpr):
    """Whether the ranks that vote agree on the policy, and their rows are as many as selection acts on."""
    said = message + 2 * BN
    rows, requests = tl.load(said + ALL_ROWS), tl.load(said + ALL_REQUESTS)
    number = tl.load(said + POLICY)
    agree = tl.load(said + VOTING) * tl.load(said + SQUARED) == number * number
    enough = (rows >= tl.load(control + LEAST_ROWS)) & (rows <= tl.load(control + MOST_ROWS))
    return (agree & enough & (requests <= tl.load(control + MOST_REQUESTS))).to(tl.int32)


@triton.jit
def votes_of_all(message, BN: tl.constexpr):
    """-> column sums int64 [BN] and counts int32 [BN] of the rows of all ranks, as `add_up` gives them"""
    cols = tl.arange(0, BN)
    someone = (tl.load(message + 2 * BN + ALL_VOTERS) > 0).to(tl.int32)
    wanted = (tl.load(message + BN + cols) > 0).to(tl.int32)
    return tl.load(message + cols), wanted + someone * VOTER
