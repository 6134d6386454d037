"""An independent oracle: docs/algorithms.md, sections 3 to 8, in plain Python, on lists, one expert at a time.

It imports nothing of xshare. Slow and literal on purpose. `select` and `route` must agree with it exactly.
"""

import math

ONE = 2**32


def top(values, count, among=None):
    """The `count` best indices, best first; ties to the lower index."""
    among = range(len(values)) if among is None else among
    return sorted(among, key=lambda j: (-values[j], j))[:count]


def broken(row):
    return any(math.isnan(x) or x == math.inf for x in row) or all(x == -math.inf for x in row)


def vote(score, power):
    """A score to a power, by multiplication, as an integer."""
    if score == -math.inf:
        return 0
    value = score
    for _ in range(power - 1):
        value *= score
    return round(value * ONE)


def column_sums(scores, rows, power=1):
    N = len(scores[0]) if scores else 0
    return [sum(vote(scores[i][j], power) for i in rows) for j in range(N)]


def greedy(u, S0, budget):
    S = set(S0)
    while budget > 0 and len(S) < len(u):
        S.add(top(u, 1, [j for j in range(len(u)) if j not in S])[0])
        budget -= 1
    return S


def greedy_mass(u, S0, tau):
    if tau == 1:
        return set(range(len(u)))
    S = set(S0)
    while len(S) < len(u) and sum(u[j] for j in S) < tau * sum(u):
        S.add(top(u, 1, [j for j in range(len(u)) if j not in S])[0])
    return S


def covering(ids, weights, rho):
    """A row's native experts, best first, as long as those before hold less than rho of its weight."""
    fixed = [round(w * ONE) for w in weights]
    return {j for place, j in enumerate(ids) if rho == 1 or sum(fixed[:place]) < rho * sum(fixed)}


def price(u, S0, lam, cost):
    if cost is None:
        return set(S0) | {j for j in range(len(u)) if u[j] >= math.ceil(lam * ONE)}
    value = {}  # of every size from |S0| up
    for size in range(len(S0), len(u) + 1):
        value[size] = sum(u[j] for j in greedy(u, S0, size - len(S0))) - round(lam * cost[size] * ONE)
    return greedy(u, S0, min(s for s in value if value[s] == max(value.values())) - len(S0))


def snap(u, S, cost):
    edge = max(size for size in range(len(u) + 1) if cost[size] <= cost[len(S)] + 0.25)
    return S | {j for j in greedy(u, S, edge - len(S)) if u[j] > 0}


def fill_rounds(u, S0, devices, G, m_g):
    S = set(S0)
    while len(S) < m_g * G:
        grew = False
        for d in range(G):
            rest = [j for j in range(len(u)) if devices[j] == d and j not in S]
            if rest:
                S.add(top(u, 1, rest)[0])
                grew = True
        if not grew:
            break
    return S


def fill_level(u, S0, devices, G, m_g):
    S = set(S0)
    for d in range(G):
        while sum(devices[j] == d for j in S) < m_g:
            rest = [j for j in range(len(u)) if devices[j] == d and j not in S]
            if not rest:
                break
            S.add(top(u, 1, rest)[0])
    return S


def select(
    scores, N, *, choice, requests, k0=0, m=0, m_r=0, m_g=None, tau=None, rho=None, lam=None, p=1, fill="level",
    devices=None, G=1, native=None, protected=(), cost=None,
):  # fmt: skip
    """S, as a set. `choice[i]` maps the experts row i may take to what ranks them, `native[i]` are its ids, weights."""
    rows = [i for i in range(len(scores)) if requests[i] >= 0]
    u = column_sums(scores, rows, p) if rows else [0] * N
    S = set()
    for r in {requests[i] for i in rows}:
        own_rows = [i for i in rows if requests[i] == r]
        S_r = set()
        for i in own_rows:
            S_r |= set(sorted(choice[i], key=lambda j: (-choice[i][j], j))[:k0])
            if rho is not None:
                S_r |= covering(*native[i], rho)
            if i in protected:
                S_r |= set(native[i][0])
        if m_r:
            S_r = greedy(column_sums(scores, own_rows, p), S_r, m_r)
        S |= S_r
    if m_g is not None:
        return (fill_level if fill == "level" else fill_rounds)(u, S, devices, G, m_g)
    if lam is not None:
        return price(u, S, lam, cost)
    S = greedy(u, S, m) if tau is None else greedy_mass(u, S, tau)
    return S if cost is None else snap(u, S, cost)


class Router:
    def __init__(self, k, scoring="softmax", renormalize=True, bias=None, n_group=1, topk_group=1, scale=1.0):
        self.k, self.scoring, self.renormalize, self.bias = k, scoring, renormalize, bias
        self.n_group, self.topk_group, self.scale = n_group, topk_group, scale

    def score(self, row):
        if self.scoring == "softmax":
            high = max(row)
            e = [math.exp(x - high) for x in row]
            total = math.fsum(e)
            return [x / total for x in e]
        return [1 / (1 + math.exp(-x)) if x > -700 else 0.0 for x in row]

    def choice(self, row):
        if self.scoring == "softmax":
            return list(row)
        return [s + (self.bias[j] if self.bias else 0) for j, s in enumerate(self.score(row))]

    def limit_groups(self, choice, among):
        """Experts of `among` that the group rule leaves."""
        if self.n_group == 1:
            return list(among)
        size = len(choice) // self.n_group
        groups = [[j for j in among if j // size == g] for g in range(self.n_group)]
        value = [sum(choice[j] for j in top(choice, 2, g)) if g else -math.inf for g in groups]
        return [j for g in top(value, self.topk_group) for j in groups[g]]

    def route(self, row, S, native=()):
        """(ids, weights) of one readable row inside S, before scaling. Its `native` experts in S keep their slots."""
        choice = self.choice(row)
        ids = [j for j in native if j in S]
        rest = [j for j in self.limit_groups(choice, sorted(S)) if j not in ids]
        ids = top(choice, self.k, ids + top(choice, self.k - len(ids), rest))
        raw = [self.score(row)[j] for j in ids]
        if self.renormalize:
            high = max(row[j] for j in ids)
            if high == -math.inf:  # nothing but -inf left for this row: equal weights, never NaN
                raw = [1.0] * len(ids)
            elif self.scoring == "softmax":  # the same ratio, and no underflow where S misses the row's best by far
                raw = [math.exp(row[j] - high) for j in ids]
            raw = [w / math.fsum(raw) for w in raw]
        pad = self.k - len(ids)
        return ids + ids[:1] * pad, raw + [0.0] * pad


def route(logits, router, *, requests, score="topk", devices=None, G=1, policy, protected=(), cost=None):
    N, k = len(logits[0]), router.k
    everything = range(N)
    bad = [broken(row) for row in logits]
    clean = [[0.0] * N if b else row for row, b in zip(logits, bad, strict=True)]
    native = [router.route(row, everything) for row in clean]
    votes = [r if not b else -1 for r, b in zip(requests, bad, strict=True)]
    rows = [i for i, r in enumerate(votes) if r >= 0]
    scores = [router.score(row) for row in clean]
    if score == "topk":
        scores = [[0.0] * N for _ in clean]
        for i, (ids, weights) in enumerate(native):
            for j, w in zip(ids, weights, strict=True):
                scores[i][j] += w
    choices = [router.choice(row) for row in clean]
    choice = [{j: c[j] for j in router.limit_groups(c, everything)} for c in choices]
    u = column_sums(scores, rows, policy.get("p", 1))
    S = select(
        scores, N, choice=choice, requests=votes, devices=devices, G=G, native=native, protected=protected, cost=cost,
        **policy,
    )  # fmt: skip
    S = greedy(u, S, k - len(S)) if rows else set(everything)
    ids, weights = [], []
    for i, row in enumerate(clean):
        row_ids, row_weights = (top(u, k, sorted(S)), [1 / k] * k) if bad[i] else router.route(row, S, native[i][0])
        ids.append(row_ids)
        weights.append([w * router.scale for w in row_weights])
    total = math.fsum(w for i in rows for w in native[i][1])
    kept = math.fsum(w for i in rows for j, w in zip(*native[i], strict=True) if j in S)
    devices = devices or [0] * N

    def share(i):
        """The share of its native weight that row i keeps."""
        whole = math.fsum(native[i][1])
        return math.fsum(w for j, w in zip(*native[i], strict=True) if j in S) / whole if whole else 1.0

    return {
        "ids": ids,
        "weights": weights,
        "selected": S,
        "active": {j for i in rows for j in ids[i]},
        "active_native": {j for i in rows for j in native[i][0]},
        "mass": kept / total if total else 1.0,
        "below_half": sum(share(i) < 0.5 for i in rows) / len(rows) if rows else 0.0,
        "near_half": any(abs(share(i) - 0.5) < 1e-12 for i in rows),
        "smallest_kept": min((share(i) for i in rows), default=1.0),
        "top1_kept": sum(native[i][0][0] in S for i in rows) / len(rows) if rows else 1.0,
        "max_load": max(sum(devices[j] == d for j in S) for d in range(G)),
        "excluded": sum(b and r >= 0 for b, r in zip(bad, requests, strict=True)),
    }
