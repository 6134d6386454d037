"""The measured speed of a candidate: interleaved with native routing, on the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xshare.bench.run_record import measure, warm_up
from xshare.bench.workload import Workload
from xshare.engines.base import Engine
from xshare.progress import Advance, quiet
from xshare.tune.candidate import Candidate

REPEATS = 7  # with fewer, the interval of a median says little


@dataclass(frozen=True)
class SpeedSample:
    """One repeat, as a result file stores it: tokens per second and request, of a candidate and of native routing."""

    timed: str  # the candidate
    repeat: int
    otps: float
    otps_native: float


def speed_ratios(
    engine: Engine,
    candidate: Candidate,
    workload: Workload,
    known: Sequence[SpeedSample] = (),
    keep: Callable[[SpeedSample], None] = lambda sample: None,
    advance: Advance = quiet,
) -> list[float]:
    """The candidate's tokens per second and request over native's, one ratio per repeat.

    `known` are samples of an earlier run; `keep` receives every new one.
    """
    samples = {sample.repeat: sample for sample in known if sample.timed == candidate.name}
    for repeat in (number for number in range(REPEATS) if number not in samples):
        prompts, otps = workload.prompts_of(engine, repeat), {}
        for native in (True, False) if repeat % 2 else (False, True):
            engine.use(None if native else candidate.policy, timed=True)
            warm_up(engine, workload, workload.prompts_of(engine, -1))
            otps[native] = measure(engine, workload, prompts, None, quiet)[0]["otps"]
        samples[repeat] = SpeedSample(candidate.name, repeat, otps[False], otps[True])
        keep(samples[repeat])
    advance(1)
    return [sample.otps / sample.otps_native for sample in samples.values()]
