"""The experts of a decode step on a CPU, compiled: every expert's weights are read once, for all of its rows.

A decode step has one to a dozen rows per loaded expert. Libraries are fast for one row, where they read the weights at
memory speed, but take up to four times as long for two, with code made for many rows. Here a row of weights stays in
the nearest cache for all rows that use it. So up to four rows cost little more than one, and a step's time depends on
the number of experts it loads.
"""

from math import exp

import numba
import numpy as np

# fastmath allows sums in any order, which vector instructions need.
jit = numba.njit(cache=True, nogil=True, fastmath=True, error_model="numpy")


@jit
def _dots(v, w, rows, count, by_v, by_w):
    """Dot products of two rows of weights v, w [d] with `count` rows [count + 1 or more, d], into by_v and by_w.

    Four rows at a time: eight sums stay in registers, with six loads for eight products. Three remaining rows are
    computed as four: as three they would cost more.
    """
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
    if i < count:  # a single row: v first, then w, because reading both at once would be slower
        a = rows[i]
        s0 = t0 = np.float32(0)
        for j in range(d):
            s0 += v[j] * a[j]
        for j in range(d):
            t0 += w[j] * a[j]
        by_v[i], by_w[i] = s0, t0


@jit
def run_experts(x, ids, weights, gate_up, down, experts, out):
    """Add the output of `experts` to out [n, D], for x [n, D], ids and weights [n, k], gate_up [E, 2F, D] and down
    [E, D, F]; all float32 but ids. The activation is SwiGLU, as in Qwen, Mixtral and OLMoE."""
    n, k = ids.shape
    D, F = x.shape[1], down.shape[2]
    row_of, weight_of = np.empty(n, np.int64), np.empty(n, np.float32)
    inputs, hidden = np.zeros((n + 1, D), np.float32), np.zeros((n + 1, F), np.float32)
    gate, up = np.empty(n + 1, np.float32), np.empty(n + 1, np.float32)
    for expert in experts:
        count = 0
        for i in range(n):
            for t in range(k):
                if ids[i, t] == expert:
                    row_of[count], weight_of[count] = i, weights[i, t]
                    for j in range(D):
                        inputs[count, j] = x[i, j]
                    count += 1
        for f in range(F):
            _dots(gate_up[expert, f], gate_up[expert, F + f], inputs, count, gate, up)
            for i in range(count):
                hidden[i, f] = gate[i] / (np.float32(1) + np.float32(exp(-gate[i]))) * up[i]
        half = (D + 1) // 2
        for j in range(half):  # two rows of weights that lie far apart are read faster than neighbours
            partner = half + j if half + j < D else j  # the middle one of an odd number has no partner
            _dots(down[expert, j], down[expert, partner], hidden, count, gate, up)
            for i in range(count):
                out[row_of[i], j] += weight_of[i] * gate[i]
                if partner > j:
                    out[row_of[i], partner] += weight_of[i] * up[i]
