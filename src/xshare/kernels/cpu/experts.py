"""Experts of a decode step on a CPU, compiled: every expert's weights are read once, for all of its rows.

A decode step has one to a dozen rows for each expert it loads. Libraries have a fast way for one row, which reads the
weights as fast as memory gives them, and take up to four times as long for two: their other way is made for many. Here
a row of weights stays in the nearest cache for all rows of the step that want it, so that up to four of them cost
little more than one, and a step takes about as long as the experts it loads.
"""

from math import exp

import numba
import numpy as np

# Sums may be taken in any order, which is what lets a processor take several numbers at once.
jit = numba.njit(cache=True, nogil=True, fastmath=True, error_model="numpy")


@jit
def _dots(v, w, rows, count, by_v, by_w):
    """Two rows of weights [d] and `count` rows [count + 1 or more, d] -> by_v and by_w[:count]. Four rows at a time:
    eight sums, which stay in registers, and six loads for eight products; three cost more than with one for nothing."""
    d, i = len(v), 0
    while i + 3 <= count:
        a, b, c, e = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = np.float32(0)
        for j in range(d):
            p, q = v[j], w[j]
            s0 += p * a[j]
            t0 += q * a[j]
            s1 += p * b[j]
            t1 += q * b[j]
            s2 += p * c[j]
            t2 += q * c[j]
            s3 += p * e[j]
            t3 += q * e[j]
        by_v[i], by_v[i + 1], by_v[i + 2], by_v[i + 3] = s0, s1, s2, s3
        by_w[i], by_w[i + 1], by_w[i + 2], by_w[i + 3] = t0, t1, t2, t3
        i += 4
    if i + 2 <= count:
        a, b = rows[i], rows[i + 1]
        s0 = s1 = t0 = t1 = np.float32(0)
        for j in range(d):
            p, q = v[j], w[j]
            s0 += p * a[j]
            t0 += q * a[j]
            s1 += p * b[j]
            t1 += q * b[j]
        by_v[i], by_v[i + 1] = s0, s1
        by_w[i], by_w[i + 1] = t0, t1
        i += 2
    if i < count:  # a single one after the other: both at once would be read more slowly
        a = rows[i]
        s0 = t0 = np.float32(0)
        for j in range(d):
            s0 += v[j] * a[j]
        for j in range(d):
            t0 += w[j] * a[j]
        by_v[i], by_w[i] = s0, t0


@jit
def run_experts(x, ids, weights, gate_up, down, experts, out):
    """What some experts add to the rows: x [n, D], ids and weights [n, k], gate_up [E, 2F, D] and down [E, D, F], all
    float32 but ids; adds to out [n, D]. With SwiGLU, as Qwen, Mixtral and OLMoE have it."""
    n, k = ids.shape
    D, F = x.shape[1], down.shape[2]
    whose, share = np.empty(n, np.int64), np.empty(n, np.float32)
    mine, hidden = np.zeros((n + 1, D), np.float32), np.zeros((n + 1, F), np.float32)
    gate, up = np.empty(n + 1, np.float32), np.empty(n + 1, np.float32)
    for expert in experts:
        count = 0
        for i in range(n):
            for t in range(k):
                if ids[i, t] == expert:
                    whose[count], share[count] = i, weights[i, t]
                    for j in range(D):
                        mine[count, j] = x[i, j]
                    count += 1
        for f in range(F):
            _dots(gate_up[expert, f], gate_up[expert, F + f], mine, count, gate, up)
            for i in range(count):
                hidden[i, f] = gate[i] / (np.float32(1) + np.float32(exp(-gate[i]))) * up[i]
        half = (D + 1) // 2
        for j in range(half):  # two that lie far apart: memory gives them sooner than neighbours
            other = half + j if half + j < D else j  # the middle one of an odd number is alone
            _dots(down[expert, j], down[expert, other], hidden, count, gate, up)
            for i in range(count):
                out[whose[i], j] += share[i] * gate[i]
                if other > j:
                    out[whose[i], other] += share[i] * up[i]
