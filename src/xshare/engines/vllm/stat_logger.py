"""The entry point of the group `vllm.stat_logger_plugins`: XShare's figures in the server's own /metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from vllm.v1.metrics.loggers import StatLoggerBase

from xshare.engines.counting import layer_numbers, over_workers
from xshare.engines.vllm.metrics import PROTECTED, SAMPLED
from xshare.engines.vllm.reporter import read_report, report_path, warn_once
from xshare.engines.vllm.settings import settings_of

HELP = {
    "experts_native": "Experts a layer would load without selection, mean over sampled steps",
    "experts_selected": "Experts in the selected set, mean over sampled steps",
    "experts_active": "Experts a layer loads, mean over sampled steps",
    "mass_kept": "Share of the native gating weight whose expert is kept, mean over sampled steps",
    "rows_below_half": "Share of the voting rows that keep less than half of their native gating weight, mean over "
    "sampled steps",
    "smallest_kept": "The least share of its native gating weight that a voting row keeps, mean over sampled steps",
    "rows_protected": "Rows of protected requests in a step, mean over sampled steps",
    "experts_protected": "Experts a layer loads for protected requests alone, mean over sampled steps",
    "max_load": "Most selected experts on one rank, mean over sampled steps",
}


class Figures(Collector):
    """Reads the workers' files whenever /metrics is scraped: one of each pipeline stage."""

    def __init__(self, path: Path, engine: int, stages: Sequence[Path] = ()) -> None:
        """`stages`: the files of those after the first."""
        self.path, self.engine, self.stages = path, str(engine), stages

    def describe(self) -> Iterator[Any]:
        return iter(())  # nothing to read yet when this is registered

    def collect(self) -> Iterator[Any]:
        found = [read_report(path) for path in (self.path, *self.stages)]
        told = [each for each in found if each is not None]
        if len(told) < len(found):  # not of some layers alone
            return
        try:
            yield from list(self.families(over_workers(told) if self.stages else told[0]))
        except (KeyError, TypeError, ValueError, AttributeError):
            warn_once(f"{self.path} holds none of this version's figures")

    def families(self, found: dict[str, Any]) -> Iterator[Any]:
        on = GaugeMetricFamily("xshare:on", "Whether selection is switched on", labels=["engine", "policy"])
        on.add_metric([self.engine, found["policy"]], float(found["on"]))
        yield on
        cost = GaugeMetricFamily("xshare:cost", "Whether sets are weighed by what they cost here", labels=["engine"])
        cost.add_metric([self.engine], float(found["cost"]))
        yield cost
        pruned = CounterMetricFamily("xshare:steps_pruned", "Steps on which selection acted", labels=["engine"])
        pruned.add_metric([self.engine], found["steps_pruned"])
        yield pruned
        bypassed = CounterMetricFamily(
            "xshare:steps_bypassed", "Steps left alone, by reason", labels=["engine", "reason"]
        )
        for reason, count in found["steps_bypassed"].items():
            bypassed.add_metric([self.engine, reason], count)
        yield bypassed
        if found.get("samples"):
            for name in (*SAMPLED, PROTECTED[1]):
                family = GaugeMetricFamily(f"xshare:{name}", HELP[name], labels=["engine", "layer"])
                for layer, value in zip(layer_numbers(found["layers"]), found[name], strict=True):
                    family.add_metric([self.engine, str(layer)], value)
                yield family
            rows = GaugeMetricFamily(f"xshare:{PROTECTED[0]}", HELP[PROTECTED[0]], labels=["engine"])
            rows.add_metric([self.engine], found[PROTECTED[0]])
            yield rows


class XShareStatLogger(StatLoggerBase):
    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        settings = settings_of(vllm_config.additional_config)
        if settings is not None and settings.metrics.on:
            parallel, instance = vllm_config.parallel_config, vllm_config.instance_id
            stages = range(parallel.pipeline_parallel_size)
            first, *others = (report_path(instance, stage, engine_index) for stage in stages)
            REGISTRY.register(Figures(first, engine_index, others))

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Nothing a step: figures are read when they are asked for."""

    def log_engine_initialized(self) -> None:
        pass
