"""Examine an engine: force the number of experts a step loads, see what it costs, and say whether XShare can help.

`k0=0,m=M` leaves a batch M experts, whatever it wants: the answers are nonsense, the time is real. Every run decodes
the same prompts to the same length, sizes in turns, so that a slow spell hits all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

import torch
from torch import Tensor

from xshare.engines.base import Engine, Run
from xshare.errors import XShareError
from xshare.latency_law import WORTH, Law, fit
from xshare.policy import Policy
from xshare.progress import Advance
from xshare.protected_share import spread
from xshare.statistics import median_interval

FITS = 0.5  # of the steps' variance that a law must explain to be one
WAVES = 3  # batches of requests that follow one another with drafts, where requests end at different steps


@dataclass(frozen=True)
class TimedRun:
    """One way to route in one repeat, as a result file has it."""

    point: str  # the way's label
    batch: int
    repeat: int
    step_ms: float
    counted: dict[str, float]  # nothing where experts were not


@dataclass
class TimedVariant:
    """One way to route, measured over all repeats."""

    name: str  # the policy's
    batch: int
    step_ms: list[float] = field(default_factory=list)
    counted: list[dict[str, float]] = field(default_factory=list)  # of the runs in which experts were counted
    protected: float = 0.0  # share of its requests that are
    requests: int = 0  # of a run

    @property
    def label(self) -> str:
        return f"{self.name}, {self.protected:.0%} protected" if self.protected else self.name

    @property
    def ms(self) -> float:
        return median(self.step_ms)

    def mean(self, name: str) -> float | None:
        found = [figures[name] for figures in self.counted if name in figures]
        return sum(found) / len(found) if found else None

    @property
    def active(self) -> float | None:
        return self.mean("experts_active")

    @property
    def mass(self) -> float | None:
        return self.mean("mass_kept")


@dataclass
class Examination:
    native: TimedVariant
    noop: TimedVariant
    forced: list[TimedVariant]
    policies: list[TimedVariant]
    by_batch: list[TimedVariant]  # natively, smaller batches first
    top_k: int
    copy_gbps: float
    expert_bytes: int | None = None  # of one expert, in all layers together
    on_host: bool = False  # whether most experts are read over the bus, whose speed is then `copy_gbps`
    protected: list[TimedVariant] = field(default_factory=list)  # the policies again, with some requests protected

    @property
    def law(self) -> Law:
        ways = [*self.forced, self.noop]  # with selection's own cost in all of them
        counted = [(way.active, way.ms) for way in ways if way.active is not None]
        return fit([active for active, _ in counted], [ms for _, ms in counted])

    @property
    def wanted(self) -> float:
        """Experts that a step loads natively: the control's, as natively an engine may count none."""
        found = self.noop.active
        if found is None:
            raise XShareError("no step was counted: decode more tokens")
        return found

    @property
    def overhead(self) -> float:
        """Of selection that changes nothing, as a ratio to native."""
        return median(a / b for a, b in zip(self.noop.step_ms, self.native.step_ms, strict=True))

    @property
    def bandwidth_gbps(self) -> float | None:
        """At which experts are read, as the law has it."""
        return self.expert_bytes / self.law.b / 1e6 if self.expert_bytes and self.law.b > 0 else None

    def faster(self, way: TimedVariant, base: TimedVariant) -> tuple[float, float, float]:
        """How many times as fast as another, repeat by repeat: the median and its interval."""
        return median_interval([b / a for a, b in zip(way.step_ms, base.step_ms, strict=True)])

    def expected(self, way: TimedVariant) -> float | None:
        """The gain over native that the experts saved should bring."""
        return None if way.active is None else self.law.gain(self.wanted, way.active) / self.overhead


def waves(drafts: int | None) -> int:
    """How many batches of prompts `examine` takes."""
    return WAVES if drafts else 1


def forced_budgets(num_experts: int, top_k: int, count: int = 6) -> list[int]:
    """Budgets from k to N, closer together where they are small."""
    steps = [round(top_k * (num_experts / top_k) ** (i / (count - 1))) for i in range(count)]
    return list(dict.fromkeys(steps[:-1]))


def examine(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    policies: Sequence[Policy],
    *,
    tokens: int = 32,
    repeats: int = 3,
    protect: Sequence[float] = (),
    advance: Advance = lambda done: None,
    kept: Sequence[TimedRun] = (),
    keep: Callable[[list[TimedRun]], None] = lambda samples: None,
) -> Examination:
    """The prompts are as many batches as `waves` says. `protect`: shares of the requests with which policies are
    measured again. `kept` are samples of an earlier run, and `keep` gets those of every new repeat."""
    N, k, batches = engine.about.experts, engine.about.top_k, waves(engine.about.drafts)
    batch = len(prompts) // batches
    noop = Policy(warmup=min(1, k), batch_budget=N)
    ways: list[tuple[TimedVariant, Policy | None]] = [
        (TimedVariant("native", batch), None),
        (TimedVariant(str(noop), batch), noop),
    ]
    ways += [(TimedVariant(f"k0=0,m={m}", batch), Policy(batch_budget=m)) for m in forced_budgets(N, k)]
    ways += [(TimedVariant(str(policy), batch, requests=len(prompts)), policy) for policy in policies]
    guarded = [(policy, share) for policy in policies for share in protect]
    ways += [
        (TimedVariant(str(policy), batch, protected=share, requests=len(prompts)), policy) for policy, share in guarded
    ]
    ways += [(TimedVariant("native", size), None) for size in sorted({1, max(1, batch // 2)}) if size < batch]
    known = {(each.point, each.batch, each.repeat): each for each in kept}
    # A repeat is measured whole, in one go: what is held against each other in it must be of one time.
    missing = {
        repeat
        for repeat in range(1, repeats + 1)
        if any((way.label, way.batch, repeat) not in known for way, _ in ways)
    }
    for repeat in range(repeats + 1):  # the first warms up
        fresh = []
        for way, policy in ways if repeat % 2 else ways[::-1]:
            if repeat in missing or (repeat == 0 and missing):
                engine.use(policy, timed=True)
                asked = prompts[: batches * way.batch]
                exact = spread(way.protected, len(asked)) if way.protected else None
                run = engine.run(asked, limit=tokens, batch=way.batch, to_the_end=True, protected=exact)
                if repeat:
                    fresh.append(timed_run(way, repeat, run, engine))
                    known[way.label, way.batch, repeat] = fresh[-1]
            if repeat:
                sample = known[way.label, way.batch, repeat]
                way.step_ms.append(sample.step_ms)
                way.counted += [sample.counted] if sample.counted else []
            advance(1)
        if fresh:
            keep(fresh)
    measured = [way for way, _ in ways]
    on_host = engine.about.host_layers * 2 > engine.about.layers
    parts = iter(measured)
    return Examination(
        native=next(parts),
        noop=next(parts),
        forced=list(islice(parts, len(forced_budgets(N, k)))),
        policies=list(islice(parts, len(policies))),
        protected=list(islice(parts, len(guarded))),
        by_batch=list(parts),
        top_k=k,
        copy_gbps=bus_gbps() if on_host else copy_gbps("cpu" if engine.about.device == "cpu" else "cuda"),
        expert_bytes=engine.about.expert_bytes,
        on_host=on_host,
    )


def count_runs(num_experts: int, top_k: int, batch: int, policies: int, repeats: int) -> int:
    """How often `examine` calls `advance`."""
    smaller = sum(size < batch for size in {1, max(1, batch // 2)})
    return (repeats + 1) * (2 + len(forced_budgets(num_experts, top_k)) + policies + smaller)


def timed_run(way: TimedVariant, repeat: int, run: Run, engine: Engine) -> TimedRun:
    return TimedRun(way.label, way.batch, repeat, run.decode_s / run.steps * 1000, engine.stats().mean)


def copy_gbps(device: str, megabytes: int = 256) -> float:
    """What the device's memory can do: bytes read and written by copies, a second."""
    source = torch.ones(megabytes << 20, dtype=torch.uint8, device=device)
    return 2 * source.numel() / median(copy_seconds(source, torch.empty_like(source), 7)) / 1e9


def bus_gbps(megabytes: int = 256) -> float:
    """At which a GPU reads host memory."""
    source = torch.ones(megabytes << 20, dtype=torch.uint8).pin_memory()
    return source.numel() / min(copy_seconds(source, torch.empty_like(source, device="cuda"), 5)) / 1e9


def copy_seconds(source: Tensor, target: Tensor, times: int) -> list[float]:
    def once() -> float:
        if target.is_cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        if target.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    once()
    return [once() for _ in range(times)]


def verdict(found: Examination) -> tuple[bool, str]:
    """Whether it is worth it, and why, in words."""
    law, wanted = found.law, found.wanted
    share = law.share(wanted) if law.b > 0 else 0.0
    if wanted <= 1.5 * found.top_k:
        return False, f"too few rows: a step loads {wanted:.1f} experts, hardly more than one token's {found.top_k}"
    if share >= 0.1 and law.r2 < FITS:
        return False, f"the times lie on no line ({law}), so no gain can be promised: is the machine busy?"
    if law.b <= 0 or share < 0.1:
        return False, f"experts are {max(0.0, share):.0%} of a step ({law}): it is {bottleneck(found)}"
    gains = [(gain, way) for way in found.policies if (gain := found.expected(way)) is not None]
    gain, best = max(gains, key=lambda pair: pair[0], default=(0.0, None))
    if best is None or gain < WORTH:
        what = "no policy was asked for" if best is None else f"{best.name} gives {gain:.2f}x"
        return False, f"experts are {share:.0%} of a step, but {what}: too little to put answers at risk"
    return True, (
        f"experts are {share:.0%} of a step; {best.name} loads {best.active:.1f} instead of {wanted:.1f} and should "
        f"give {gain:.2f}x, at {best.mass or 0:.0%} of the gating weight: ask `xshare quality` about answers"
    )


def bottleneck(found: Examination) -> str:
    """What holds a step up, if not its experts: seen from smaller batches."""
    if not found.by_batch:
        return "held up elsewhere"
    half, whole = found.by_batch[-1], found.native
    rows, longer = whole.batch / half.batch, whole.ms / half.ms
    if longer > 1 + 0.6 * (rows - 1):
        return f"compute-bound, {rows:.1f} times the rows take {longer:.1f} times as long"
    return f"host-bound, {half.batch} rows take {half.ms:.2f} ms and {whole.batch} take {whole.ms:.2f} ms"
