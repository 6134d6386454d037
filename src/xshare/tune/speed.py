"""What a candidate does to the speed, measured: decoded in turns with native routing, on the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xshare.bench.sample import measure, warm
from xshare.bench.workload import Workload
from xshare.engines.base import Engine
from xshare.progress import Advance, quiet
from xshare.results import Row
from xshare.tune.scan import Candidate

REPEATS = 7  # of fewer the interval of a median says little


def ratios(
    engine: Engine,
    candidate: Candidate,
    workload: Workload,
    known: Sequence[Row] = (),
    keep: Callable[[Row], None] = lambda sample: None,
    advance: Advance = quiet,
) -> list[float]:
    """Tokens a second and request, the candidate's over native's, one for each repeat.

    `known` are samples of an earlier run, and `keep` gets every new one.
    """
    mine = {row["repeat"]: row for row in known if row.get("timed") == candidate.name}
    for repeat in (number for number in range(REPEATS) if number not in mine):
        prompts, otps = workload.prompts_of(engine, repeat), {}
        for native in (True, False) if repeat % 2 else (False, True):
            engine.use(*((None, None) if native else (candidate.policy, candidate.budgets)))
            warm(engine, workload, workload.prompts_of(engine, -1))
            otps[native] = measure(engine, workload, prompts, None, quiet)[0]["otps"]
        mine[repeat] = {"timed": candidate.name, "repeat": repeat, "otps": otps[False], "otps_native": otps[True]}
        keep(mine[repeat])
    advance(1)
    return [row["otps"] / row["otps_native"] for row in mine.values()]
