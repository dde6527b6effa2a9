"""`/status` has exactly the fields of the design, and `/metrics` every label set there can be."""

from dataclasses import replace

from tests.monitor.test_live import RUN
from trainer.metrics.catalogue import run as run_metrics
from trainer.metrics.catalogue.stages import STAGES
from trainer.metrics.catalogue.watching import RECORD_ERRORS
from trainer.metrics.exporter import MetricSample
from trainer.monitor.moments import Base, Rates, Tick, verdict_samples
from trainer.monitor.snapshot import Checkpointed, Snapshot, run_samples, status_of
from trainer.monitor.verdict import Verdict
from trainer.record.writer import Disk

VERDICT = Verdict(state="stage_holds", stage="target", sentence="The target holds the run back.", since=1.0, headroom_ratio=0.5)
KNOWN = Snapshot(
    run=RUN,
    state="running",
    phase="",
    step=3,
    progress_ratio=None,
    newest=None,
    base=Base(),
    tick=Tick(verdict=VERDICT),
    verdict=VERDICT,
    checkpoint=None,
    evaluation=None,
    last_error=None,
    warnings=("Careful.",),
    began_time=1764497000.0,
    elapsed=10.0,
    now=10.0,
    watch_seconds=0.01,
    record_errors=2,
)


def test_the_fields_of_status() -> None:
    status = status_of(KNOWN)
    fields = {
        "run": {"id", "name", "started_at", "command"},
        "rates": {"context_tokens_per_second", "draft_tokens_per_second", "steps_per_second"},
        "acceptance": {
            "estimated_length",
            "position_accuracy",
            "measured_length",
            "measured_at_step",
            "measured_by_position",
            "held_out_estimated_length",
        },
        "verdict": {"state", "stage", "sentence", "since", "headroom_ratio", "next_stage", "lost_device_hours"},
        "checkpoint": {"step", "path", "age_seconds"},
        "process": {"cpu_cores", "memory_bytes"},
        "watching": {"seconds", "ratio"},
        "gpu_sampler": {"up", "reason", "notes", "backend", "driver", "age_seconds", "errors"},
    }
    for name, inner in fields.items():
        assert status[name].keys() == inner
    plain = "state phase step max_steps epoch progress_ratio eta_seconds loss learning_rate grad_norm stages queues devices"
    assert status.keys() == {*fields, *plain.split(), "last_error", "warnings", "versions"}
    assert status["warnings"] == ["Careful."]


def test_exactly_one_verdict_and_one_state_are_1() -> None:
    readings = list(run_samples(KNOWN))
    present = [reading.labels for reading in readings if reading.metric is run_metrics.VERDICT and reading.value]
    assert present == [("stage_holds", "target")]
    assert [reading.labels for reading in readings if reading.metric is run_metrics.STATE and reading.value] == [("running",)]


def test_numbers_that_only_the_run_knows() -> None:
    values = {reading.metric: reading.value for reading in run_samples(KNOWN) if not reading.labels}
    assert values[RECORD_ERRORS] == 2
    assert values[run_metrics.GLOBAL_STEP] == 3
    assert values[run_metrics.MAX_STEPS] == 200
    assert values[run_metrics.START_TIME] == 1764497000.0
    assert values[run_metrics.HEADROOM] == 0.5


def test_every_verdict_has_its_label_set() -> None:
    known = {reading.labels for reading in verdict_samples(VERDICT) if reading.metric is run_metrics.VERDICT}
    of_a_stage = {(state, stage) for state in ("stage_holds", "stalled") for stage in STAGES}
    assert known == of_a_stage | {(state, "") for state in run_metrics.VERDICT_STATES if state != "stage_holds"}


def test_a_verdict_that_names_a_stage_only_in_words_has_no_stage_label() -> None:
    starved = Verdict(state="starved", stage="dataset", sentence="Starved.", since=1.0)
    assert [reading.labels for reading in verdict_samples(starved) if reading.value == 1] == [("starved", "")]


def told(known: Snapshot) -> dict[str, object]:
    """Metrics without labels of their own, by name."""
    return {reading.metric.name: reading.value for reading in run_samples(known) if not reading.labels}


def test_when_it_will_be_done() -> None:
    paced = Tick(verdict=VERDICT, rates=Rates(progress_per_second=0.01))
    half = told(replace(KNOWN, progress_ratio=0.5, tick=paced))
    assert (half["progress_ratio"], half["remaining_seconds"]) == (0.5, 50.0)
    assert told(KNOWN)["remaining_seconds"] is None, "without a pace nobody knows"
    assert told(replace(KNOWN, state="finished", progress_ratio=1.0))["remaining_seconds"] == 0.0
    assert told(replace(KNOWN, state="finished", progress_ratio=0.4, tick=paced))["remaining_seconds"] is None, "it was stopped"


def test_how_safe_the_work_is() -> None:
    nothing = told(KNOWN)
    names = ("last_checkpoint_step", "last_checkpoint_timestamp_seconds", "last_checkpoint_bytes", "runs_disk_free_bytes")
    assert [nothing[name] for name in names] == [0, 0.0, 0, None]
    run = {**RUN, "config": {"checkpoint": {"every": 500}}}
    safe = told(replace(KNOWN, run=run, checkpoint=Checkpointed(2, "x", 5.0, 1764497005.0, 77), disk=Disk(10, 40)))
    assert [safe[name] for name in names] == [2, 1764497005.0, 77, 10]
    assert (safe["checkpoint_every_steps"], safe["runs_disk_size_bytes"]) == (500, 40)


def test_an_attempt_is_a_restart_but_for_the_first() -> None:
    assert [told(replace(KNOWN, attempt=attempt))["restarts_total"] for attempt in (0, 3)] == [0, 3]


def test_the_identity_of_run_and_code() -> None:
    run = {**RUN, "target": {"name": "demo"}, "git_commit": None, "versions": {"draftscope": "0.4", "python": "3.11", "torch": "2"}}
    infos = {reading.metric: reading for reading in run_samples(replace(KNOWN, run=run)) if reading.metric.kind == "info"}
    assert infos[run_metrics.RUN_INFO] == MetricSample(run_metrics.RUN_INFO, 1, ("one", "demo", "0.4", ""))
    assert infos[run_metrics.BUILD_INFO] == MetricSample(run_metrics.BUILD_INFO, 1, ("0.4", "", "3.11", "2"))
