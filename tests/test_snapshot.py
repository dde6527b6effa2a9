"""`/status` has exactly the fields of the design, and `/metrics` every label set there can be."""

from tests.test_live import RUN
from trainer import metrics
from trainer.moments import Base, Tick, verdict_readings
from trainer.snapshot import Snapshot, readings_of, status_of
from trainer.verdict import Verdict

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
        "gpu_sampler": {"up", "reason"},
    }
    for name, inner in fields.items():
        assert status[name].keys() == inner
    plain = "state phase step max_steps epoch progress_ratio eta_seconds loss learning_rate grad_norm stages queues devices"
    assert status.keys() == {*fields, *plain.split(), "last_error", "warnings", "versions"}
    assert status["warnings"] == ["Careful."]


def test_exactly_one_verdict_and_one_state_are_1() -> None:
    readings = list(readings_of(KNOWN))
    present = [reading.labels for reading in readings if reading.metric is metrics.VERDICT and reading.value]
    assert present == [("stage_holds", "target")]
    assert [reading.labels for reading in readings if reading.metric is metrics.STATE and reading.value] == [("running",)]


def test_numbers_that_only_the_run_knows() -> None:
    values = {reading.metric: reading.value for reading in readings_of(KNOWN) if not reading.labels}
    assert values[metrics.RECORD_ERRORS] == 2
    assert values[metrics.GLOBAL_STEP] == 3
    assert values[metrics.MAX_STEPS] == 200
    assert values[metrics.START_TIME] == 1764497000.0
    assert values[metrics.HEADROOM] == 0.5


def test_every_verdict_has_its_label_set() -> None:
    known = {reading.labels for reading in verdict_readings(VERDICT) if reading.metric is metrics.VERDICT}
    of_a_stage = {(state, stage) for state in ("stage_holds", "stalled") for stage in metrics.STAGES}
    assert known == of_a_stage | {(state, "") for state in metrics.VERDICT_STATES if state != "stage_holds"}


def test_a_verdict_that_names_a_stage_only_in_words_has_no_stage_label() -> None:
    starved = Verdict(state="starved", stage="dataset", sentence="Starved.", since=1.0)
    assert [reading.labels for reading in verdict_readings(starved) if reading.value == 1] == [("starved", "")]
