"""The control words: what host and kernels both call each number that changes from step to step."""

from enum import IntEnum


class Word(IntEnum):
    """Places in Control.words, int32: what all layers share."""

    GATE = 0  # 0: selection does nothing; 1: it acts; 2: rows vote with those of other ranks, and are left alone
    ROWS = 1  # that vote, the first ones
    REQUESTS = 2
    K0 = 3
    MR = 4
    MG = 5  # below zero: no device budget
    ROUNDS = 6  # how devices are filled: whether by rounds, or level
    TOPK = 7  # whether rows vote with their native weights, or with all scores
    POWER = 8  # of the votes
    PROTECTED = 9  # whether any row is
    COST = 10  # which cost table counts for this step; below zero: none
    SAMPLE = 11  # whether the logits are copied aside
    # Where several ranks choose together: rows and requests of all of them for which selection acts, and a number for
    # the policy, which must be everybody's.
    LEAST_ROWS = 12
    MOST_ROWS = 13
    MOST_REQUESTS = 14
    POLICY = 15


class MessageWord(IntEnum):
    """Places in what ranks that choose together add up, int64, after each expert's votes and wants. All are zero from a
    rank that does not vote."""

    VOTERS = 0  # rows that can be read
    ROWS = 1
    REQUESTS = 2
    VOTING = 3  # ranks
    POLICY = 4  # the policy's number, and its square: VOTING * sum of squares = (sum)^2 exactly where all have the same
    SQUARED = 5


class LayerNumber(IntEnum):
    """Places in what may differ by layer, float64. Thresholds that are not set lie where they do nothing."""

    M = 0
    TAU = 1  # below zero: none
    RHO = 2  # zero: none
    LAM = 3  # zero: none
