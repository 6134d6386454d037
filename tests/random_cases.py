"""Random cases shared by the tests: logits with ties and broken rows, routers, layouts, placements, policies."""

import math
import random
from dataclasses import dataclass, field, replace

import oracle
import torch

import xshare


@dataclass
class Case:
    logits: list
    requests: list
    router: oracle.Router
    policy: dict  # the oracle's keyword arguments
    score: str = "topk"
    devices: list = field(default_factory=list)
    G: int = 1
    protected: list = field(default_factory=list)
    cost: list | None = None

    @property
    def N(self):
        return len(self.logits[0])

    def broken(self, i):
        """Whether row i cannot be read."""
        return oracle.broken(self.logits[i])

    def tensor(self):
        return torch.tensor(self.logits, dtype=torch.float64)

    def spec(self):
        r = self.router
        if r.scoring == "softmax":
            return xshare.RouterSpec.softmax(r.k, renormalize=r.renormalize)
        return xshare.RouterSpec.sigmoid(
            r.k,
            correction_bias=None if r.bias is None else torch.tensor(r.bias, dtype=torch.float64),
            n_group=r.n_group,
            topk_group=r.topk_group,
            routed_scaling_factor=r.scale,
            renormalize=r.renormalize,
        )

    def xshare_policy(self):
        p = self.policy
        return xshare.Policy(
            warmup=p["k0"],
            batch_budget=p["m"],
            request_budget=p["m_r"],
            device_budget=p["m_g"],
            mass=p["tau"],
            coverage=p["rho"],
            price=p["lam"],
            power=p["p"],
            fill=p["fill"],
            score=self.score,
        )

    def keywords(self):
        """route()'s, beside logits, router and policy."""
        layout = xshare.BatchLayout(self.requests, protected=self.protected or None)
        return {"layout": layout, "placement": xshare.Placement.of(self.devices, self.G), "cost": self.cost}

    def for_select(self):
        """The same case without what select() does not know: a row's native experts, and a cost table."""
        policy = self.policy | {"rho": None}
        if not any(value for name, value in policy.items() if name not in ("fill", "p")):
            policy["k0"] = 1
        return replace(self, policy=policy, protected=[], cost=None)

    def oracle_route(self):
        return oracle.route(
            self.logits,
            self.router,
            requests=self.requests,
            score=self.score,
            devices=self.devices,
            G=self.G,
            policy=self.policy,
            protected=self.protected,
            cost=self.cost,
        )


def as_oracle(policy):
    """A policy's knobs as the oracle calls them."""
    return {
        "k0": policy.warmup,
        "m": policy.batch_budget,
        "m_r": policy.request_budget,
        "tau": policy.mass,
        "rho": policy.coverage,
        "lam": policy.price,
        "p": policy.power,
    }


def policy(rng, N, k):
    """A random policy of any of the six algorithms, with coverage, price and power."""
    p = {"k0": rng.choice([0, 0, 1, 1, 2, 3, N]), "m": 0, "m_r": 0, "m_g": None, "tau": None, "fill": "level"}
    p |= {"rho": None, "lam": None, "p": rng.choice([1, 1, 2, 3, 4])}
    p["k0"] = min(p["k0"], N)
    if rng.random() < 0.4:
        p["m_r"] = rng.randint(1, 5)
    if rng.random() < 0.4:
        p["rho"] = rng.choice([0.3, 0.5, 0.6, 0.7, 0.9, 1.0, rng.uniform(0.01, 1)])
    kind = rng.choice(["m", "m", "m_g", "tau", "lam", "lam"])
    if kind == "m":
        p["m"] = rng.choice([0, 1, 2, k, N // 2, N])
    elif kind == "m_g":
        p["m_g"], p["fill"] = rng.randint(0, 4), rng.choice(["level", "rounds"])
    elif kind == "lam":
        p["lam"] = rng.choice([0.04, 0.25, 0.5, 1.0, 3.0, rng.uniform(0.001, 2)])
    else:
        p["tau"] = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0, rng.random()])
    if not (p["k0"] or p["m"] or p["m_r"] or p["m_g"] or p["tau"] or p["rho"] or p["lam"]):
        p["k0"] = 1
    return p


def stairs(rng, N):
    """A cost table: what 0 to N experts cost, in steps of any height and width."""
    costs = [0.0]
    for _ in range(N):
        costs.append(costs[-1] + rng.choice([0, 0, 0, 0.1, 0.25, 1, 2.5, rng.random()]))
    return costs


def row(rng, N, ties, broken):
    if broken and rng.random() < 0.15:
        bad = rng.choice([math.nan, math.inf, -math.inf, "all"])
        return [-math.inf] * N if bad == "all" else [bad if rng.random() < 0.3 else rng.gauss(0, 2) for _ in range(N)]
    return [float(rng.randint(-2, 2)) if ties else rng.gauss(0, 2) for _ in range(N)]


def make(seed, *, ties=None, broken=None):
    rng = random.Random(seed)
    ties = rng.random() < 0.3 if ties is None else ties
    broken = rng.random() < 0.2 if broken is None else broken
    n = rng.choice([1, 2, 3, 5, 8, 13])
    if rng.random() < 0.5:
        N = rng.choice([1, 2, 3, 5, 7, 12, 17, 33])
        k = rng.randint(1, min(N, 6))
        router = oracle.Router(k, "softmax", rng.random() < 0.6)
    else:
        n_group, size = rng.choice([(1, 9), (2, 3), (4, 4), (3, 5), (8, 2), (4, 1)])
        N, topk_group = n_group * size, rng.randint(1, n_group)
        k = rng.randint(1, min(size * topk_group, 6))
        bias = [rng.gauss(0, 0.5) for _ in range(N)] if rng.random() < 0.7 else None
        router = oracle.Router(k, "sigmoid", rng.random() < 0.8, bias, n_group, topk_group, rng.choice([1.0, 2.5]))
    ids = [rng.choice([0, 3, 7, 41]) for _ in range(n)]  # gaps, and rows of a request need not be neighbours
    requests = [-1 if rng.random() < 0.2 else r for r in ids] if rng.random() < 0.7 else list(range(n))
    G = rng.choice([1, 2, 3, 5])
    devices = [rng.randrange(G) for _ in range(N)]  # uneven, some devices may be empty
    logits = [row(rng, N, ties, broken) for _ in range(n)]
    score, chosen = rng.choice(["full", "topk", "topk"]), policy(rng, N, k)
    if score == "full":
        chosen["p"] = 1
    votes = [i for i, request in enumerate(requests) if request >= 0]
    protected = [i for i in votes if rng.random() < 0.3] if rng.random() < 0.3 else []
    cost = stairs(rng, N) if rng.random() < 0.3 else None
    return Case(logits, requests, router, chosen, score, devices, G, protected, cost)
