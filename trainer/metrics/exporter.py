"""Exports the catalogue's metrics through one Prometheus registry.

Rare events are counted here as they happen (`record`, `add`). State that exists elsewhere (the latest step, queues, stages,
devices, the process) is read at each scrape from sources that hold it in memory: no stale copy, no lock on a stage's thread.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from trainer.metrics.catalogue.index import CATALOGUE
from trainer.metrics.catalogue.metric import Metric
from trainer.metrics.catalogue.run import CHECKPOINT_SECONDS, CHECKPOINTS
from trainer.metrics.catalogue.training import (
    DROPPED,
    EVALUATION_ACCEPTED,
    EVALUATION_ROUNDS,
    EVALUATION_SECONDS,
    EVALUATIONS,
    SKIPPED_STEPS,
    STEP_SECONDS,
)
from trainer.metrics.catalogue.watching import CONTROL_REQUESTS, HTTP_REFUSED, WATCH_ERRORS, WATCH_SECONDS

log = logging.getLogger(__name__)

Bound = Gauge | Counter | Histogram

# Set by `record` and `add`; the rest of the catalogue is read from sources at each scrape.
_RECORDED = (
    *(DROPPED, SKIPPED_STEPS, STEP_SECONDS, CHECKPOINTS, CHECKPOINT_SECONDS),
    *(EVALUATIONS, EVALUATION_SECONDS, EVALUATION_ROUNDS, EVALUATION_ACCEPTED),
    *(WATCH_SECONDS, WATCH_ERRORS, HTTP_REFUSED, CONTROL_REQUESTS),
)
READ_AT_SCRAPE = frozenset(CATALOGUE) - frozenset(_RECORDED)


class Distribution(NamedTuple):
    """The contents of a histogram: `counts` per bucket, with one more for values above the last bound, and their `sum`."""

    counts: tuple[int, ...]
    sum: float


class MetricSample(NamedTuple):
    """One sample of a metric from a source; a `value` of None means unknown, and the sample is left out."""

    metric: Metric
    value: float | Distribution | None
    labels: tuple[str, ...] = ()
    """In the order of `metric.labels`, without the run's id."""


Source = Callable[[], Iterable[MetricSample]]


class Exporter:
    """The metrics of one process. Methods may be called from any thread, but from no log handler: they take Prometheus' locks.

    `run_id` is the label that tells curves of different runs apart, on metrics that are `per_run`.
    """

    def __init__(self, registry: CollectorRegistry, run_id: str = "") -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry
        self._run_id = run_id
        self._read = [metric for metric in CATALOGUE if metric in READ_AT_SCRAPE]
        self._bound = {metric.name: _bind(metric, registry) for metric in CATALOGUE if metric not in READ_AT_SCRAPE}
        self._children: dict[tuple[str, tuple[str, ...]], Bound] = {}
        self._sources: list[Source] = []
        self._warned: set[str] = set()
        for metric in _RECORDED:
            # Present from the start, at 0: `rate()` never sees the first increment of a series that appears with it.
            for labels in itertools.product(*metric.values):
                self._child(metric, labels)
        registry.register(_Families(self.families))

    def record(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a gauge, or observe a value in a histogram. `KeyError` for a metric that sources provide."""
        self.recording(metric, *labels)(value)

    def recording(self, metric: Metric, *labels: str) -> Callable[[float], None]:
        """`record` bound to one series, for a thread that should not look it up at every step."""
        child = self._child(metric, labels)
        if isinstance(child, Histogram):
            return child.observe
        if isinstance(child, Gauge):
            return child.set
        raise TypeError(f"{metric.full_name} is a {metric.kind}: use add()")

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Increase a counter. `KeyError` for a metric that sources provide."""
        self.adding(metric, *labels)(amount)

    def adding(self, metric: Metric, *labels: str) -> Callable[[float], None]:
        """`add` bound to one series."""
        child = self._child(metric, labels)
        if not isinstance(child, Counter):
            raise TypeError(f"{metric.full_name} is a {metric.kind}: use record()")
        return child.inc

    def total(self, metric: Metric, *labels: str) -> float:
        """The value of a counter."""
        return sum(sample.value for family in self._child(metric, labels).collect() for sample in family.samples)

    def register(self, source: Source) -> None:
        """Call `source` at every scrape. It must answer from memory; if it raises, its samples are left out and that is counted."""
        self._sources.append(source)

    def exposition(self, accept: str | None) -> tuple[bytes, str]:
        """Body and content type of `/metrics`: the text format if `accept` allows it, else OpenMetrics if it asks for that."""
        encoder, content_type = choose_encoder(_cheapest(accept or ""))
        return encoder(self._registry), content_type

    def families(self) -> list[Family]:
        """Every metric that sources provide, with its current samples."""
        families = {metric.name: _family(metric) for metric in self._read}
        for source in list(self._sources):
            # All samples of a source or none: half of a histogram or of a sum would be wrong rather than missing.
            try:
                found = [(families[sample.metric.name], series) for sample in source() for series in self._series(sample)]
            except Exception as error:
                self.add(WATCH_ERRORS, 1, "http")
                self._warn_once(f"{type(error).__name__}: {error}")
                continue
            for family, series in found:
                family.samples.append(series)
        return list(families.values())

    def _series(self, sample: MetricSample) -> Iterator[Sample]:
        """Prometheus' samples of one of ours: none if its value is unknown, several for a histogram."""
        metric, value, labels = sample
        if value is None:
            return
        named = dict(zip(metric.label_names, self._label_values(metric, labels), strict=True))
        if isinstance(value, Distribution):
            yield from _histogram(metric, named, value)
        else:
            yield Sample(metric.full_name, named, value)

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            log.warning("some numbers of /metrics cannot be read, training continues: %s", sentence)

    def _child(self, metric: Metric, labels: tuple[str, ...]) -> Bound:
        # By name: hashing a whole Metric costs a microsecond.
        child = self._children.get((metric.name, labels))
        if child is None:
            parent = self._bound[metric.name]
            child = parent.labels(*self._label_values(metric, labels)) if metric.label_names else parent
            self._children[metric.name, labels] = child
        return child

    def _label_values(self, metric: Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
        return (self._run_id, *labels) if metric.per_run else labels


class _Families(Collector):
    """The collector that prometheus_client calls at each scrape; the empty `describe` keeps it from calling at registration."""

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
            return Counter(name, metric.help, metric.label_names, unit=unit, registry=registry)
        case "histogram":
            return Histogram(name, metric.help, metric.label_names, unit=unit, registry=registry, buckets=metric.buckets)
        case "gauge":
            return Gauge(name, metric.help, metric.label_names, unit=unit, registry=registry)
    raise ValueError(f"{name}: a metric of kind {metric.kind} must come from a source")


def _family(metric: Metric) -> Family:
    """An empty family; prometheus_client expects counters and infos without their suffix."""
    name = metric.full_name.removesuffix("_total").removesuffix("_info")
    return Family(name, metric.help, metric.kind, _openmetrics_unit(metric))


def _cheapest(accept: str) -> str:
    """An Accept header without OpenMetrics, unless it accepts nothing else.

    Prometheus prefers OpenMetrics; its encoder takes about twice as long and, without exemplars, adds nothing.
    """
    others = [kind for kind in accept.split(",") if not kind.strip().startswith("application/openmetrics-text")]
    return ",".join(others) if any(kind.strip() for kind in others) else accept


def _histogram(metric: Metric, labels: dict[str, str], value: Distribution) -> Iterator[Sample]:
    """The series of one histogram; buckets are cumulative."""
    bounds = map(floatToGoString, (*metric.buckets, math.inf))
    for bound, count in zip(bounds, itertools.accumulate(value.counts), strict=True):
        yield Sample(f"{metric.full_name}_bucket", {**labels, "le": bound}, count)
    yield Sample(f"{metric.full_name}_count", labels, sum(value.counts))
    yield Sample(f"{metric.full_name}_sum", labels, value.sum)


def _openmetrics_unit(metric: Metric) -> str:
    """The unit if the name ends in it, as OpenMetrics requires, else ""."""
    return metric.unit if metric.unit and metric.full_name.removesuffix("_total").endswith("_" + metric.unit) else ""
