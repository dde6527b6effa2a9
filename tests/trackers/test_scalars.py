"""trainer/trackers/scalars.py: every number of the record has one name, the catalogue's where it has one."""

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fake_monitor import sample_status
from tests.support.lines import step_of
from tests.support.recorded import NAN
from trainer.metrics.catalogue.index import step_columns
from trainer.record.format import EVENTS, STEPS, TELEMETRY, fields_of, strict
from trainer.trackers.scalars import point_of

STAMP = {"attempt": 0, "time": 5.0}


def line_of(step: int, loss: float) -> dict[str, object]:
    return {**STAMP, **strict(fields_of(step_of(step, loss=loss)))}


def test_a_step_has_the_names_of_the_catalogue() -> None:
    point = point_of(STEPS, line_of(3, 2.5))
    assert point is not None
    assert (point.step, point.time, point.attempt) == (3, 5.0, 0)
    assert point.values["loss"] == 2.5
    assert point.values["estimated_acceptance_length_tokens"] == 1.6
    assert point.values["step_duration_seconds"] == 0.01
    assert {name for name in point.values if name.startswith("position")} == {
        "position_accuracy_ratio/1",
        "position_accuracy_ratio/2",
    }, "null is not known, and is not sent"
    columns = {metric.name for _, metric in step_columns()}
    assert columns <= {name.partition("/")[0] for name in point.values}


def test_what_is_not_finite_stays_so() -> None:
    for loss in (NAN, math.inf, -math.inf):
        point = point_of(STEPS, line_of(3, loss))
        assert point is not None
        assert repr(point.values["loss"]) == repr(loss)


def test_a_telemetry_tick_has_stages_queues_devices_and_rates() -> None:
    point = point_of(TELEMETRY, {**STAMP, **sample_status()})
    assert point is not None
    expected = {
        "rates/steps_per_second": 0.4,
        "queue_items/features": 1.0,
        "queues/features/fill_ratio": 0.25,
        "stages/target/busy_ratio": 0.97,
        "stage_items_total/target": 1240.0,
        "gpu_kernel_active_ratio/0": 0.9,
        "gpu_power_watts/0": 412.3,
        "process_resident_memory_bytes": 2_147_483_648.0,
        "process/cpu_cores": 1.9,
        "headroom_ratio": 0.34,
        "remaining_seconds": 7805.0,
        "progress_ratio": 0.248,
    }
    assert {name: point.values[name] for name in expected} == expected
    assert [name for name in point.values if "since" in name and "progress" not in name] == []


def test_nothing_is_said_of_a_run_that_still_starts() -> None:
    assert point_of(TELEMETRY, {**STAMP, **sample_status(state="starting")}) is None


def test_evaluations_and_checkpoints_are_among_the_numbers_and_other_events_are_not() -> None:
    evaluated = {"event": "evaluated", "measured_length": 1.5, "acceptance_by_position": [0.4, None], "seconds": 3.0}
    point = point_of(EVENTS, {**STAMP, "step": 4, **evaluated, "held_out_estimated_length": None})
    assert point is not None
    assert point.values == {
        "measured_acceptance_length_tokens": 1.5,
        "measured_position_acceptance_ratio/1": 0.4,
        "evaluation_duration_seconds": 3.0,
    }
    written = point_of(EVENTS, {**STAMP, "step": 4, "event": "checkpoint", "bytes": 7, "seconds": 0.5, "path": "x"})
    assert written is not None
    assert written.values == {"checkpoint_duration_seconds": 0.5, "last_checkpoint_bytes": 7.0}
    assert point_of(EVENTS, {**STAMP, "step": 4, "event": "stalled", "seconds": 9.0}) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("step", "time", "attempt", "loss", "position_accuracy", "rates", "stages", "queues", "devices", "event", "state")


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([STEPS, TELEMETRY, EVENTS]), st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_no_line_of_json_is_too_strange(file: str, line: dict[str, object]) -> None:
    point = point_of(file, line)
    assert point is None or (point.values and all(isinstance(value, float) for value in point.values.values()))
