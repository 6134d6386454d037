"""The control words: what host and kernels both call each number that changes from step to step."""

from enum import IntEnum


class Word(IntEnum):
    """Places in Control.words, int32: what all layers share."""

    GATE = 0  # whether selection acts at all
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


class Own(IntEnum):
    """Places in what may differ by layer, float64. Thresholds that are not set lie where they do nothing."""

    M = 0
    TAU = 1  # below zero: none
    RHO = 2  # zero: none
    LAM = 3  # zero: none
