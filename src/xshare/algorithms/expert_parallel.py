"""Algorithms 5 and 6, expert parallelism: fill the devices evenly, each with its own best experts.

A layer is as slow as the device that loads most experts, so the budget m_g is per device. `devices` maps experts to
devices, int64 [..., N] with values below G.
"""

import torch
from torch import Tensor

from xshare.algorithms.greedy import outside


def fill_level(u: Tensor, S0: Tensor, devices: Tensor, G: int, m_g: int) -> Tensor:
    """Each device ends with max(|S0 on it|, min(m_g, its experts)): the best f(S) with MaxLoad <= m_g that keeps S0."""
    room = min(m_g, u.shape[-1]) - load(S0, devices, G)  # [..., G]
    room = room.gather(-1, devices.expand_as(u))  # on each expert's device, [..., N]
    return S0 | (rank_on_device(u, S0, devices, G) < room)


def fill_rounds(u: Tensor, S0: Tensor, devices: Tensor, G: int, m_g: int) -> Tensor:
    """Algorithm 5 as printed: while |S| < m_g * G, every device in turn adds its best remaining expert.

    The expert ranked r on its device is added in round r, which begins if |S| is still short after the r rounds before.
    """
    N = u.shape[-1]
    place = rank_on_device(u, S0, devices, G)
    added = torch.zeros_like(u).scatter_add_(-1, place.clamp(max=N - 1), (~S0).long())  # experts per round
    size_before = S0.sum(-1, keepdim=True) + added.cumsum(-1) - added  # |S| when round r begins
    return S0 | ((size_before.gather(-1, place.clamp(max=N - 1)) < min(m_g, N) * G) & ~S0)


def rank_on_device(u: Tensor, S0: Tensor, devices: Tensor, G: int) -> Tensor:
    """Rank among the experts outside S0 on the same device, 0 for the best; N for members of S0. -> int64 [..., N]"""
    order = outside(u, S0).argsort(dim=-1, descending=True, stable=True)
    candidate = ~S0.gather(-1, order)
    device = devices.expand_as(u).gather(-1, order)
    on_device = (device.unsqueeze(-1) == torch.arange(G, device=u.device)) & candidate.unsqueeze(-1)  # [..., N, G]
    seen = on_device.cumsum(-2).gather(-1, device.unsqueeze(-1)).squeeze(-1) - 1
    return torch.empty_like(order).scatter_(-1, order, seen.masked_fill(~candidate, u.shape[-1]))


def load(S: Tensor, devices: Tensor, G: int) -> Tensor:
    """Experts of S on each device, bool [..., N] -> int64 [..., G]; its maximum is MaxLoad."""
    zeros = torch.zeros(*S.shape[:-1], G, dtype=torch.int64, device=S.device)
    return zeros.scatter_add_(-1, devices.expand(S.shape), S.long())
