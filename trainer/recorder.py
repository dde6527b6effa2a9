"""Binds the catalogue to one Prometheus registry.

What happens once in a while is counted here as it happens (`record`, `add`). What exists elsewhere anyway (the newest step, queues,
stages, devices, the process) is read when Prometheus asks, from sources that hold it in memory: no copy that could grow stale, and
no lock on a stage's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from trainer import metrics
from trainer.metrics import CATALOGUE, Metric

log = logging.getLogger(__name__)

Bound = Gauge | Counter | Histogram

# Read from sources at each scrape; all the rest of the catalogue is set by `record` and `add`.
READ_AT_SCRAPE = frozenset(
    {
        *(metrics.RUN_INFO, metrics.STATE, metrics.VERDICT, metrics.HEADROOM, metrics.LOST_DEVICE_SECONDS, metrics.START_TIME),
        *(metrics.GLOBAL_STEP, metrics.MAX_STEPS, metrics.STEPS, metrics.SAMPLES, metrics.TOKENS, metrics.LAST_STEP_TIME),
        *(metrics.LOSS, metrics.LEARNING_RATE, metrics.GRAD_NORM, metrics.POSITION_ACCURACY, metrics.ESTIMATED_ACCEPTANCE),
        *(metrics.MEASURED_ACCEPTANCE, metrics.MEASURED_POSITION, metrics.HELD_OUT_ACCEPTANCE, metrics.EVALUATION_STEP),
        *(metrics.CHECKPOINT_TIME, metrics.CHECKPOINT_STEP, metrics.RECORD_ERRORS, metrics.PROCESS_CPU, metrics.PROCESS_MEMORY),
        *(metrics.STAGE_SECONDS, metrics.STAGE_THREADS, metrics.STAGE_ITEMS, metrics.STAGE_IDLE),
        *(metrics.QUEUE_ITEMS, metrics.QUEUE_CAPACITY_ITEMS, metrics.QUEUE_BYTES, metrics.QUEUE_CAPACITY_BYTES),
        *(metrics.GPU_KERNEL_ACTIVE, metrics.GPU_MEMORY_USED, metrics.GPU_MEMORY_TOTAL, metrics.GPU_POWER, metrics.GPU_TEMPERATURE),
        metrics.GPU_SAMPLER_UP,
    }
)
# There from the start, at 0: a series born at its first increment never shows that increment to `rate()`.
_KNOWN_LABELS: Mapping[Metric, tuple[str, ...]] = {
    metrics.DROPPED: metrics.DROP_REASONS,
    metrics.SKIPPED_STEPS: metrics.SKIP_REASONS,
    metrics.CHECKPOINTS: metrics.CHECKPOINT_OUTCOMES,
    metrics.EVALUATIONS: metrics.EVALUATION_OUTCOMES,
    metrics.WATCH_SECONDS: metrics.WATCH_PARTS,
    metrics.WATCH_ERRORS: ("sampler", "http"),
}


class Reading(NamedTuple):
    """One sample of a metric that a source knows; a `value` of None means not known, and leaves the sample out."""

    metric: Metric
    value: float | None
    labels: tuple[str, ...] = ()


Source = Callable[[], Iterable[Reading]]


class Recorder:
    """The numbers of one process. Every method may be called from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry
        self._bound = {metric.name: _bind(metric, registry) for metric in CATALOGUE if metric not in READ_AT_SCRAPE}
        self._children: dict[tuple[str, tuple[str, ...]], Bound] = {}
        self._sources: list[Source] = []
        self._warned: set[str] = set()
        for metric, values in _KNOWN_LABELS.items():
            for value in values:
                self._child(metric, (value,))
        registry.register(_Families(self.families))

    def record(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a gauge, or observe a value in a histogram. `KeyError` for a metric that sources provide."""
        child = self._child(metric, labels)
        if isinstance(child, Histogram):
            child.observe(value)
        elif isinstance(child, Gauge):
            child.set(value)
        else:
            raise TypeError(f"{metric.full_name} is a {metric.kind}: use add()")

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Raise a counter. `KeyError` for a metric that sources provide."""
        child = self._child(metric, labels)
        if not isinstance(child, Counter):
            raise TypeError(f"{metric.full_name} is a {metric.kind}: use record()")
        child.inc(amount)

    def total(self, metric: Metric, *labels: str) -> float:
        """What a counter has come to."""
        return sum(sample.value for family in self._child(metric, labels).collect() for sample in family.samples)

    def read_from(self, source: Source) -> None:
        """Ask `source` at every scrape. It must answer from memory; if it raises, its numbers are left out and that is counted."""
        self._sources.append(source)

    def exposition(self, accept: str | None) -> tuple[bytes, str]:
        """Body and content type of `/metrics`, in the format that the Accept header asks for."""
        encoder, content_type = choose_encoder(accept or "")
        return encoder(self._registry), content_type

    def families(self) -> list[Family]:
        """Every metric that sources provide, with what they say now."""
        families = {metric.name: _family(metric) for metric in CATALOGUE if metric in READ_AT_SCRAPE}
        for metric, value, labels in self._readings():
            if value is not None:
                families[metric.name].add_sample(metric.full_name, dict(zip(metric.labels, labels, strict=True)), value)
        return list(families.values())

    def _readings(self) -> Iterator[Reading]:
        for source in list(self._sources):
            try:
                readings = list(source())
            except Exception as error:
                self.add(metrics.WATCH_ERRORS, 1, "http")
                self._warn_once(f"{type(error).__name__}: {error}")
            else:
                yield from readings

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            log.warning("some numbers of /metrics cannot be read, training goes on: %s", sentence)

    def _child(self, metric: Metric, labels: tuple[str, ...]) -> Bound:
        # By name, since the hash of a whole Metric costs a microsecond.
        child = self._children.get((metric.name, labels))
        if child is None:
            parent = self._bound[metric.name]
            child = parent.labels(*labels) if metric.labels else parent
            self._children[metric.name, labels] = child
        return child


class _Families(Collector):
    """What prometheus_client asks at each scrape; it does not ask when it is registered, since `describe` says nothing."""

    def __init__(self, families: Callable[[], list[Family]]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families()

    def describe(self) -> list[Family]:
        return []


def _bind(metric: Metric, registry: CollectorRegistry) -> Bound:
    name, unit = metric.full_name, _openmetrics_unit(metric)
    match metric.kind:
        case "counter":
            return Counter(name, metric.help, metric.labels, unit=unit, registry=registry)
        case "histogram":
            return Histogram(name, metric.help, metric.labels, unit=unit, registry=registry, buckets=metric.buckets)
        case "gauge":
            return Gauge(name, metric.help, metric.labels, unit=unit, registry=registry)
    raise ValueError(f"{name}: a metric of kind {metric.kind} can only come from a source")


def _family(metric: Metric) -> Family:
    """An empty family; prometheus_client wants counters and infos without their suffix."""
    name = metric.full_name.removesuffix("_total").removesuffix("_info")
    return Family(name, metric.help, metric.kind, _openmetrics_unit(metric))


def _openmetrics_unit(metric: Metric) -> str:
    """The unit where the name ends in it, as OpenMetrics demands."""
    return metric.unit if metric.unit and metric.full_name.removesuffix("_total").endswith("_" + metric.unit) else ""
