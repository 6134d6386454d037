"""What the compiled functions are told, by place: whole numbers of router and policy, and real ones."""

from enum import IntEnum, auto

HALF = 0.5 - 1e-9  # rounding does not decide about a row that keeps exactly half


class Whole(IntEnum):
    TOP_K = 0
    SIGMOID = auto()  # 1: score is the sigmoid, not the softmax
    RENORMALIZE = auto()  # of native weights
    RENORMALIZE_OURS = auto()  # of the weights inside S
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
    FULL_AFTER = auto()  # the same two for what S is topped up by
    POWER_AFTER = auto()
    NATIVE = auto()  # 1: every row keeps its native experts, whatever S is


class Real(IntEnum):
    MASS = 0  # tau, -1: none
    COVERAGE = auto()  # rho, -1: none
    PRICE = auto()  # lam, -1: none
    SCALE = auto()  # routed_scaling_factor


class Figure(IntEnum):
    """What a step leaves of itself, by place: the order of engines.counting.FIGURES."""

    NATIVE = 0  # experts that the voting rows would load, that S has, that they load
    SELECTED = auto()
    ACTIVE = auto()
    MASS = auto()
    BELOW_HALF = auto()
    SMALLEST_KEPT = auto()
    TOP1_KEPT = auto()
    MAX_LOAD = auto()
    EXCLUDED = auto()
    MASS_SHARED = auto()  # of rows that are not protected
