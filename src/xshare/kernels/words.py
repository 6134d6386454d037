"""The control words: what host and kernels both call each number that changes from step to step."""

from enum import IntEnum


class Word(IntEnum):
    """Places in Control.words, int32."""

    GATE = 0  # whether selection acts at all
    ROWS = 1  # that vote, the first ones
    REQUESTS = 2
    K0 = 3
    M = 4
    MR = 5
    MG = 6  # below zero: no device budget
    SAMPLE = 7  # whether the logits are copied aside
