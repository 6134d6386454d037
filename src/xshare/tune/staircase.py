"""Measure the staircase: what a decode step takes with sets of every size, visited within one running batch.

Single runs scatter by 5 to 10 %, an expert costs less. So the policy `k0=0,m=T` changes between the steps of one batch:
a round visits all sizes T, in an order of its own because the context grows, and times are held against their round's.
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
from xshare.staircase import StairsError, clear_edges, cost_of
from xshare.statistics import median_interval

# Of a visit, and how many of them do not count: an engine schedules a step ahead, and counts experts after a change.
STEPS, SETTLING = 7, 3
SPARE = 4  # steps of a batch beside its visits: requests may begin one after another
MOST = 4096  # tokens of an answer that are tried, where requests begin far apart
COUNTED = 6  # tokens of the answers in which experts are counted
SHORT = 0.5  # experts by which a set may be less than full
LEAST = 4  # rounds
NOISE = 0.25  # of what an expert costs: the largest standard error with which rounds may end

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Visit:
    """One size in one round, as a result file has it."""

    batch: int  # rows of a step
    experts: int  # of the set
    round: int
    ms: float


@dataclass(frozen=True)
class Staircase:
    """Of steps of one number of rows: whole rounds, every size in each."""

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
        return np.array([[known[each, size] for size in self.sizes] for each in rounds])

    @property
    def rounds(self) -> int:
        return len(self.by_round)

    @cached_property
    def times(self) -> dict[int, tuple[float, float, float]]:
        """By size: ms with its interval. The median of what it takes relative to its round, times the median round."""
        middle = np.median(self.by_round, axis=1)
        relative, usual = self.by_round / middle[:, None], float(np.median(middle))
        spans = [median_interval(column.tolist()) for column in relative.T]
        return {
            size: (ms * usual, low * usual, high * usual)
            for size, (ms, low, high) in zip(self.sizes, spans, strict=True)
        }

    @property
    def expert_ms(self) -> float:
        """What one more expert costs, over all sizes."""
        return float(np.polyfit(self.sizes, [ms for ms, _, _ in self.times.values()], 1)[0])

    @property
    def noise_ms(self) -> float:
        """The largest standard error of a size's time, held against its rounds'."""
        return max(high - low for _, low, high in self.times.values()) / (2 * 1.96)

    @property
    def settled(self) -> bool:
        return self.rounds >= LEAST and self.noise_ms <= NOISE * self.expert_ms

    def cost(self, num_experts: int) -> Tensor | None:
        """The cost table; None where times do not grow with the experts."""
        try:
            return cost_of(self.sizes, [ms for ms, _, _ in self.times.values()], num_experts)
        except StairsError:
            return None

    def edges(self, num_experts: int) -> list[int]:
        """The largest sizes of stairs that are clear of the noise."""
        cost = self.cost(num_experts)
        return [] if cost is None else clear_edges(cost, self.times)


def native_experts(engine: Engine, prompts: Prompts) -> float:
    """Experts that a step of these requests loads by itself, in a layer."""
    about = engine.about
    found = count_experts(engine, prompts, Policy(warmup=min(1, about.top_k), batch_budget=about.experts))
    return found["experts_native"]


def experts_by_size(engine: Engine, prompts: Prompts, native: float, advance: Advance = quiet) -> dict[int, float]:
    """Experts that a step loads with sets of every size, from k up to what it loads natively."""
    about, found = engine.about, dict[int, float]()
    for size in range(about.top_k, min(about.experts, math.ceil(native)) + 1):
        found[size] = count_experts(engine, prompts, Policy(batch_budget=size))["experts_active"]
        advance(1)
    return found


def filled_sizes(active: dict[int, float]) -> list[int]:
    """Sizes that a batch fills: in a larger set some experts are nobody's, and take no time."""
    return [size for size, loaded in sorted(active.items()) if loaded >= size - SHORT]


def count_experts(engine: Engine, prompts: Prompts, policy: Policy) -> dict[str, float]:
    """Figures of a few steps in which all is counted, and none is timed."""
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
    """Rounds until the noise is less than a quarter of an expert, or `rounds` of them, four at least.

    `prompts_of` a round's number. `tokens` of an answer, at most. `known` are visits of an earlier run, whose rounds
    are whole, and `keep` gets those of every new round.
    """
    found = Staircase(rows, list(known))
    while found.rounds < max(rounds, LEAST) and not found.settled:
        number, order = found.rounds, list(sizes)
        random.Random(f"{seed} {rows} {number}").shuffle(order)
        engine.use(Policy(batch_budget=order[0]))
        times = time_sizes(engine, prompts_of(number), order, tokens)
        fresh = [Visit(rows, size, number, times[size]) for size in sorted(times)]
        keep(fresh)
        found = Staircase(rows, [*found.visits, *fresh])
        advance(1)
    return found


def time_sizes(engine: Engine, prompts: Prompts, order: Sequence[int], tokens: int | None = None) -> dict[int, float]:
    """ms of a step with sets of each size, in this order. Batches follow one another where answers may not be as long
    as all visits take."""
    each = 1 + (engine.about.drafts or 0)  # tokens that a step may bring a request
    room = math.inf if engine.room is None else engine.room - max(map(len, prompts))
    room = min(room, math.inf if tokens is None else tokens)
    if room < (STEPS + SPARE) * each:
        raise XShareError(
            f"an answer must have room for {(STEPS + SPARE) * each} tokens, not {room:.0f}: more --tokens, shorter "
            f"prompts, or a larger max_model_len"
        )
    times: dict[int, float] = {}
    spare = SPARE
    while waiting := [size for size in order if size not in times]:

        def before(step: int, waiting: Sequence[int] = waiting) -> None:
            place, into = divmod(step, STEPS)
            if into == 0 and place < len(waiting):
                engine.change(Policy(batch_budget=waiting[place]))

        limit = min(room, max(len(waiting), each) * STEPS + spare * each)
        run = engine.run(prompts, limit=int(limit), batch=len(prompts), to_the_end=True, before=before)
        whole = list(takewhile(lambda step: step.requests == len(prompts), run.timed))  # until the first has ended
        for place, size in enumerate(waiting[: len(whole) // STEPS]):
            steps = whole[place * STEPS : (place + 1) * STEPS][SETTLING:]
            times[size] = 1000 * median(step.seconds for step in steps)
        if waiting[0] not in times and limit < min(room, MOST):
            spare *= 4  # they begin so far apart
        elif waiting[0] not in times:
            raise XShareError(
                f"all {len(prompts)} requests were decoded together in {len(whole)} steps, and a visit takes {STEPS}: "
                f"shorter prompts may let them begin together"
            )
    return times


def staircase_rows(found: Staircase, active: dict[int, float], num_experts: int, **facts: Any) -> list[Row]:
    """As a result file has them; `facts` stand in each."""
    cost = found.cost(num_experts)
    return [
        {"batch": found.rows, "experts": size, "ms": ms, "ms_low": low, "ms_high": high, "active": active[size]}
        | {"cost": None if cost is None else float(cost[size]), **facts, "rounds": found.rounds}
        for size, (ms, low, high) in found.times.items()
    ]
