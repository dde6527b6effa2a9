"""Lines of the record to numbers: NaN is not null, and one broken line costs one line."""

import math

import numpy as np
import pytest

from dashboard.record import parse
from dashboard.record.parse import MISSING


def test_one_unreadable_line_costs_one_line():
    rows, bad = parse.rows_of([b'{"step":1}', b'{"st{"step":2}', b'{"step":3}', b"7"])
    assert [row["step"] for row in rows] == [1, 3]
    assert bad == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [("Infinity", math.inf), ("-Infinity", -math.inf), (None, MISSING), ("text", MISSING), (2, 2.0), (0.5, 0.5)],
)
def test_number(value, expected):
    assert parse.number(value) == expected
    assert parse.numbers([1.0, value])[1] == np.float32(expected)


def test_nan_is_told_apart_from_null():
    found = parse.numbers(["NaN", None, 1.5])
    assert math.isnan(found[0])
    assert found[1] == np.float32(MISSING)
    assert found[2] == 1.5


def test_step_numbers_pads_short_lists_of_positions():
    rows = [
        {"attempt": 0, "step": 1, "time": 5.0, "context_tokens": 7, "loss": 2.0, "position_accuracy": [0.5, None]},
        {"attempt": 1, "step": 2, "time": 6.0, "context_tokens": 9, "loss": "NaN", "position_accuracy": [0.25]},
    ]
    attempts, axes, names, values = parse.step_numbers(rows)
    assert attempts.tolist() == [0, 1]
    assert axes.tolist() == [[1, 7, 5.0], [2, 9, 6.0]]
    column = {name: values[:, index] for index, name in enumerate(names)}
    assert column["position_accuracy.1"].tolist() == [0.5, 0.25]
    assert (column["position_accuracy.2"] == np.float32(MISSING)).all()
    assert math.isnan(column["loss"][1])


@pytest.mark.parametrize("step", [None, "7", 1.5, 2**60, -(2**60)])
def test_a_step_without_a_place_is_refused(step):
    with pytest.raises(ValueError, match="a step is"):
        parse.step_numbers([{"step": 1}, {"step": step}])


def test_telemetry_numbers_names_what_it_finds():
    row = {
        "attempt": 0,
        "time": 1.0,
        "step": 3,
        "rates": {"steps_per_second": 2.5},
        "stages": [{"name": "target", "busy_ratio": 0.5, "waiting_input_ratio": 0.5, "waiting_output_ratio": 0.0}],
        "queues": [{"name": "features", "items": 1, "capacity_items": 4, "fill_ratio": 0.75}],
        "devices": [{"index": 1, "power_watts": 300.0, "kernel_active_ratio": None}],
    }
    _, axes, names, values = parse.telemetry_numbers([row])
    found = dict(zip(names, values[0].tolist(), strict=True))
    assert axes.tolist() == [[3, 1.0]]
    assert found["rates.steps_per_second"] == 2.5
    assert found["stages.target.busy_ratio"] == 0.5
    assert found["queues.features.fill_ratio"] == 0.75
    assert found["devices.1.power_watts"] == 300.0
    assert found["devices.1.kernel_active_ratio"] == pytest.approx(MISSING)


def test_json_safe_names_what_is_not_finite():
    assert parse.json_safe({"loss": "NaN", "list": [1, "Infinity"], "name": "x"}) == (
        {"loss": None, "list": [1, None], "name": "x"},
        {"loss": "NaN"},
    )
