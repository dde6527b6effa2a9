"""Turns lines of the run record into arrays of numbers, fast enough for a record of a million steps.

The record writes floats that JSON lacks as words (`NOT_FINITE`); those become floats that are not finite. `null` means "not known
or not applicable" and becomes `MISSING`, which is told apart from a real NaN everywhere after this.
N rows, C columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from trainer.metrics.catalogue.index import step_columns
from trainer.record.format import NOT_FINITE

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Row = dict[str, Any]

MISSING = float(np.finfo(np.float32).min)
LARGEST_STEP = 2**53  # the largest that a float tells from the next


def rows_of(lines: Sequence[bytes]) -> tuple[list[Row], int]:
    """The JSON objects in `lines`, and how many lines hold none.

    That happens where a crash tore a line and the resumed run wrote on behind it.
    """
    try:
        parsed = orjson.loads(b"[" + b",".join(lines) + b"]")
    except orjson.JSONDecodeError:
        parsed = [_loads_or_none(line) for line in lines]
    rows = [row for row in parsed if isinstance(row, dict)]
    return rows, len(lines) - len(rows)


def _loads_or_none(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def number(value: Any) -> float:
    """A value of the record as a float; MISSING where it is neither a number nor a word for one."""
    if isinstance(value, int | float):
        return float(value)
    return NOT_FINITE.get(value, MISSING) if isinstance(value, str) else MISSING


def numbers(values: Sequence[Any]) -> F32:
    """`number` of each value, (N,); fast where all of them are plain numbers or None."""
    if None in values:
        values = [MISSING if value is None else value for value in values]
    try:
        array = np.array(values, dtype=np.float32)
        if not np.isnan(array).any():
            return array
    except (TypeError, ValueError):
        pass
    return np.array([number(value) for value in values], dtype=np.float32)


def _axis(rows: Sequence[Row], name: str) -> F64:
    """One axis of `rows`, (N,); 0 where a row lacks it."""
    return np.array([row.get(name) or 0 for row in rows], dtype=np.float64)


STEP_AXES = ("step", "context_tokens", "time")
TELEMETRY_AXES = ("step", "time")


def step_numbers(rows: Sequence[Row]) -> tuple[I64, F64, tuple[str, ...], F32]:
    """Rows of steps.jsonl → attempts (N,), axes (N, 3) in the order of STEP_AXES, column names (C,), values (N, C).

    The columns are those of the catalogue. One that holds a list becomes several, `position_accuracy.1`, `.2` …, as many as the
    longest list has. Raises ValueError for a row whose step has no place in a chart.
    """
    if any(type(row.get("step")) is not int for row in rows):  # a call for each row would cost a second per million
        raise ValueError("a step is not a whole number")
    attempts = np.array([row.get("attempt") or 0 for row in rows], dtype=np.int64)
    axes = np.stack([_axis(rows, name) for name in STEP_AXES], axis=1)
    if (np.abs(axes[:, 0]) > LARGEST_STEP).any():
        raise ValueError(f"a step is beyond {LARGEST_STEP}")
    found = [_expanded(rows, column) if metric.labels else _single(rows, column) for column, metric in step_columns()]
    names = tuple(name for some, _ in found for name in some)
    return attempts, axes, names, np.column_stack([values for _, values in found]).astype(np.float32, copy=False)


def _single(rows: Sequence[Row], column: str) -> tuple[list[str], F32]:
    return [column], numbers([row.get(column) for row in rows])


def _expanded(rows: Sequence[Row], column: str) -> tuple[list[str], F32]:
    """A column of lists → a column for each place in them, numbered from 1; values (N, places)."""
    lists = [row.get(column) or () for row in rows]
    width = max(map(len, lists), default=0)
    if any(len(values) != width for values in lists):
        lists = [[*values, *[None] * (width - len(values))] for values in lists]
    values = numbers([value for values in lists for value in values]).reshape(len(rows), width)
    return [f"{column}.{place}" for place in range(1, width + 1)], values


def telemetry_numbers(rows: Sequence[Row]) -> tuple[I64, F64, tuple[str, ...], F32]:
    """Rows of telemetry.jsonl → attempts (N,), axes (N, 2) in the order of TELEMETRY_AXES, column names (C,), values (N, C)."""
    attempts = np.array([row.get("attempt") or 0 for row in rows], dtype=np.int64)
    axes = np.stack([_axis(rows, name) for name in TELEMETRY_AXES], axis=1)
    flat = [dict(_flat(row)) for row in rows]
    names = tuple(dict.fromkeys(name for values in flat for name in values))
    values = np.array([[values.get(name, MISSING) for name in names] for values in flat], dtype=np.float32)
    return attempts, axes, names, values.reshape(len(rows), len(names))


STAGE_FIELDS = ("busy_ratio", "waiting_input_ratio", "waiting_output_ratio")
DEVICE_FIELDS = ("kernel_active_ratio", "memory_used_bytes", "memory_total_bytes", "power_watts", "temperature_celsius")


def _flat(row: Row) -> Iterable[tuple[str, float]]:
    for group in ("rates", "process"):
        for name, value in (row.get(group) or {}).items():
            yield f"{group}.{name}", number(value)
    for stage in row.get("stages") or ():
        for field in STAGE_FIELDS:
            yield f"stages.{stage.get('name')}.{field}", number(stage.get(field))
    for queue in row.get("queues") or ():
        yield f"queues.{queue.get('name')}.fill_ratio", number(queue.get("fill_ratio"))
    for device in row.get("devices") or ():
        for field in DEVICE_FIELDS:
            yield f"devices.{device.get('index')}.{field}", number(device.get(field))


def json_safe(row: Row) -> tuple[Row, dict[str, str]]:
    """A row for the browser: words such as "NaN" become None; the second value has them by the name of their field."""
    flags: dict[str, str] = {}
    clean: Row = {}
    for name, field in row.items():
        if isinstance(field, str) and field in NOT_FINITE:
            flags[name] = field
        values = field if isinstance(field, list) else [field]
        finite = [None if isinstance(value, str) and value in NOT_FINITE else value for value in values]
        clean[name] = finite if isinstance(field, list) else finite[0]
    return clean, flags
