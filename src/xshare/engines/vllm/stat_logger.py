"""The entry point of the group `vllm.stat_logger_plugins`: XShare's figures in the server's own /metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from vllm.v1.metrics.loggers import StatLoggerBase

from xshare.engines.counters import PROTECTED, layer_numbers, over_workers
from xshare.engines.serving.metrics import HELP, SAMPLED
from xshare.engines.vllm.reporter import read_report, report_path, warn_once
from xshare.engines.vllm.settings import settings_of


class Figures(Collector):
    """Reads the workers' files, one per pipeline stage, whenever /metrics is scraped."""

    def __init__(self, path: Path, engine: int, stages: Sequence[Path] = ()) -> None:
        """`path`: the first stage's file. `stages`: those of the other stages."""
        self.path, self.engine, self.stages = path, str(engine), stages

    def describe(self) -> Iterator[Any]:
        return iter(())  # nothing to read yet when this is registered

    def collect(self) -> Iterator[Any]:
        paths = self.path, *self.stages
        reports = [report for path in paths if (report := read_report(path)) is not None]
        if len(reports) < len(paths):  # figures for a part of the layers would mislead
            return
        try:
            yield from list(self.families(over_workers(reports) if self.stages else reports[0]))
        except (KeyError, TypeError, ValueError, AttributeError):
            warn_once(f"{self.path} holds none of this version's figures")

    def families(self, stats: dict[str, Any]) -> Iterator[Any]:
        on = GaugeMetricFamily("xshare:on", "Whether selection is switched on", labels=["engine", "policy"])
        on.add_metric([self.engine, stats["policy"]], float(stats["on"]))
        yield on
        cost = GaugeMetricFamily("xshare:cost", "Whether sets are weighed by what they cost here", labels=["engine"])
        cost.add_metric([self.engine], float(stats["cost"]))
        yield cost
        pruned = CounterMetricFamily("xshare:steps_pruned", "Steps on which selection acted", labels=["engine"])
        pruned.add_metric([self.engine], stats["steps_pruned"])
        yield pruned
        bypassed = CounterMetricFamily(
            "xshare:steps_bypassed", "Steps left alone, by reason", labels=["engine", "reason"]
        )
        for reason, count in stats["steps_bypassed"].items():
            bypassed.add_metric([self.engine, reason], count)
        yield bypassed
        if stats.get("samples"):
            for name in (*SAMPLED, *PROTECTED[1:]):
                family = GaugeMetricFamily(f"xshare:{name}", HELP[name], labels=["engine", "layer"])
                for layer, value in zip(layer_numbers(stats["layers"]), stats[name], strict=True):
                    family.add_metric([self.engine, str(layer)], value)
                yield family
            for name in (PROTECTED[0], "samples"):
                family = GaugeMetricFamily(f"xshare:{name}", HELP[name], labels=["engine"])
                family.add_metric([self.engine], stats[name])
                yield family


class XShareStatLogger(StatLoggerBase):
    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        settings = settings_of(vllm_config.additional_config)
        if settings is not None and settings.metrics.on:
            parallel, instance = vllm_config.parallel_config, vllm_config.instance_id
            stages = range(parallel.pipeline_parallel_size)
            first, *others = (report_path(instance, stage, engine_index) for stage in stages)
            REGISTRY.register(Figures(first, engine_index, others))

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Nothing per step: figures are read when /metrics is scraped."""

    def log_engine_initialized(self) -> None:
        pass
