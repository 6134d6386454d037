"""Examine an engine: force the number of experts a step loads, measure what it costs, and say whether XShare can help.

`k0=0,m=M` leaves a batch M experts, whatever its router chose: the answers are nonsense, the time is real. Every run
decodes the same prompts to the same length. Sizes alternate, so that a slow spell of the machine hits all of them.
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
from xshare.latency_law import WORTH, Law, fit_law
from xshare.policy import Policy
from xshare.progress import Advance
from xshare.protected_share import protected_requests
from xshare.statistics import median_interval

FITS = 0.5  # share of the steps' variance that a law must explain
WAVES = 3  # consecutive batches per run with drafts, because requests then end at different steps


@dataclass(frozen=True)
class TimedRun:
    """One variant in one repeat, as a result file stores it."""

    point: str  # the variant's label
    batch: int
    repeat: int
    step_ms: float
    counted: dict[str, float]  # mean figures per step; empty if experts were not counted


@dataclass
class TimedVariant:
    """Native routing or a policy, measured over all repeats."""

    name: str  # of the policy
    batch: int
    step_ms: list[float] = field(default_factory=list)
    counted: list[dict[str, float]] = field(default_factory=list)  # one entry per run in which experts were counted
    protected: float = 0.0  # share of its requests
    requests: int = 0  # per run

    @property
    def label(self) -> str:
        return f"{self.name}, {self.protected:.0%} protected" if self.protected else self.name

    @property
    def ms(self) -> float:
        return median(self.step_ms)

    def mean(self, name: str) -> float | None:
        values = [figures[name] for figures in self.counted if name in figures]
        return sum(values) / len(values) if values else None

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
    by_batch: list[TimedVariant]  # native routing in smaller batches, smallest first
    top_k: int
    copy_gbps: float
    expert_bytes: int | None = None  # of one expert index, summed over all layers
    on_host: bool = False  # most experts are read over the bus; `copy_gbps` is then its speed
    protected: list[TimedVariant] = field(default_factory=list)  # the policies with some requests protected

    @property
    def law(self) -> Law:
        variants = [*self.forced, self.noop]  # all of them include the cost of selecting
        counted = [(variant.active, variant.ms) for variant in variants if variant.active is not None]
        return fit_law([active for active, _ in counted], [ms for _, ms in counted])

    @property
    def native_experts(self) -> float:
        """Experts that a native step loads. The control counts them, because an engine may count none natively."""
        experts = self.noop.active
        if experts is None:
            raise XShareError("no step was counted: decode more tokens")
        return experts

    @property
    def overhead(self) -> float:
        """Step time of the no-op control over native's."""
        return median(a / b for a, b in zip(self.noop.step_ms, self.native.step_ms, strict=True))

    @property
    def bandwidth_gbps(self) -> float | None:
        """Bandwidth at which experts are read, from the slope of the law."""
        return self.expert_bytes / self.law.b / 1e6 if self.expert_bytes and self.law.b > 0 else None

    def speedup(self, variant: TimedVariant, base: TimedVariant) -> tuple[float, float, float]:
        """How many times as fast as `base`, paired by repeat: the median and its interval."""
        return median_interval([b / a for a, b in zip(variant.step_ms, base.step_ms, strict=True)])

    def expected_gain(self, variant: TimedVariant) -> float | None:
        """The gain over native that the law predicts for the experts saved; None if they were not counted."""
        return None if variant.active is None else self.law.gain(self.native_experts, variant.active) / self.overhead


def waves(drafts: int | None) -> int:
    """How many batches of prompts `examine` needs."""
    return WAVES if drafts else 1


def forced_budgets(num_experts: int, top_k: int, count: int = 6) -> list[int]:
    """Budgets from k up to but not including N, in geometric steps."""
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
    known: Sequence[TimedRun] = (),
    keep: Callable[[list[TimedRun]], None] = lambda samples: None,
) -> Examination:
    """`prompts` are `waves` batches. `protect`: shares of protected requests with which policies are measured again.
    `known` are samples of an earlier run; `keep` receives the samples of every new repeat."""
    N, k, batches = engine.about.experts, engine.about.top_k, waves(engine.about.drafts)
    batch = len(prompts) // batches
    noop = Policy(warmup=min(1, k), batch_budget=N)
    variants: list[tuple[TimedVariant, Policy | None]] = [
        (TimedVariant("native", batch), None),
        (TimedVariant(str(noop), batch), noop),
    ]
    variants += [(TimedVariant(f"k0=0,m={m}", batch), Policy(batch_budget=m)) for m in forced_budgets(N, k)]
    variants += [(TimedVariant(str(policy), batch, requests=len(prompts)), policy) for policy in policies]
    protected_policies = [(policy, share) for policy in policies for share in protect]
    variants += [
        (TimedVariant(str(policy), batch, protected=share, requests=len(prompts)), policy)
        for policy, share in protected_policies
    ]
    variants += [(TimedVariant("native", size), None) for size in sorted({1, max(1, batch // 2)}) if size < batch]
    samples = {(sample.point, sample.batch, sample.repeat): sample for sample in known}
    # A repeat is measured completely or not at all: its times are compared with each other, so they must be of one run.
    missing = {
        repeat
        for repeat in range(1, repeats + 1)
        if any((variant.label, variant.batch, repeat) not in samples for variant, _ in variants)
    }
    for repeat in range(repeats + 1):  # repeat 0 warms up
        new_samples = []
        for variant, policy in variants if repeat % 2 else variants[::-1]:
            if repeat in missing or (repeat == 0 and missing):
                engine.use(policy, timed=True)
                run_prompts = prompts[: batches * variant.batch]
                protected = protected_requests(variant.protected, len(run_prompts)) if variant.protected else None
                run = engine.run(run_prompts, limit=tokens, batch=variant.batch, to_the_end=True, protected=protected)
                if repeat:
                    new_samples.append(timed_run(variant, repeat, run, engine))
                    samples[variant.label, variant.batch, repeat] = new_samples[-1]
            if repeat:
                sample = samples[variant.label, variant.batch, repeat]
                variant.step_ms.append(sample.step_ms)
                variant.counted += [sample.counted] if sample.counted else []
            advance(1)
        if new_samples:
            keep(new_samples)
    measured = [variant for variant, _ in variants]
    on_host = engine.about.host_layers * 2 > engine.about.layers
    parts = iter(measured)
    return Examination(
        native=next(parts),
        noop=next(parts),
        forced=list(islice(parts, len(forced_budgets(N, k)))),
        policies=list(islice(parts, len(policies))),
        protected=list(islice(parts, len(protected_policies))),
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


def timed_run(variant: TimedVariant, repeat: int, run: Run, engine: Engine) -> TimedRun:
    return TimedRun(variant.label, variant.batch, repeat, run.decode_s / run.steps * 1000, engine.stats().mean)


def copy_gbps(device: str, megabytes: int = 256) -> float:
    """Memory bandwidth of the device: bytes read and written per second by copies."""
    source = torch.ones(megabytes << 20, dtype=torch.uint8, device=device)
    return 2 * source.numel() / median(copy_seconds(source, torch.empty_like(source), 7)) / 1e9


def bus_gbps(megabytes: int = 256) -> float:
    """Bandwidth at which a GPU reads host memory."""
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


def verdict(examination: Examination) -> tuple[bool, str]:
    """Whether selection is worth it, and why."""
    law, native = examination.law, examination.native_experts
    share = law.share(native) if law.b > 0 else 0.0
    if native <= 1.5 * examination.top_k:
        return (
            False,
            f"too few rows: a step loads {native:.1f} experts, hardly more than one token's {examination.top_k}",
        )
    if share >= 0.1 and law.r2 < FITS:
        return False, f"the times lie on no line ({law}), so no gain can be promised: is the machine busy?"
    if law.b <= 0 or share < 0.1:
        return False, f"experts are {max(0.0, share):.0%} of a step ({law}): it is {bottleneck(examination)}"
    gains = [
        (gain, variant) for variant in examination.policies if (gain := examination.expected_gain(variant)) is not None
    ]
    gain, best = max(gains, key=lambda pair: pair[0], default=(0.0, None))
    if best is None or gain < WORTH:
        what = "no policy was asked for" if best is None else f"{best.name} gives {gain:.2f}x"
        return False, f"experts are {share:.0%} of a step, but {what}: too little to put answers at risk"
    return True, (
        f"experts are {share:.0%} of a step; {best.name} loads {best.active:.1f} instead of {native:.1f} and should "
        f"give {gain:.2f}x, at {best.mass or 0:.0%} of the gating weight: ask `xshare quality` about answers"
    )


def bottleneck(examination: Examination) -> str:
    """What limits a step if its experts do not, judged from smaller batches."""
    if not examination.by_batch:
        return "held up elsewhere"
    half, whole = examination.by_batch[-1], examination.native
    rows, longer = whole.batch / half.batch, whole.ms / half.ms
    if longer > 1 + 0.6 * (rows - 1):
        return f"compute-bound, {rows:.1f} times the rows take {longer:.1f} times as long"
    return f"host-bound, {half.batch} rows take {half.ms:.2f} ms and {whole.batch} take {whole.ms:.2f} ms"
