"""trainer/monitor/collectors.py: what /metrics says of a state, of stages and of queues."""

from dataclasses import make_dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.watched import RUN, STEP
from trainer.metrics.catalogue import run as run_metrics
from trainer.metrics.catalogue.metric import Metric
from trainer.metrics.catalogue.stages import QUEUES, STAGE_IDLE, STAGE_ITEM_SECONDS, STAGE_RUNNING, STAGE_THREADS, STAGES
from trainer.metrics.catalogue.watching import RECORD_ERRORS
from trainer.metrics.exporter import Distribution, MetricSample
from trainer.monitor import collectors
from trainer.monitor.collectors import queue_samples, run_samples, stage_samples, step_samples, verdict_samples
from trainer.monitor.rates import Counts, Rates
from trainer.monitor.state import Checkpoint, RunState, Step, Tick
from trainer.monitor.verdict import Verdict
from trainer.pipeline.stages import StageStats
from trainer.record.format import StepLine
from trainer.record.writer import Disk

VERDICT = Verdict(state="stage_holds", stage="target", sentence="The target holds the run back.", since=1.0, headroom_ratio=0.5)
RECORD: Any = SimpleNamespace(disk=None, errors=1, dropped=1)
WORKING = StageStats("target", 2, 5, 8.0, 1.0, 1.0, 0.5, 0.2, 2, (0, 0, 0, 0, 5, 0), 7.0)


def known(**changes: Any) -> RunState:
    fields: dict[str, Any] = {
        "run": {**RUN, "max_steps": 200},
        "attempt": 0,
        "began_at": 0.0,
        "began_time": 1764497000.0,
        "state": "running",
        "phase_at": 0.0,
        "base": Counts(step=3),
        "verdict": VERDICT,
    }
    return RunState(**fields | changes)


def at(progress_ratio: float) -> Step:
    return Step(replace(STEP, step=3), "", 1.0, 1764497001.0, progress_ratio)


def values(stages: list[StageStats], metric: Metric) -> dict[str, object]:
    return {reading.labels[0]: reading.value for reading in stage_samples(stages) if reading.metric is metric}


def test_a_stage_that_has_ended_is_not_stuck() -> None:
    assert values([WORKING], STAGE_IDLE) == {"dataset": 0.0, "batches": 0.0, "target": 0.5, "drafter": 0.0}
    ended = replace(WORKING, running=0, seconds_since_progress=900.0)
    assert values([ended], STAGE_IDLE)["target"] is None
    assert values([ended], STAGE_RUNNING)["target"] == 0
    assert values([ended], STAGE_THREADS)["target"] == 2, "so many there were"
    half = replace(WORKING, running=1, seconds_since_progress=900.0)
    assert values([half], STAGE_IDLE)["target"] == 900.0


def test_a_stage_that_has_not_begun_has_its_whole_histogram_at_0() -> None:
    counts = values([WORKING], STAGE_ITEM_SECONDS)
    assert counts["target"] == Distribution(WORKING.item_counts, 7.0)
    assert counts["drafter"] == Distribution((0,) * (len(STAGE_ITEM_SECONDS.buckets) + 1), 0.0)


def test_every_queue_is_told_of_from_the_start() -> None:
    assert {reading.labels for reading in queue_samples([])} == {(name,) for name in QUEUES}


def test_exactly_one_verdict_and_one_state_are_1() -> None:
    samples = list(run_samples(known(), RECORD))
    present = [sample.labels for sample in samples if sample.metric is run_metrics.VERDICT and sample.value]
    assert present == [("stage_holds", "target")]
    assert [sample.labels for sample in samples if sample.metric is run_metrics.STATE and sample.value] == [("running",)]


def test_numbers_that_only_the_run_knows() -> None:
    values = {sample.metric: sample.value for sample in run_samples(known(), RECORD) if not sample.labels}
    assert values[RECORD_ERRORS] == 2
    assert values[run_metrics.GLOBAL_STEP] == 3
    assert values[run_metrics.MAX_STEPS] == 200
    assert values[run_metrics.START_TIME] == 1764497000.0
    assert values[run_metrics.HEADROOM] == 0.5


def test_every_verdict_has_its_label_set() -> None:
    known = {sample.labels for sample in verdict_samples(VERDICT) if sample.metric is run_metrics.VERDICT}
    of_a_stage = {(state, stage) for state in ("stage_holds", "stalled") for stage in STAGES}
    assert known == of_a_stage | {(state, "") for state in run_metrics.VERDICT_STATES if state != "stage_holds"}


def test_a_verdict_that_names_a_stage_only_in_words_has_no_stage_label() -> None:
    starved = Verdict(state="starved", stage="dataset", sentence="Starved.", since=1.0)
    assert [sample.labels for sample in verdict_samples(starved) if sample.value == 1] == [("starved", "")]


def told(state: RunState, record: Any = RECORD) -> dict[str, object]:
    """Metrics without labels of their own, by name."""
    return {sample.metric.name: sample.value for sample in run_samples(state, record) if not sample.labels}


def test_when_it_will_be_done() -> None:
    paced = Tick(verdict=VERDICT, rates=Rates(progress_per_second=0.01))
    half = told(known(newest=at(0.5), tick=paced))
    assert (half["progress_ratio"], half["remaining_seconds"]) == (0.5, 50.0)
    assert told(known())["remaining_seconds"] is None, "without a pace nobody knows"
    assert told(known(state="finished", newest=at(1.0)))["remaining_seconds"] == 0.0
    assert told(known(state="finished", newest=at(0.4), tick=paced))["remaining_seconds"] is None, "it was stopped"


def test_how_safe_the_work_is() -> None:
    nothing = told(known())
    names = ("last_checkpoint_step", "last_checkpoint_timestamp_seconds", "last_checkpoint_bytes", "runs_disk_free_bytes")
    assert [nothing[name] for name in names] == [0, 0.0, 0, None]
    run = {**RUN, "config": {"checkpoint": {"every": 500}}}
    safe = told(
        known(run=run, checkpoint=Checkpoint(2, "x", 5.0, 1764497005.0, 77)),
        SimpleNamespace(disk=Disk(10, 40), errors=0, dropped=0),
    )
    assert [safe[name] for name in names] == [2, 1764497005.0, 77, 10]
    assert (safe["checkpoint_every_steps"], safe["runs_disk_size_bytes"]) == (500, 40)


def test_an_attempt_is_a_restart_but_for_the_first() -> None:
    assert [told(known(attempt=attempt))["restarts_total"] for attempt in (0, 3)] == [0, 3]


def test_the_identity_of_run_and_code() -> None:
    run = {**RUN, "target": {"name": "demo"}, "git_commit": None, "versions": {"draftscope": "0.4", "python": "3.11", "torch": "2"}}
    infos = {sample.metric: sample for sample in run_samples(known(run=run), RECORD) if sample.metric.kind == "info"}
    assert infos[run_metrics.RUN_INFO] == MetricSample(run_metrics.RUN_INFO, 1, ("one", "demo", "0.4", ""))
    assert infos[run_metrics.BUILD_INFO] == MetricSample(run_metrics.BUILD_INFO, 1, ("0.4", "", "3.11", "2"))


def test_a_new_number_of_a_step_is_one_field_and_one_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    sharpness = Metric(name="sharpness", kind="gauge", column="sharpness", help="Made up.", question="How sharp?")
    monkeypatch.setattr(collectors, "step_columns", lambda: [("sharpness", sharpness)])
    wider = make_dataclass("Wider", [("sharpness", float, 0.0)], bases=(StepLine,), frozen=True, kw_only=True)
    line = wider(**{name: getattr(STEP, name) for name in STEP.__slots__}, sharpness=0.75)
    assert list(step_samples(line)) == [MetricSample(sharpness, 0.75)]


def test_every_gauge_of_a_step_has_its_sample_and_a_list_one_for_each_position() -> None:
    said = {(sample.metric.column, sample.labels): sample.value for sample in step_samples(STEP)}
    assert said["loss", ()] == STEP.loss
    assert (said["position_accuracy", ("1",)], said["position_accuracy", ("2",)]) == (0.5, None)
    assert {column for column, _ in said} == {column for column, metric in collectors.step_columns() if metric.kind == "gauge"}
