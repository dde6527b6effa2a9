"""trainer/monitor/moments.py: a stage that has ended is no longer waited for."""

from dataclasses import replace

from trainer.metrics.catalogue.metric import Metric
from trainer.metrics.catalogue.stages import QUEUES, STAGE_IDLE, STAGE_ITEM_SECONDS, STAGE_RUNNING, STAGE_THREADS
from trainer.metrics.exporter import Distribution
from trainer.monitor.moments import queue_samples, stage_samples
from trainer.pipeline.stages import StageStats

WORKING = StageStats("target", 2, 5, 8.0, 1.0, 1.0, 0.5, 0.2, 2, (0, 0, 0, 0, 5, 0), 7.0)


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
