"""Measure the staircase: the time of a decode step with sets of every size, visited within one running batch.

Single runs scatter by 5 to 10 %, and an expert costs less than that. So the policy `k0=0,m=T` changes between the steps
of one batch. A round visits all sizes T in random order, because the context grows, and each time is taken relative to
its round.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from xshare.engines.base import Engine
from xshare.errors import XShareError
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.results import Row
from xshare.staircase import LEAST, StairsError, clear_edges, cost_of, expert_ms, noise_ms, settled
from xshare.statistics import median_interval

# Steps per visit, and how many of them are dropped: an engine schedules one step ahead, and counts experts after a
# change.
STEPS, SETTLING = 7, 3
SPARE = 4  # extra steps per batch, because requests may start one after another
MOST = 4096  # tokens per answer, at most, if requests start far apart
COUNTED = 6  # tokens per answer while experts are counted
SHORT = 0.5  # experts that a full set may lack on average

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Visit:
    """One size in one round, as a result file stores it."""

    batch: int  # rows per step
    experts: int  # size of the set
    round: int
    ms: float


@dataclass(frozen=True)
class Staircase:
    """Step times for one number of rows: complete rounds, every size in each."""

    rows: int
    visits: Sequence[Visit]

    @cached_property
    def sizes(self) -> list[int]:
        return sorted({visit.experts for visit in self.visits})

    @cached_property
    def by_round(self) -> NDArray[np.float64]:
        """ms, [rounds, sizes]"""
        known = {(visit.round, visit.experts): visit.ms for visit in self.visits}
        rounds = sorted({visit.round for visit in self.visits})
        return np.array([[known[number, size] for size in self.sizes] for number in rounds])

    @property
    def rounds(self) -> int:
        return len(self.by_round)

    @cached_property
    def times(self) -> dict[int, tuple[float, float, float]]:
        """By size: ms with its interval. The median time relative to its round, scaled by the median round."""
        middle = np.median(self.by_round, axis=1)
        relative, usual = self.by_round / middle[:, None], float(np.median(middle))
        spans = [median_interval(column.tolist()) for column in relative.T]
        return {
            size: (ms * usual, low * usual, high * usual)
            for size, (ms, low, high) in zip(self.sizes, spans, strict=True)
        }

    @property
    def expert_ms(self) -> float:
        """What one more expert costs: the slope over all sizes."""
        return expert_ms(self.times)

    @property
    def noise_ms(self) -> float:
        """The largest standard error of any size's time, relative to its rounds."""
        return noise_ms(self.times)

    @property
    def settled(self) -> bool:
        """Whether the times tell what an expert costs; rounds end then."""
        return self.rounds >= LEAST and settled(self.times, self.rounds)

    def cost(self, num_experts: int) -> Tensor | None:
        """The cost table; None if times do not grow with the experts."""
        try:
            return cost_of(self.sizes, [ms for ms, _, _ in self.times.values()], num_experts)
        except StairsError:
            return None

    def edges(self, num_experts: int) -> list[int]:
        """The size at the end of each stair that stands out of the noise."""
        cost = self.cost(num_experts)
        return [] if cost is None else clear_edges(cost, self.times)


def native_experts(engine: Engine, prompts: Prompts) -> float:
    """Experts per layer that a native step of these requests loads."""
    about = engine.about
    figures = count_experts(engine, prompts, Policy(warmup=min(1, about.top_k), batch_budget=about.experts))
    return figures["experts_native"]


def experts_by_size(engine: Engine, prompts: Prompts, native: float, advance: Advance = quiet) -> dict[int, float]:
    """Size of the set -> experts that a step loads, from k up to what it loads natively."""
    about, active = engine.about, dict[int, float]()
    for size in range(about.top_k, min(about.experts, math.ceil(native)) + 1):
        active[size] = count_experts(engine, prompts, Policy(batch_budget=size))["experts_active"]
        advance(1)
    return active


def filled_sizes(active: dict[int, float]) -> list[int]:
    """Sizes that a batch fills. In a larger set, no row uses some of the experts, and they take no time."""
    return [size for size, loaded in sorted(active.items()) if loaded >= size - SHORT]


def count_experts(engine: Engine, prompts: Prompts, policy: Policy) -> dict[str, float]:
    """Mean figures of a few steps that are counted and not timed."""
    engine.use(policy)
    engine.count_all(True)
    engine.run(prompts, limit=COUNTED, batch=len(prompts), to_the_end=True)
    stats = engine.stats()
    engine.count_all(False)
    if "experts_active" not in stats.mean:
        why = max(stats.steps_bypassed, key=lambda reason: stats.steps_bypassed[reason], default="nothing")
        raise XShareError(f"no step of {len(prompts)} requests was counted: the engine left them alone by {why}")
    return stats.mean


def measure_staircase(
    engine: Engine,
    prompts_of: Callable[[int], Prompts],
    rows: int,
    sizes: Sequence[int],
    *,
    rounds: int,
    tokens: int | None = None,
    seed: int = 0,
    known: Sequence[Visit] = (),
    keep: Callable[[list[Visit]], None] = lambda visits: None,
    advance: Advance = quiet,
) -> Staircase:
    """Measure rounds until the noise is below a quarter of an expert, or for `rounds` rounds; at least four.

    `prompts_of` returns the prompts of a round. `tokens` limits an answer. `known` are visits of an earlier run, in
    complete rounds; `keep` receives those of every new round.
    """
    staircase = Staircase(rows, list(known))
    while staircase.rounds < max(rounds, LEAST) and not staircase.settled:
        number, order = staircase.rounds, list(sizes)
        random.Random(f"{seed} {rows} {number}").shuffle(order)
        engine.use(Policy(batch_budget=order[0]))
        times = time_sizes(engine, prompts_of(number), order, tokens)
        new_visits = [Visit(rows, size, number, times[size]) for size in sorted(times)]
        keep(new_visits)
        staircase = Staircase(rows, [*staircase.visits, *new_visits])
        advance(1)
    return staircase


def time_sizes(engine: Engine, prompts: Prompts, order: Sequence[int], tokens: int | None = None) -> dict[int, float]:
    """ms per step with sets of each size, visited in this order. If answers cannot be as long as all visits take,
    several batches follow one another."""
    tokens_per_step = 1 + (engine.about.drafts or 0)  # tokens per request and step, at most
    room = math.inf if engine.room is None else engine.room - max(map(len, prompts))
    room = min(room, math.inf if tokens is None else tokens)
    if room < (STEPS + SPARE) * tokens_per_step:
        raise XShareError(
            f"an answer must have room for {(STEPS + SPARE) * tokens_per_step} tokens, not {room:.0f}: more --tokens, "
            f"shorter prompts, or a larger max_model_len"
        )
    times: dict[int, float] = {}
    spare = SPARE
    while waiting := [size for size in order if size not in times]:

        def before(step: int, waiting: Sequence[int] = waiting) -> None:
            index, into = divmod(step, STEPS)
            if into == 0 and index < len(waiting):
                engine.change(Policy(batch_budget=waiting[index]))

        limit = min(room, max(len(waiting), tokens_per_step) * STEPS + spare * tokens_per_step)
        run = engine.run(prompts, limit=int(limit), batch=len(prompts), to_the_end=True, before=before)
        whole = list(takewhile(lambda step: step.requests == len(prompts), run.timed))  # until the first request ends
        for index, size in enumerate(waiting[: len(whole) // STEPS]):
            steps = whole[index * STEPS : (index + 1) * STEPS][SETTLING:]
            times[size] = 1000 * median(step.seconds for step in steps)
        if waiting[0] not in times and limit < min(room, MOST):
            spare *= 4  # requests start too far apart for so few steps
        elif waiting[0] not in times:
            raise XShareError(
                f"all {len(prompts)} requests were decoded together in {len(whole)} steps, and a visit takes {STEPS}: "
                f"shorter prompts may let them begin together"
            )
    return times


def staircase_rows(staircase: Staircase, active: dict[int, float], num_experts: int, **facts: Any) -> list[Row]:
    """The rows of a result file; `facts` are added to each."""
    cost = staircase.cost(num_experts)
    return [
        {"batch": staircase.rows, "experts": size, "ms": ms, "ms_low": low, "ms_high": high, "active": active[size]}
        | {"cost": None if cost is None else float(cost[size]), **facts, "rounds": staircase.rounds}
        | {"settled": staircase.settled}
        for size, (ms, low, high) in staircase.times.items()
    ]
