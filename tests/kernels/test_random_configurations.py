"""The fused selection against the reference, over random policies, logits and layouts of many kernels."""

import functools
import random
import warnings
from dataclasses import dataclass

import pytest
import torch
from one_selection import CASES, DEVICE, GPU, fused, in_doubt, layout_of, make
from random_cases import stairs

import xshare
from xshare import Placement, Policy, RouterSpec
from xshare.kernels.limits import THRESHOLDS, thresholds_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with NaN as a GPU does


@dataclass(frozen=True)
class Kernel:
    """What a kernel is compiled for. On a GPU each of these takes seconds, each case of it none."""

    N: int
    n: int
    dtype: torch.dtype = torch.float32
    router: str = "softmax"  # or plain, which is not renormalised, or sigmoid, or groups
    each: int = 0  # rows most requests have; 0 where requests do not matter
    devices: int = 0  # 0 where devices do not matter
    top_k: int = 4

    def spec(self):
        if self.router in ("softmax", "plain"):
            return RouterSpec.softmax(self.top_k, renormalize=self.router == "softmax")
        bias = torch.randn(self.N, generator=torch.Generator().manual_seed(self.N)) * 0.3
        groups = {"n_group": 4, "topk_group": 2} if self.router == "groups" else {}
        return RouterSpec.sigmoid(self.top_k, correction_bias=bias, **groups)


BF16, FP16 = torch.bfloat16, torch.float16
KERNELS = [
    Kernel(1, 3, top_k=1),
    Kernel(5, 1, BF16),
    Kernel(16, 5, router="groups"),
    Kernel(17, 13, each=4),
    Kernel(32, 16, BF16, each=4),
    Kernel(60, 2, FP16, "sigmoid"),
    Kernel(60, 8, devices=3),
    Kernel(64, 13, BF16, "sigmoid", each=4, devices=8),
    Kernel(128, 16, BF16),
    Kernel(64, 16, BF16, "plain"),
    Kernel(128, 16, each=4),
    Kernel(33, 24, each=3),
    Kernel(20, 20, torch.float32, "sigmoid", devices=2),
]
LARGE = [
    Kernel(33, 40, each=3),
    Kernel(20, 90, torch.float32, "sigmoid", devices=2),
    Kernel(128, 64, BF16, top_k=8),
    Kernel(128, 64, BF16, each=4),
    Kernel(256, 16, BF16, "groups", top_k=8),
    Kernel(256, 64, BF16, "sigmoid", top_k=8),
    Kernel(256, 100, FP16, "groups", each=8, top_k=8),
    Kernel(256, 256, each=4, devices=8, top_k=8),
    Kernel(288, 33, BF16, top_k=8),
    Kernel(384, 64, torch.float32, "sigmoid", devices=8, top_k=8),
    Kernel(512, 64, BF16, top_k=8),
    Kernel(512, 256, BF16, each=4),
]


def case(kernel, seed):
    """Policy, logits and layout for a kernel, all drawn from the seed."""
    rng = random.Random(seed)
    N, n = kernel.N, kernel.n
    fields = {"warmup": rng.randint(0, min(3, N))}
    if kernel.each and rng.random() < 0.7:
        fields["request_budget"] = rng.randint(1, 4)
    kind = rng.choice(["m", "m", "tau", "lam", "lam", "mg" if kernel.devices else "m"])
    if kind == "m":
        fields["batch_budget"] = rng.choice([0, 1, 3, kernel.top_k, N // 2, N])
    elif kind == "tau":
        fields["mass"] = rng.choice([0.1, 0.5, 0.9, 1.0])
    elif kind == "lam":
        fields["price"] = rng.choice([0.03, 0.2, 0.7, rng.uniform(0.001, 2)])
    else:
        fields |= {"device_budget": rng.randint(0, 4), "fill": rng.choice(["level", "rounds"])}
    if rng.random() < 0.4:
        fields["coverage"] = rng.choice([0.55, 0.7, 0.9, 1.0, rng.uniform(0.05, 1)])
    if not any(value for name, value in fields.items() if name != "fill"):
        fields["warmup"] = 1
    fields["score"] = rng.choice(["full", "topk", "topk"])
    if fields["score"] == "topk":
        fields["power"] = rng.choice([1, 1, 2, 3, 4])
    voting = rng.choice([n, rng.randint(0, n)])
    starts = [0]
    while starts[-1] < voting:
        starts.append(min(voting, starts[-1] + rng.choice([1, 2, 3, 4, 4, 4, 11])))  # not only `each` rows
    logits = (torch.randn(n, N, generator=torch.Generator().manual_seed(seed + 1)) * 2).to(kernel.dtype)
    if rng.random() < 0.2:
        logits[rng.randrange(n)] = rng.choice([torch.nan, torch.inf, -torch.inf])
    if rng.random() < 0.2:
        logits[rng.randrange(n), rng.randrange(N) :] = -torch.inf
    G = max(1, kernel.devices)
    placement = Placement.of([(7 * j) % G if j % 5 else 0 for j in range(N)], G)  # uneven
    protected = [row for row in range(voting) if rng.random() < 0.2] if rng.random() < 0.2 else []
    cost = stairs(rng, N) if rng.random() < 0.4 else None
    return Policy(**fields), logits, starts, placement, protected, cost


def masked_logits(logits, S):
    """Outside S the lowest value, and -inf inside it above that: a row with few logits must not leave S."""
    lowest = torch.finfo(logits.dtype).min
    return logits.masked_fill(logits == -torch.inf, lowest / 2).masked_fill(~S, lowest)


ALL = KERNELS + (LARGE if GPU else [])


@functools.cache  # compared once, whichever of the tests below asks first
def left_out_of(kernel):
    """All cases of a kernel equal the reference -> the seeds of those that do not, a decision being in doubt."""
    router, by_thresholds, left_out = kernel.spec(), {}, []
    for seed in range(CASES):
        policy, logits, starts, placement, protected, cost = case(kernel, seed)
        layout = layout_of(len(logits), starts, protected)
        want = xshare.route(logits, router, policy, layout=layout, placement=placement, cost=cost)
        # One selection follows all policies; half of the cases have one that was made for their own, where making it
        # costs nothing.
        thresholds = THRESHOLDS if GPU or seed % 2 else thresholds_of([policy])
        if thresholds not in by_thresholds:
            tables = torch.zeros(2, kernel.N + 1, dtype=torch.float64, device=DEVICE)
            devices = placement if kernel.devices else None
            options = {"placement": devices, "rows_per_request": kernel.each, "cost": tables, "protects": True}
            by_thresholds[thresholds] = make(router, logits, **options, thresholds=thresholds)
        selection = by_thresholds[thresholds]
        if cost is not None:
            selection.cost[1] = torch.tensor(cost, dtype=torch.float64)
        table = None if cost is None else 1
        got, masked = fused(router, policy, logits, starts, selection, protected=protected, table=table)
        if not torch.equal(got.keep.cpu(), want.selected):
            assert in_doubt(router, policy, logits, layout, placement, cost), (seed, str(policy))
            left_out.append(seed)
            continue
        assert torch.equal(masked.nan_to_num(7), masked_logits(logits, want.selected).nan_to_num(7)), seed
    return left_out


@pytest.mark.parametrize("kernel", ALL, ids=str)
def test_random_configurations_equal_the_reference(kernel):
    assert len(left_out_of(kernel)) < CASES / 4  # of one kernel; fewer of all: below


def test_few_configurations_are_left_out():
    """Decisions within the margin are counted, and rare."""
    left_out = {kernel: seeds for kernel in ALL if (seeds := left_out_of(kernel))}
    count = sum(map(len, left_out.values()))
    warnings.warn(f"{count} configurations were left out within the margin", stacklevel=1)
    assert count <= CASES * len(KERNELS) // 100, left_out
