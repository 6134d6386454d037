"""The experts of an MoE layer in a CPU's decode step, compiled: an expert's weights are read once for all its tokens.

A decode step has one to a dozen tokens per active expert. Libraries compute one token at memory speed, but two tokens
take them up to four times as long as one, because their code for several tokens is made for many. Here each weight row
stays in the L1 cache for all tokens of its expert. So up to four tokens cost little more than one, and the time of a
step depends on the number of active experts.
"""

from math import exp

import numba
import numpy as np

# fastmath allows sums in any order, which vector instructions need.
jit = numba.njit(cache=True, nogil=True, fastmath=True, error_model="numpy")


@jit
def _dot_pair(v, w, inputs, count, v_out, w_out):
    """Dot products of two weight rows v, w [d] with the first `count` of inputs [count + 1 or more, d].

    They are written to v_out and w_out [count + 1 or more]; position `count` may be read and overwritten. Four tokens
    at a time: eight sums stay in registers, with six loads for eight products. Three remaining tokens are computed as
    four, which is faster than as three.
    """
    d, i = len(v), 0
    while i + 3 <= count:  # three remaining tokens too, with a fourth whose result is ignored
        x0, x1, x2, x3 = inputs[i], inputs[i + 1], inputs[i + 2], inputs[i + 3]
        v0 = v1 = v2 = v3 = w0 = w1 = w2 = w3 = np.float32(0)
        for j in range(d):
            vj, wj = v[j], w[j]
            v0 += vj * x0[j]
            w0 += wj * x0[j]
            v1 += vj * x1[j]
            w1 += wj * x1[j]
            v2 += vj * x2[j]
            w2 += wj * x2[j]
            v3 += vj * x3[j]
            w3 += wj * x3[j]
        v_out[i], v_out[i + 1], v_out[i + 2], v_out[i + 3] = v0, v1, v2, v3
        w_out[i], w_out[i + 1], w_out[i + 2], w_out[i + 3] = w0, w1, w2, w3
        i += 4
    if i + 2 <= count:
        x0, x1 = inputs[i], inputs[i + 1]
        v0 = v1 = w0 = w1 = np.float32(0)
        for j in range(d):
            vj, wj = v[j], w[j]
            v0 += vj * x0[j]
            w0 += wj * x0[j]
            v1 += vj * x1[j]
            w1 += wj * x1[j]
        v_out[i], v_out[i + 1] = v0, v1
        w_out[i], w_out[i + 1] = w0, w1
        i += 2
    if i < count:  # a single token: v, then w; reading both at once is slower
        x0 = inputs[i]
        v0 = w0 = np.float32(0)
        for j in range(d):
            v0 += v[j] * x0[j]
        for j in range(d):
            w0 += w[j] * x0[j]
        v_out[i], w_out[i] = v0, w0


@jit
def add_expert_outputs(x, topk_ids, topk_weights, gate_up, down, experts, out):
    """Add the weighted outputs of `experts` to out [n, D]. The activation is SwiGLU, as in Qwen, Mixtral and OLMoE.

    x           [n, D]      n tokens of hidden size D
    topk_ids    [n, k]      with topk_weights [n, k]; an expert that a token names twice gets the sum of both weights
    gate_up     [E, 2F, D]  E experts of intermediate size F; gate above up
    down        [E, D, F]
    experts     [any]       ids of the experts to compute, each once
    All are float32 except topk_ids and experts, which are integers.
    """
    n, k = topk_ids.shape
    D, F = x.shape[1], down.shape[2]
    token_of, weight_of = np.empty(n, np.int64), np.empty(n, np.float32)  # by position among an expert's tokens
    # n + 1: _dot_pair may read and write one position more
    inputs, intermediate = np.zeros((n + 1, D), np.float32), np.zeros((n + 1, F), np.float32)
    gate, up = np.empty(n + 1, np.float32), np.empty(n + 1, np.float32)
    for expert in experts:
        count = 0
        for i in range(n):  # gather the expert's tokens
            named = False
            for slot in range(k):
                if topk_ids[i, slot] == expert:
                    weight_of[count] = topk_weights[i, slot] + (weight_of[count] if named else np.float32(0))
                    named = True
            if named:
                token_of[count] = i
                for j in range(D):
                    inputs[count, j] = x[i, j]
                count += 1
        for f in range(F):
            _dot_pair(gate_up[expert, f], gate_up[expert, F + f], inputs, count, gate, up)
            for i in range(count):  # silu(gate) * up
                intermediate[i, f] = gate[i] / (np.float32(1) + np.float32(exp(-gate[i]))) * up[i]
        half = (D + 1) // 2
        first, second = gate, up  # buffers used again, for outputs j and partner
        for j in range(half):  # weight rows j and half + j: two rows far apart are read faster than neighbours
            # odd D: the last j is paired with itself, and its second result is dropped
            partner = half + j if half + j < D else j
            _dot_pair(down[expert, j], down[expert, partner], intermediate, count, first, second)
            for i in range(count):
                out[token_of[i], j] += weight_of[i] * first[i]
                if partner > j:
                    out[token_of[i], partner] += weight_of[i] * second[i]
