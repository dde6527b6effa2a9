"""Downsampling: puts a million rows into a thousand buckets without losing a spike, a NaN or the newest value.

A bucket covers the keys from `start` up to, not including, `start + width`. Its edges depend on the width alone, never on how
many rows there are, so the picture of the past stays as it is while a run grows. A axes, B buckets, C columns, N rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from dashboard.record.parse import F32, F64, I64, MISSING

I32 = npt.NDArray[np.int32]
INFINITY = np.float32(np.inf)


@dataclass(frozen=True)
class Buckets:
    """What each bucket keeps of its rows. `low`, `high`, `total` and `last` are of the finite values alone.

    A column without a finite value in a bucket has count 0, `low` +inf, `high` -inf and `last` NaN there.
    """

    start: I64  # (B,)
    axes: F64  # (B, A), of the bucket's last row
    low: F32  # (B, C)
    high: F32  # (B, C)
    last: F32  # (B, C)
    total: F64  # (B, C)
    count: I32  # (B, C)
    nan: I32  # (B, C)
    infinite: I32  # (B, C)

    def __len__(self) -> int:
        return len(self.start)

    def mean(self) -> F64:
        """Mean of the finite values, (B, C); NaN where there is none."""
        mean: F64 = np.divide(self.total, self.count, out=np.full(self.total.shape, np.nan), where=self.count > 0)
        return mean

    def rows(self, begin: int, end: int) -> Buckets:
        """The buckets begin … end - 1, as a view."""
        return Buckets(*(getattr(self, field.name)[begin:end] for field in fields(self)))

    def columns(self, chosen: Sequence[int]) -> Buckets:
        """The same buckets with the chosen columns only, in that order."""
        return Buckets(self.start, self.axes, *(getattr(self, field.name)[:, list(chosen)] for field in fields(self)[2:]))


def of_rows(keys: I64, axes: F64, values: F32, width: int) -> Buckets:
    """Rows with rising keys (N,), axes (N, A) and values (N, C) → buckets of `width` keys. Width 1 keeps every row."""
    if not len(keys):
        return empty(axes.shape[1], values.shape[1])
    first = np.arange(len(keys)) if width <= 1 else _first_of_groups(keys // width)
    present = values != np.float32(MISSING)
    finite = np.isfinite(values) & present
    at = np.where(finite, np.arange(len(keys))[:, None], -1)
    return Buckets(
        start=keys[first] // width * width,
        axes=axes[_ends(first, len(keys))],
        low=np.minimum.reduceat(np.where(finite, values, INFINITY), first),
        high=np.maximum.reduceat(np.where(finite, values, -INFINITY), first),
        last=_pick(values, np.maximum.reduceat(at, first)),
        total=np.add.reduceat(np.where(finite, values, np.float32(0)).astype(np.float64), first),
        count=np.add.reduceat(finite, first, dtype=np.int32),
        nan=np.add.reduceat(np.isnan(values), first, dtype=np.int32),
        infinite=np.add.reduceat(np.isinf(values), first, dtype=np.int32),
    )


def merge(buckets: Buckets, width: int) -> Buckets:
    """Buckets with rising starts, of any widths that divide `width` → buckets of `width`."""
    if not len(buckets):
        return buckets
    first = _first_of_groups(buckets.start // width)
    at = np.where(buckets.count > 0, np.arange(len(buckets))[:, None], -1)
    return Buckets(
        start=buckets.start[first] // width * width,
        axes=buckets.axes[_ends(first, len(buckets))],
        low=np.minimum.reduceat(buckets.low, first),
        high=np.maximum.reduceat(buckets.high, first),
        last=_pick(buckets.last, np.maximum.reduceat(at, first)),
        total=np.add.reduceat(buckets.total, first),
        count=np.add.reduceat(buckets.count, first, dtype=np.int32),
        nan=np.add.reduceat(buckets.nan, first, dtype=np.int32),
        infinite=np.add.reduceat(buckets.infinite, first, dtype=np.int32),
    )


def joined(parts: Sequence[Buckets]) -> Buckets:
    """Buckets one after the other."""
    return Buckets(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Buckets)))


def width_for(keys: int, most: int) -> int:
    """The smallest power of two that puts `keys` consecutive keys into at most `most` buckets."""
    return 1 << max(0, -(-keys // most) - 1).bit_length()


def _first_of_groups(groups: I64) -> npt.NDArray[np.intp]:
    return np.concatenate([[0], np.flatnonzero(groups[1:] != groups[:-1]) + 1]).astype(np.intp)


def _ends(first: npt.NDArray[np.intp], rows: int) -> npt.NDArray[np.intp]:
    return np.append(first[1:], rows) - 1


def _pick(values: F32, at: npt.NDArray[np.intp]) -> F32:
    picked = np.take_along_axis(values, np.maximum(at, 0), axis=0)
    return np.where(at >= 0, picked, np.float32(np.nan))


def empty(axes: int, columns: int) -> Buckets:
    """No buckets, of the types that buckets have."""
    real, whole = np.zeros((0, columns), np.float32), np.zeros((0, columns), np.int32)
    return Buckets(np.zeros(0, np.int64), np.zeros((0, axes)), real, real, real, np.zeros((0, columns)), whole, whole, whole)
