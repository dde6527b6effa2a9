"""The catalogue as one list, in reading order."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.metrics.catalogue import gpus, run, stages, training, watching
from trainer.metrics.catalogue.metric import Metric

GROUPS = (run, training, stages, gpus, watching)
CATALOGUE: tuple[Metric, ...] = tuple(value for group in GROUPS for value in vars(group).values() if isinstance(value, Metric))


def step_columns() -> Iterator[tuple[str, Metric]]:
    """The fields of `steps.jsonl` that are metrics of the catalogue, in order."""
    return ((metric.column, metric) for metric in CATALOGUE if metric.column)
