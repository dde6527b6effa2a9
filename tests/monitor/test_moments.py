"""trainer/monitor/moments.py: what is written of an evaluation is read back as it was; what ended is no longer waited for."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.monitor.test_parting import FACTS
from trainer.metrics.catalogue.metric import Metric
from trainer.metrics.catalogue.stages import QUEUES, STAGE_IDLE, STAGE_ITEM_SECONDS, STAGE_RUNNING, STAGE_THREADS
from trainer.metrics.exporter import Distribution
from trainer.monitor.moments import queue_samples, stage_samples
from trainer.pipeline.stages import StageStats
from trainer.record.format import evaluated_fields, evaluation_of
from trainer.record.writer import encode

WORKING = StageStats("target", 2, 5, 8.0, 1.0, 1.0, 0.5, 0.2, 2, (0, 0, 0, 0, 5, 0), 7.0)


def event(**changed: Any) -> dict[str, Any]:
    line = {"attempt": 0, "time": 1.0, "event": "evaluated", "step": FACTS.step, "message": "Measured.", **evaluated_fields(FACTS)}
    found: dict[str, Any] = json.loads(encode(line | changed))
    return found


def test_an_evaluation_is_read_back_as_it_was() -> None:
    assert evaluation_of(event()) == FACTS
    assert evaluation_of(event(acceptance_by_position=[0.5, None])) == replace(FACTS, acceptance_by_position=(0.5, None))


@pytest.mark.parametrize("missing", ["step", "measured_length", "acceptance_by_position", "rounds"])
def test_an_event_that_is_not_whole_is_none(missing: str) -> None:
    broken = event()
    del broken[missing]
    assert evaluation_of(broken) is None


@pytest.mark.parametrize(("name", "value"), [("step", "7"), ("acceptance_by_position", 0.5), ("measured_length", "NaN")])
def test_neither_is_one_with_something_else_in_it(name: str, value: object) -> None:
    assert evaluation_of(event(**{name: value})) is None


def told(stages: list[StageStats], metric: Metric) -> dict[str, object]:
    return {reading.labels[0]: reading.value for reading in stage_samples(stages) if reading.metric is metric}


def test_a_stage_that_has_ended_is_not_stuck() -> None:
    assert told([WORKING], STAGE_IDLE) == {"dataset": 0.0, "batches": 0.0, "target": 0.5, "drafter": 0.0}
    ended = replace(WORKING, running=0, seconds_since_progress=900.0)
    assert told([ended], STAGE_IDLE)["target"] is None
    assert told([ended], STAGE_RUNNING)["target"] == 0
    assert told([ended], STAGE_THREADS)["target"] == 2, "so many there were"
    half = replace(WORKING, running=1, seconds_since_progress=900.0)
    assert told([half], STAGE_IDLE)["target"] == 900.0


def test_a_stage_that_has_not_begun_has_its_whole_histogram_at_0() -> None:
    counts = told([WORKING], STAGE_ITEM_SECONDS)
    assert counts["target"] == Distribution(WORKING.item_counts, 7.0)
    assert counts["drafter"] == Distribution((0,) * (len(STAGE_ITEM_SECONDS.buckets) + 1), 0.0)


def test_every_queue_is_told_of_from_the_start() -> None:
    assert {reading.labels for reading in queue_samples([])} == {(name,) for name in QUEUES}
