"""A table that grows while its file is tailed, and gives buckets of any range of rows.

A table is a list of segments: stretches of rows of one attempt whose keys rise. Closed buckets of each segment are kept as roll-ups
of 64, 1024 and 16384 keys, so that a chart of a very long run reads thousands of numbers, not millions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from dashboard.record import rollups
from dashboard.record.parse import F32, F64, I64, MISSING
from dashboard.record.rollups import Buckets

LEVELS = (64, 1024, 16384)


class Growing:
    """An array that grows at its end; spare room costs no memory until it is used."""

    def __init__(self, dtype: npt.DTypeLike, columns: int | None = None) -> None:
        self._shape = () if columns is None else (columns,)
        self._room = np.empty((1024, *self._shape), dtype)
        self._used = 0

    def extend(self, rows: npt.NDArray[Any]) -> None:
        need = self._used + len(rows)
        if need > len(self._room):
            room = np.empty((max(need, 2 * len(self._room)), *self._shape), self._room.dtype)
            room[: self._used] = self.view
            self._room = room
        self._room[self._used : need] = rows
        self._used = need

    @property
    def view(self) -> npt.NDArray[Any]:
        return self._room[: self._used]


class Level:
    """The closed buckets of one width, and how many of them the next wider level has taken in."""

    def __init__(self, width: int, axes: int, columns: int) -> None:
        self.width = width
        self.taken = 0
        like = rollups.empty(axes, columns)
        self._parts = [Growing(part.dtype, *part.shape[1:]) for part in (getattr(like, field.name) for field in fields(Buckets))]

    def extend(self, buckets: Buckets) -> None:
        for part, field in zip(self._parts, fields(Buckets), strict=True):
            part.extend(getattr(buckets, field.name))

    @property
    def closed(self) -> Buckets:
        return Buckets(*(part.view for part in self._parts))


class Segment:
    """Rows first … end - 1 of a table: one attempt, rising keys. `rolled` is the first row that no roll-up holds yet."""

    def __init__(self, attempt: int, first: int, axes: int, columns: int) -> None:
        self.attempt = attempt
        self.first = self.end = self.rolled = first
        self.levels = [Level(width, axes, columns) for width in LEVELS]

    def roll(self, keys: I64, axes: F64, values: F32) -> None:
        """Roll up the rows of closed buckets. A bucket is closed once a later one has begun."""
        last = int(keys[self.end - 1])
        cut = self.rolled + int(np.searchsorted(keys[self.rolled : self.end], last // LEVELS[0] * LEVELS[0]))
        if cut == self.rolled:
            return
        part = slice(self.rolled, cut)
        self.levels[0].extend(rollups.of_rows(keys[part], axes[part], values[part], LEVELS[0]))
        self.rolled = cut
        for finer, wider in zip(self.levels, self.levels[1:], strict=False):
            fresh = finer.closed.rows(finer.taken, len(finer.closed))
            done = int(np.searchsorted(fresh.start, last // wider.width * wider.width))
            if done:
                wider.extend(rollups.merge(fresh.rows(0, done), wider.width))
                finer.taken += done


class Table:
    """Numbers of one record file: `axes` that every row has, and columns that may appear later (a GPU that is found late)."""

    def __init__(self, axes: Sequence[str]) -> None:
        self.axis_names = tuple(axes)
        self.column_names: tuple[str, ...] = ()
        self.segments: list[Segment] = []
        self._keys = Growing(np.int64)
        self._axes = Growing(np.float64, len(axes))
        self._values = Growing(np.float32, 0)

    def __len__(self) -> int:
        return len(self._keys.view)

    @property
    def keys(self) -> I64:
        return self._keys.view

    def axis(self, name: str) -> F64:
        axis: F64 = self._axes.view[:, self.axis_names.index(name)]
        return axis

    def extend(self, attempts: I64, keys: I64, axes: F64, names: Sequence[str], values: F32) -> None:
        """Appends N rows: attempts (N,), keys (N,), axes (N, A), and values (N, C) of the columns `names` (C,)."""
        if not len(keys):
            return
        self._add_columns(names)
        before = len(self)
        self._keys.extend(keys)
        self._axes.extend(axes)
        self._values.extend(self._arranged(names, values))
        for first, end in _runs(attempts, keys):
            self._extend_segment(int(attempts[first]), before + first, before + end)

    def _extend_segment(self, attempt: int, first: int, end: int) -> None:
        newest = self.segments[-1] if self.segments else None
        if newest is None or newest.attempt != attempt or self.keys[first] <= self.keys[newest.end - 1]:
            newest = Segment(attempt, first, len(self.axis_names), len(self.column_names))
            self.segments.append(newest)
        newest.end = end
        newest.roll(self.keys, self._axes.view, self._values.view)

    def _arranged(self, names: Sequence[str], values: F32) -> F32:
        if tuple(names) == self.column_names:
            return values
        arranged = np.full((len(values), len(self.column_names)), MISSING, np.float32)
        arranged[:, [self.column_names.index(name) for name in names]] = values
        return arranged

    def _add_columns(self, names: Sequence[str]) -> None:
        """Widen the table by the columns that it lacks, and roll up anew: rare, so it may cost as much as reading the run did."""
        fresh = tuple(name for name in names if name not in self.column_names)
        if not fresh:
            return
        self.column_names += fresh
        wide = Growing(np.float32, len(self.column_names))
        wide.extend(np.pad(self._values.view, ((0, 0), (0, len(fresh))), constant_values=MISSING))
        self._values = wide
        for index, old in enumerate(self.segments):
            segment = Segment(old.attempt, old.first, len(self.axis_names), len(self.column_names))
            segment.end = old.end
            segment.roll(self.keys, self._axes.view, self._values.view)
            self.segments[index] = segment

    def overtaken_from(self, segment: Segment) -> int | None:
        """The first key of `segment` that a later segment repeats; None where none does."""
        later = self.segments[self.segments.index(segment) + 1 :]
        cut = min((int(self.keys[other.first]) for other in later), default=None)
        return cut if cut is not None and cut <= self.keys[segment.end - 1] else None

    def parts(self, begin: int, end: int) -> Iterator[tuple[Segment, int, int]]:
        """The segments that rows begin … end - 1 touch, with the rows that they share."""
        for segment in self.segments:
            low, high = max(begin, segment.first), min(end, segment.end)
            if low < high:
                yield segment, low, high

    def buckets(self, segment: Segment, begin: int, end: int, columns: Sequence[int], width: int) -> Buckets:
        """Rows begin … end - 1 of a segment in buckets of `width` keys; those at both ends are whole, as far as rows exist."""
        low = int(self.keys[begin]) // width * width
        high = (int(self.keys[end - 1]) // width + 1) * width
        found: list[Buckets] = []
        levels = [level for level in segment.levels if level.width <= width and width > 1]
        for level in reversed(levels):
            closed = level.closed.rows(0 if level is levels[-1] else level.taken, len(level.closed))
            cut = np.searchsorted(closed.start, [low, high])
            found.append(closed.rows(int(cut[0]), int(cut[1])).columns(columns))
        first = segment.rolled if levels else segment.first
        keys = self.keys[first : segment.end]
        cut = first + np.searchsorted(keys, [low, high])
        part = slice(int(cut[0]), int(cut[1]))
        rows = self._values.view[part][:, list(columns)]
        found.append(rollups.of_rows(self.keys[part], self._axes.view[part], rows, min(width, LEVELS[0])))
        return rollups.merge(rollups.joined(found), width) if width > 1 else found[-1]


def _runs(attempts: I64, keys: I64) -> Iterator[tuple[int, int]]:
    """Stretches of rows of one attempt with rising keys, as (first, end)."""
    cuts = np.flatnonzero((attempts[1:] != attempts[:-1]) | (keys[1:] <= keys[:-1])) + 1
    edges = [0, *cuts.tolist(), len(keys)]
    return itertools.pairwise(edges)
