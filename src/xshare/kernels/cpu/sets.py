"""The set, compiled: column sums u, int64 [N], and the initial set -> S, bool [N]. S is changed in place."""

from math import ceil

import numpy as np

from xshare.algorithms.price import MOST, SLACK
from xshare.kernels.cpu.row import ONE, jit

FEW = 8  # up to this many experts are searched one by one; more are sorted


@jit
def size_of(S):
    size = 0
    for j in range(len(S)):
        size += S[j]
    return size


@jit
def votes_of(u, S):
    """f(S)"""
    f = np.int64(0)
    for j in range(len(u)):
        f += u[j] if S[j] else 0
    return f


@jit
def in_order(u, S):
    """The experts outside S in greedy order: the largest sum first, ties to the lower index. A merge sort, which is
    stable."""
    count = len(u) - size_of(S)
    order, merged = np.empty(count, np.int64), np.empty(count, np.int64)
    place = 0
    for j in range(len(u)):
        if not S[j]:
            order[place] = j
            place += 1
    width = 1
    while width < count:
        for begin in range(0, count, 2 * width):
            middle, end = min(begin + width, count), min(begin + 2 * width, count)
            a, b = begin, middle
            for place in range(begin, end):
                if b >= end or (a < middle and u[order[a]] >= u[order[b]]):
                    merged[place] = order[a]
                    a += 1
                else:
                    merged[place] = order[b]
                    b += 1
        order, merged = merged, order
        width *= 2
    return order


@jit
def add_best(u, S, budget):
    """Algorithm 1: add the `budget` experts outside S with the largest sums."""
    if budget > FEW:
        order = in_order(u, S)
        for place in range(min(budget, len(order))):
            S[order[place]] = True
        return
    for _ in range(budget):
        best = -1
        for j in range(len(u)):
            if not S[j] and (best < 0 or u[j] > u[best]):
                best = j
        if best < 0:
            return
        S[best] = True


@jit
def add_mass(u, S, tau):
    """Algorithm 1's threshold form: add experts while f(S) < tau * f(E)."""
    total, f = np.int64(0), votes_of(u, S)
    for j in range(len(u)):
        total += u[j]
    order = in_order(u, S)
    for place in range(len(order)):
        if float(f) >= tau * float(total) and tau < 1:
            return
        S[order[place]] = True
        f += u[order[place]]


@jit
def add_worth(u, S, lam):
    """Add every expert whose votes reach lam."""
    price = min(ceil(lam * ONE), float(MOST))
    for j in range(len(u)):
        if float(u[j]) >= price:
            S[j] = True


@jit
def add_worth_by_cost(u, S, lam, cost):
    """Add as many experts as maximise (votes of S) - lam * c[|S|]; ties go to fewer."""
    order, size, votes = in_order(u, S), size_of(S), votes_of(u, S)
    best, most = 0, np.int64(0)
    for added in range(len(order) + 1):
        if added:
            votes += u[order[added - 1]]
        value = votes - np.int64(min(np.rint(lam * cost[size + added] * ONE), float(MOST)))
        if added == 0 or value > most:
            best, most = added, value
    for place in range(best):
        S[order[place]] = True


@jit
def snap(u, S, cost):
    """Fill S up to the end of its stair with the next experts that have votes."""
    order, size, edge = in_order(u, S), size_of(S), -1
    for s in range(len(cost)):
        edge += cost[s] <= cost[size] + SLACK
    for place in range(max(0, min(edge - size, len(order)))):
        S[order[place]] = u[order[place]] > 0


@jit
def fill_devices(u, S, devices, num_devices, m_g, rounds):
    """Algorithms 5 and 6: fill each device up to m_g, level, or in rounds as printed."""
    order, size, most = in_order(u, S), size_of(S), min(m_g, len(u))
    held = np.zeros(num_devices, np.int64)
    for j in range(len(u)):
        held[devices[j]] += S[j]
    turn = np.zeros(num_devices, np.int64)
    place = np.empty(len(order), np.int64)  # on its device
    added = np.zeros(len(u) + 1, np.int64)  # by the rounds before round r
    for i in range(len(order)):
        place[i] = turn[devices[order[i]]]
        turn[devices[order[i]]] += 1
        added[place[i] + 1] += 1
    for r in range(1, len(added)):
        added[r] += added[r - 1]
    for i in range(len(order)):
        j = order[i]
        if rounds:
            S[j] = size + added[place[i]] < most * num_devices
        else:
            S[j] = place[i] < most - held[devices[j]]


@jit
def top_up(u, S, k):
    add_best(u, S, max(0, k - size_of(S)))
