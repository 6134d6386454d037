"""A mixture-of-experts layer in the shape of DeepSeek-R1, spread over 8 devices, run device by device on one GPU.

Each device's part (gather its rows, up and gate product, SiLU, down product, weighted sum) is one captured graph over
its 32 experts. A `plan` says which rows go to which expert. All weights are in memory, 22.5 GB in bfloat16. An expert
has 88 MB and devices take turns, so a cache of 50 MB holds nothing of a device's experts when its turn comes again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

EXPERTS, DEVICES = 256, 8
HELD = EXPERTS // DEVICES  # experts per device: a block of neighbours
HIDDEN, WIDTH = 7168, 2048  # of the model, of an expert
REPEATS = 3
grouped_mm: Callable[..., Tensor] = getattr(F, "grouped_mm", None) or torch._grouped_mm


def most_pairs(ids: Tensor) -> int:
    """The most (row, expert) pairs that a device gets in any step. ids [..., rows, k]"""
    return int(F.one_hot(ids // HELD, DEVICES).sum((-3, -2)).max())


def plans_of(ids: Tensor, weights: Tensor, pairs: int) -> Tensor:
    """The plan of each device and step, from ids [steps, rows, k] -> int32 [steps, DEVICES, 2 * pairs + HELD].

    A plan lists the device's (row, expert) pairs in the order of experts: their rows, their weights (the bits of a
    float32), and where each expert's pairs end. An expert without pairs is an empty group of the product, and is not
    loaded. Pairs that only pad the plan belong to an additional row after the last.
    """
    steps, rows, k = ids.shape
    expert, order = ids.flatten(1).sort(
        dim=-1, stable=True
    )  # [steps, rows * k]; thereby sorted by device too, since devices hold blocks
    ends = F.one_hot(expert, EXPERTS).sum(1).view(steps, DEVICES, HELD).cumsum(-1)
    starts = ends[..., -1].cumsum(-1) - ends[..., -1]  # of a device's pairs among all, [steps, DEVICES]
    device = expert // HELD
    place = torch.arange(rows * k) - starts.gather(1, device)
    plans = torch.zeros(steps, DEVICES, 2 * pairs + HELD, dtype=torch.int32)
    plans[..., :pairs] = rows
    plans[..., 2 * pairs :] = ends
    step = torch.arange(steps).unsqueeze(1)
    plans[step, device, place] = (order // k).int()
    plans[step, device, pairs + place] = weights.flatten(1).gather(1, order).float().view(torch.int32)
    return plans


def device_part(x: Tensor, plan: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """x [rows + 1, d], up [HELD, 2 f, d], down [HELD, d, f] -> float32 [rows + 1, d].

    The last row takes the padding of the plan: it lies after the last group, where the product writes nothing.
    """
    pairs = (len(plan) - HELD) // 2
    row, weight, ends = plan[:pairs], plan[pairs : 2 * pairs].view(torch.float32), plan[2 * pairs :]
    gate, value = grouped_mm(x.index_select(0, row), up.transpose(1, 2), offs=ends).chunk(2, -1)  # [pairs, f] each
    y = grouped_mm(F.silu(gate) * value, down.transpose(1, 2), offs=ends)  # [pairs, d]
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    return out.index_add_(0, row, y * weight.unsqueeze(1))


class Layer:
    def __init__(self, hidden: int, width: int, where: str, dtype: torch.dtype = torch.bfloat16) -> None:
        def weight(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=where).normal_(0, shape[-1] ** -0.5)

        self.hidden, self.where, self.dtype = hidden, where, dtype
        self.weights = [(weight(HELD, 2 * width, hidden), weight(HELD, hidden, width)) for _ in range(DEVICES)]
        self.expert_bytes = sum(part[0].nbytes for part in self.weights[0])

    def capture(self, rows: int, pairs: int) -> None:
        """Capture the graphs for plans of this size."""
        self.x = torch.randn(rows + 1, self.hidden, device=self.where).to(self.dtype)
        self.plans = torch.zeros(DEVICES, 2 * pairs + HELD, dtype=torch.int32, device=self.where)
        self.plans[:, 2 * pairs :] = pairs  # work to capture: all pairs for the first expert
        self.calls = [self._captured(device) for device in range(DEVICES)]

    def _captured(self, device: int) -> Callable[[], Tensor]:
        """A device's part as the replay of a graph; without a GPU, as a plain call."""

        def call() -> Tensor:
            return device_part(self.x, self.plans[device], *self.weights[device])

        if self.where == "cpu":
            return call
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay

    def output(self, plans: Tensor) -> Tensor:
        """The layer's output for one step, plans [DEVICES, ...] -> float32 [rows, d]: the sum over devices."""
        self.plans.copy_(plans)
        return torch.stack([call() for call in self.calls]).sum(0)[:-1]

    def check(self, ids: Tensor, weights: Tensor, plans: Tensor) -> None:
        """Compare a step (ids [rows, k], plans [DEVICES, ...]) with a plain loop over experts in float32."""
        ids, weights, x = ids.to(self.where), weights.to(self.where), self.x[:-1].float()
        want = torch.zeros_like(x)
        for expert in sorted(set(ids.flatten().tolist())):
            up, down = (part[expert % HELD].float() for part in self.weights[expert // HELD])
            row, slot = (ids == expert).nonzero(as_tuple=True)
            gate, value = (x[row] @ up.T).chunk(2, -1)
            want.index_add_(0, row, (F.silu(gate) * value) @ down.T * weights[row, slot].unsqueeze(1))
        error = float((self.output(plans) - want).norm() / want.norm())
        if not error < 0.02:  # bfloat16 between the products costs 0.005; NaN fails too
            raise SystemExit(f"the timed layer differs from a plain loop over its experts by {error:.1%}")

    def times_us(self, plans: Tensor) -> Tensor:
        """Microseconds per device and step, methods in turns: plans [methods, steps, DEVICES, ...] -> [methods, steps,
        DEVICES], the medians of REPEATS.

        Nothing waits before the end, so the GPU always has work queued and no time includes a launch by the host. One
        uncounted step per method fills the queue.
        """
        methods, steps = plans.shape[:2]
        step_plans, targets = (
            [[list(step) for step in method] for method in plans],
            list(self.plans),
        )  # views made beforehand
        marks: dict[tuple[int, int], list[list[tuple[torch.cuda.Event, torch.cuda.Event]]]] = {}

        def turn(method: int, step: int) -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
            taken = []
            for plan, into, call in zip(step_plans[method][step], targets, self.calls, strict=True):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                into.copy_(plan)
                begin.record()
                call()
                end.record()
                taken.append((begin, end))
            return taken

        for method in range(methods):
            turn(method, 0)
        turns = [(method, step) for step in range(steps) for method in range(methods)]
        for repeat in range(REPEATS):
            for at in turns if repeat % 2 == 0 else reversed(turns):
                marks.setdefault(at, []).append(turn(*at))
        torch.cuda.synchronize()
        times = torch.empty(methods, steps, DEVICES, dtype=torch.float64)
        for at, taken in marks.items():
            us = [
                [begin.elapsed_time(end) * 1000 for begin, end in repeat_marks] for repeat_marks in taken
            ]  # [REPEATS, DEVICES]
            times[at] = torch.tensor(us, dtype=torch.float64).median(0).values
        return times
