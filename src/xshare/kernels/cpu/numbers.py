"""Indices into the arrays of the compiled functions: whole and real numbers of router and policy, and figures."""

from enum import IntEnum, auto

HALF = 0.5 - 1e-9  # so that rounding does not put a row that keeps exactly half below it


class Whole(IntEnum):
    TOP_K = 0
    SIGMOID = auto()  # 1: score is the sigmoid, not the softmax
    RENORMALIZE = auto()  # 1: native weights are renormalised
    RENORMALIZE_OURS = auto()  # 1: weights inside S are renormalised
    GROUPS = auto()
    KEEP_GROUPS = auto()
    WARMUP = auto()  # k0
    BUDGET = auto()  # m
    REQUEST_BUDGET = auto()  # m_r
    DEVICE_BUDGET = auto()  # m_g, -1: none
    ROUNDS = auto()  # 1: fill="rounds"
    NUM_DEVICES = auto()
    FULL = auto()  # 1: votes are scores, not native weights
    POWER = auto()
    FULL_AFTER = auto()  # FULL and POWER of the votes that S is topped up by
    POWER_AFTER = auto()
    NATIVE = auto()  # 1: every row keeps its native experts


class Real(IntEnum):
    MASS = 0  # tau, -1: none
    COVERAGE = auto()  # rho, -1: none
    PRICE = auto()  # lam, -1: none
    SCALE = auto()  # routed_scaling_factor


class Figure(IntEnum):
    """Indices into a step's figures, in the order of engines.counters.FIGURES."""

    NATIVE = 0  # experts that the voting rows would load natively
    SELECTED = auto()  # experts in S
    ACTIVE = auto()  # experts that the voting rows load
    MASS = auto()
    BELOW_HALF = auto()
    SMALLEST_KEPT = auto()
    TOP1_KEPT = auto()
    MAX_LOAD = auto()
    EXCLUDED = auto()
    MASS_SHARED = auto()  # mass of the rows that are not protected
