"""The figures in SGLang's own /metrics, and now and then a line in the log.

SGLang's processes share their metrics by prometheus_client's files: what the scheduler sets, the server shows.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import torch.distributed

from xshare.engines.counters import PROTECTED
from xshare.engines.serving.metrics import HELP, SAMPLED, log_line
from xshare.engines.serving.state import State

log = logging.getLogger("xshare.sglang")


class Metrics:
    def __init__(self) -> None:
        from prometheus_client import Counter, Gauge

        def gauge(name: str, help: str, *labels: str) -> Any:
            return Gauge(f"xshare:{name}", help, labels, multiprocess_mode="mostrecent")

        self.on = gauge("on", "Whether selection is switched on", "policy")
        self.cost = gauge("cost", "Whether sets are weighed by what they cost here")
        self.pruned = Counter("xshare:steps_pruned", "Steps on which selection acted")
        self.bypassed = Counter("xshare:steps_bypassed", "Steps left alone, by reason", ["reason"])
        self.by_layer = {name: gauge(name, HELP[name], "layer") for name in (*SAMPLED, *PROTECTED[1:])}
        self.of_all = {name: gauge(name, HELP[name]) for name in (PROTECTED[0], "samples")}
        self._policies: set[str] = set()
        self._counted: dict[str, int] = {}

    def show(self, found: dict[str, Any]) -> None:
        """A state's snapshot."""
        self._policies.add(found["policy"])
        for policy in self._policies:
            self.on.labels(policy).set(float(found["on"] and policy == found["policy"]))
        self.cost.set(float(found["cost"]))
        self._count(self.pruned, "", found["steps_pruned"])
        for reason, count in found["steps_bypassed"].items():
            self._count(self.bypassed.labels(reason), reason, count)
        if found.get("samples"):
            for name, figure in self.by_layer.items():
                for layer, value in enumerate(found[name]):
                    figure.labels(str(layer)).set(value)
            for name, figure in self.of_all.items():
                figure.set(found[name])

    def _count(self, counter: Any, key: str, now: int) -> None:
        counter.inc(now - self._counted.get(key, 0))
        self._counted[key] = now


class Figures(threading.Thread):
    """It never touches the device."""

    def __init__(self, state: State, metrics: Metrics | None) -> None:
        super().__init__(name="xshare-metrics", daemon=True)
        self.state, self.metrics = state, metrics

    def run(self) -> None:
        every, last, waited = self.state.settings.metrics.interval, "", 0.0
        pause = min(1.0, every)
        done = threading.Event()  # nobody sets it: the thread ends with its process
        while not done.wait(pause):
            found = self.state.snapshot()
            if self.metrics is not None:
                self.metrics.show(found)
            waited += pause
            if waited >= every and (text := log_line(found)) != last:
                waited, last = 0.0, text
                log.info(text)


def start_figures(scheduler: Any, state: State) -> None:
    """On the first rank: all have counted the same."""
    if state.settings.metrics.on and torch.distributed.get_rank() == 0:
        metrics = Metrics() if scheduler.server_args.enable_metrics else None
        if metrics is not None:
            metrics.show(state.snapshot())
        Figures(state, metrics).start()
