"""Turns a table into what a browser draws: picks the rows and the width of the buckets, and hides no NaN.

JSON has no NaN: a bucket without a finite value is `null`, and `nan` / `infinite` beside it say at which buckets such values
occurred and how many there were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dashboard.record.parse import F64
from dashboard.record.rollups import Buckets, width_for
from dashboard.record.table import Segment, Table

MOST_BUCKETS = 2000
TokensOf = Callable[[int, F64], F64]  # attempt, steps (N,) → context tokens (N,)


def rows_between(table: Table, axis: F64, low: float | None, high: float | None) -> tuple[int, int]:
    """The rows (begin, end) whose `axis` is within low … high, and one more on each side so that lines leave the picture."""
    begin, end = len(table), 0
    for segment in table.segments:
        part = axis[segment.first : segment.end]
        first = 0 if low is None else max(0, int(np.searchsorted(part, low)) - 1)
        last = len(part) if high is None else min(len(part), int(np.searchsorted(part, high, "right")) + 1)
        if first < last:
            begin, end = min(begin, segment.first + first), max(end, segment.first + last)
    return (begin, end) if begin < end else (0, 0)


def choose_width(table: Table, begin: int, end: int) -> int:
    """Keys per bucket for rows begin … end - 1: 1 (every row) up to 2000 keys, else the power of two for 1000 to 2000 buckets."""
    parts = table.parts(begin, end)
    return width_for(max(1, sum(int(table.keys[high - 1] - table.keys[low]) + 1 for _, low, high in parts)), MOST_BUCKETS)


@dataclass(frozen=True)
class Request:
    """What a chart wants of a table: columns, in buckets of `width` keys, with the lowest and highest value of `banded` ones."""

    names: Sequence[str]
    width: int
    tokens_of: TokensOf
    banded: Collection[str]


def series(table: Table, request: Request, begin: int, end: int) -> dict[str, Any]:
    """Rows begin … end - 1, a part per segment; names that the table lacks are left out.

    `{width, rows, buckets, segments: [{attempt, overtaken_from, start, axes{step, tokens, time}, series{name: {…}}}]}`.
    """
    known = [name for name in request.names if name in table.column_names]
    columns = [table.column_names.index(name) for name in known]
    segments = []
    for segment, low, high in table.parts(begin, end):
        buckets = table.buckets(segment, low, high, columns, request.width)
        segments.append(_segment(table, segment, buckets, known, request))
    count = sum(len(segment["start"]) for segment in segments)
    return {"width": request.width, "rows": end - begin, "buckets": count, "segments": segments}


def _segment(table: Table, segment: Segment, buckets: Buckets, names: Sequence[str], request: Request) -> dict[str, Any]:
    axes = {name: np.ascontiguousarray(buckets.axes[:, index]) for index, name in enumerate(table.axis_names)}
    tokens = axes["context_tokens"] if "context_tokens" in axes else request.tokens_of(segment.attempt, axes["step"])
    mean = buckets.mean()
    return {
        "attempt": segment.attempt,
        "overtaken_from": table.overtaken_from(segment),
        "start": buckets.start,
        "axes": {"step": axes["step"].astype(np.int64), "tokens": tokens, "time": np.round(axes["time"], 3)},
        "series": {
            name: _column(buckets, mean, index, request.width > 1 and name in request.banded) for index, name in enumerate(names)
        },
    }


def _column(buckets: Buckets, mean: F64, index: int, banded: bool) -> dict[str, Any]:
    column: dict[str, Any] = {"mean": np.ascontiguousarray(mean[:, index], np.float32)}
    if banded:  # of a single row, the mean is the lowest and the highest
        present = buckets.count[:, index] > 0
        column["low"] = np.where(present, buckets.low[:, index], np.float32(np.nan))
        column["high"] = np.where(present, buckets.high[:, index], np.float32(np.nan))
    for name, counts in (("nan", buckets.nan[:, index]), ("infinite", buckets.infinite[:, index])):
        at = np.flatnonzero(counts)
        if len(at):
            column[name] = {str(int(place)): int(counts[place]) for place in at}
    return column


def tokens_from(steps: Table) -> TokensOf:
    """Context tokens of telemetry ticks, which know only their step: interpolated from the steps of the same attempt."""

    def tokens_of(attempt: int, step: F64) -> F64:
        for segment in reversed(steps.segments):
            if segment.attempt == attempt:
                part = slice(segment.first, segment.end)
                return np.round(np.interp(step, steps.axis("step")[part], steps.axis("context_tokens")[part]))
        return np.full(len(step), np.nan)

    return tokens_of
