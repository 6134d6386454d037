"""The control words: names for the numbers that change from step to step, shared by the host and the kernels."""

from enum import IntEnum


class Word(IntEnum):
    """Indices into Control.words, int32: what all layers share."""

    GATE = 0  # 0: selection does nothing; 1: it acts; 2: rows vote for the set of all ranks, but stay native
    ROWS = 1  # voting rows, which come first
    REQUESTS = 2
    K0 = 3
    MR = 4
    MG = 5  # below zero: no device budget
    ROUNDS = 6  # 1: devices are filled in rounds; 0: level
    TOPK = 7  # 1: rows vote with their native weights; 0: with all scores
    POWER = 8  # of the votes
    PROTECTED = 9  # whether any row is protected
    COST = 10  # index of this step's cost table; below zero: none
    SAMPLE = 11  # whether the logits are copied to FusedSelection.seen
    # For ranks that choose one set: the rows and requests of all ranks for which selection acts, and the policy's
    # number, which must be the same on all ranks.
    LEAST_ROWS = 12
    MOST_ROWS = 13
    MOST_REQUESTS = 14
    POLICY = 15


class MessageWord(IntEnum):
    """Indices into the end of a rank's message, int64. The messages of all ranks are summed; a rank that does not vote
    sends zeros."""

    VOTERS = 0  # voting rows with usable logits
    ROWS = 1
    REQUESTS = 2
    VOTING = 3  # ranks that vote
    POLICY = 4  # the policy's number, and its square: all ranks have one policy if and only if
    SQUARED = 5  # VOTING * (sum of squares) = (sum)^2


class LayerNumber(IntEnum):
    """Indices into the numbers that may differ by layer, float64. A threshold that is not set has no effect."""

    M = 0
    TAU = 1  # below zero: none
    RHO = 2  # zero: none
    LAM = 3  # zero: none
