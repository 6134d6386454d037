"""The figures in SGLang's own /metrics, and at intervals a line in the log.

SGLang's processes share metrics through prometheus_client's files: the server shows what the scheduler sets.
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
        self.whole_model = {name: gauge(name, HELP[name]) for name in (PROTECTED[0], "samples")}
        self._policies: set[str] = set()
        self._counted: dict[str, int] = {}

    def show(self, stats: dict[str, Any]) -> None:
        """Set all metrics from a state's snapshot."""
        self._policies.add(stats["policy"])
        for policy in self._policies:
            self.on.labels(policy).set(float(stats["on"] and policy == stats["policy"]))
        self.cost.set(float(stats["cost"]))
        self._count(self.pruned, "", stats["steps_pruned"])
        for reason, count in stats["steps_bypassed"].items():
            self._count(self.bypassed.labels(reason), reason, count)
        if stats.get("samples"):
            for name, figure in self.by_layer.items():
                for layer, value in enumerate(stats[name]):
                    figure.labels(str(layer)).set(value)
            for name, figure in self.whole_model.items():
                figure.set(stats[name])

    def _count(self, counter: Any, key: str, now: int) -> None:
        counter.inc(now - self._counted.get(key, 0))
        self._counted[key] = now


class Reporter(threading.Thread):
    """Writes the figures to /metrics, and at intervals to the log. It never touches the device."""

    def __init__(self, state: State, metrics: Metrics | None) -> None:
        super().__init__(name="xshare-metrics", daemon=True)
        self.state, self.metrics = state, metrics

    def run(self) -> None:
        every, last, waited = self.state.settings.metrics.interval, "", 0.0
        pause = min(1.0, every)
        done = threading.Event()  # never set: the thread ends with its process
        while not done.wait(pause):
            stats = self.state.snapshot()
            if self.metrics is not None:
                self.metrics.show(stats)
            waited += pause
            if waited >= every and (text := log_line(stats)) != last:
                waited, last = 0.0, text
                log.info(text)


def start_reporter(scheduler: Any, state: State) -> None:
    """Start it on the first rank only: all ranks have the same counters."""
    if state.settings.metrics.on and torch.distributed.get_rank() == 0:
        metrics = Metrics() if scheduler.server_args.enable_metrics else None
        if metrics is not None:
            metrics.show(state.snapshot())
        Reporter(state, metrics).start()
