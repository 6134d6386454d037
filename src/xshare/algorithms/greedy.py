"""Algorithm 1, GreedySelect: add the experts with the largest summed score.

f(S) = sum of u[j] over S is modular, so adding the largest u one after another is optimal, and that is a sort.
"""

import torch
from torch import Tensor

ONE = 2**32  # a score of 1.0 as a fixed-point integer


def fixed_point(score: Tensor, voting: Tensor, power: int = 1) -> Tensor:
    """Scores in [0, 1], raised to `power`, as integers; zero in rows that do not vote.

    float [..., n, N], bool [..., n] -> int64 [..., n, N]. Integer sums do not depend on the order of rows, so the ranks
    of a tensor-parallel group agree bit for bit.
    """
    base = score
    for _ in range(power - 1):
        score = score * base
    fixed = (score * ONE).round_().to(torch.int64)  # exact in float32 too: ONE is a power of 2
    return fixed.mul_(voting.unsqueeze(-1))


def rank(values: Tensor) -> Tensor:
    """Rank of each entry in its row, 0 for the largest; ties go to the lower index. [..., N] -> int64 [..., N]."""
    order = values.argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(values.shape[-1], device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def best(values: Tensor, count: int) -> Tensor:
    """The `count` largest entries of each row; ties go to the lower index. [..., N] -> bool [..., N]

    By threshold rather than by sorting: sorting every row would be most of the cost of selection.
    """
    if not 0 < count < values.shape[-1]:
        return torch.full_like(values, count > 0, dtype=torch.bool)
    if count == 1:  # the common warm-up, in a third of the time; argmax returns the lowest index of a tie
        return torch.zeros_like(values, dtype=torch.bool).scatter_(-1, values.argmax(-1, keepdim=True), True)
    threshold = values.topk(count, dim=-1).values[..., -1:]
    above, level = values > threshold, values == threshold
    missing = count - above.sum(-1, keepdim=True)
    return above | (level & (level.cumsum(-1, dtype=torch.int32) <= missing))


def outside(u: Tensor, S0: Tensor) -> Tensor:
    """u with the lowest value for members of S0, so that they rank last. [..., N] -> [..., N]"""
    return u.masked_fill(S0, torch.iinfo(u.dtype).min)


def greedy(u: Tensor, S0: Tensor, budget: int) -> Tensor:
    """S0 plus the `budget` experts outside it with the largest column sums u. int64 [..., N], bool [..., N] -> bool."""
    return S0 | best(outside(u, S0), budget)


def greedy_mass(u: Tensor, S0: Tensor, tau: float) -> Tensor:
    """The threshold form: add experts in the same order while f(S) < tau * f(E)."""
    if tau >= 1:
        return torch.ones_like(S0)  # also the experts without any score
    f_S0 = (u * S0).sum(-1, keepdim=True)
    target = tau * u.sum(-1, keepdim=True).double()
    gain, order = outside(u, S0).sort(dim=-1, descending=True, stable=True)
    gain = gain.clamp(min=0)
    f_before = f_S0 + gain.cumsum(-1) - gain  # f(S) just before each expert would be added
    return S0 | torch.zeros_like(S0).scatter_(-1, order, f_before.double() < target)
