"""trainer/record/format.py: a line is read back as it was written; one that is not whole is none; the run id's one rule."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.lines import step_of, tick_of
from trainer.metrics.catalogue.index import step_columns
from trainer.record.format import (
    RUN_ID,
    EvaluationLine,
    Line,
    StepLine,
    TelemetryLine,
    field_names,
    fields_of,
    read_line,
    strict,
)

EVALUATION = EvaluationLine(
    step=1500,
    measured_length=2.0,
    acceptance_by_position=(0.5, 0.3, None),
    held_out_estimated_length=2.1,
    training_estimated_length=None,
    prompts=16,
    rounds=1000,
    tokens=2000,
    seconds=40.0,
    tokens_per_second=60.0,
)


def written(line: Line, **changed: Any) -> dict[str, Any]:
    """The fields of a line as JSON brings them back, among those that every line of a file has."""
    row = {"attempt": 0, "time": 1.0, **fields_of(line), "message": "Unknown to the type.", **changed}
    found: dict[str, Any] = json.loads(json.dumps(strict(row), allow_nan=False))
    return found


@pytest.mark.parametrize("line", [step_of(3, elapsed=4.5), EVALUATION, tick_of(3, max_steps=9)])
def test_a_line_is_read_back_as_it_was(line: Line) -> None:
    found = read_line(type(line), written(line))
    assert found is not None
    assert strict(fields_of(found)) == strict(fields_of(line))


def test_whole_numbers_are_floats_where_floats_belong() -> None:
    assert read_line(EvaluationLine, written(EVALUATION, seconds=40)) == EVALUATION


def test_what_may_be_left_out_is_left_out() -> None:
    row = written(EVALUATION)
    del row["held_out_estimated_length"]
    assert read_line(EvaluationLine, row) == replace(EVALUATION, held_out_estimated_length=None)


@pytest.mark.parametrize("missing", ["step", "measured_length", "acceptance_by_position", "rounds"])
def test_a_line_that_is_not_whole_is_none(missing: str) -> None:
    broken = written(EVALUATION)
    del broken[missing]
    assert read_line(EvaluationLine, broken) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("step", value) for value in ("7", True, 1.5)),
        *(("acceptance_by_position", value) for value in (0.5, ["x"])),
        *(("measured_length", value) for value in ("NaN", None)),
        ("rounds", None),
    ],
)
def test_neither_is_one_with_something_else_in_it(name: str, value: object) -> None:
    assert read_line(EvaluationLine, written(EVALUATION, **{name: value})) is None


def test_every_column_of_the_catalogue_is_a_field_of_a_step() -> None:
    assert {column for column, _ in step_columns()} <= set(field_names(StepLine))


def test_the_order_of_the_columns_is_that_of_older_records() -> None:
    before = "step seq elapsed epoch loss learning_rate grad_norm position_accuracy estimated_acceptance_length"
    assert field_names(StepLine) == (*before.split(), "context_tokens", "draft_tokens", "samples", "step_seconds")
    before = "step max_steps progress_ratio eta_seconds state rates stages queues devices process verdict"
    assert field_names(TelemetryLine) == tuple(before.split())


def test_strict_keeps_what_json_has_and_spells_out_the_rest() -> None:
    given = {"a": 1, "b": True, "c": None, "d": 1.5, "e": Path("x"), 3: (1, 2), "f": [math.nan, {"g": -math.inf}]}
    assert strict(given) == {"a": 1, "b": True, "c": None, "d": 1.5, "e": "x", "3": [1, 2], "f": ["NaN", {"g": "-Infinity"}]}


def test_run_ids() -> None:
    assert [name for name in ("a", "20261130-102103-9f3c", "_x", "-", "a.b", "x" * 64) if not RUN_ID.fullmatch(name)] == []
    wrong = ("", ".", "..", ".hidden", "a/b", "a b", "ü", "x" * 65, "a\n")
    assert [name for name in wrong if RUN_ID.fullmatch(name)] == []
