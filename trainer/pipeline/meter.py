"""Books the time of one thread: busy, waiting for input, waiting for output."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

ThreadState = Literal["busy", "waiting_input", "waiting_output", "paused"]


Clock = Callable[[], float]


class _Totals(NamedTuple):
    state: ThreadState | None
    since: float
    busy: float
    waiting_input: float
    waiting_output: float
    progress: float
    items: int


@dataclass(frozen=True, slots=True)
class MeterStats:
    """A thread's time so far, in seconds, the state in progress included; `progress` is the clock's time of the last progress."""

    state: ThreadState | None
    busy: float
    waiting_input: float
    waiting_output: float
    progress: float
    items: int
    item_counts: tuple[int, ...] = ()
    """Histogram of items by the busy time of each: a count for each of the meter's bounds, and one for items above the last."""
    item_busy: float = 0.0
    """Busy time of all those items."""


class Meter:
    """Books the time of one thread by state; paused time is booked nowhere. Only that thread writes; any thread may read.

    `item_bounds` are rising busy seconds: the bounds of the histogram of delivered items.

    The lock is held for a microsecond. Without it a reader that came between the writer's reading of the clock and its entry would
    book that moment under the old state, and the counter would go back at the next read: Prometheus takes that for a restart.
    """

    def __init__(self, clock: Clock = time.monotonic, item_bounds: Sequence[float] = ()) -> None:
        self._clock = clock
        self._item_bounds = item_bounds
        self._item_counts = [0] * (len(item_bounds) + 1)
        self._item_busy = 0.0
        self._lock = threading.Lock()
        now = clock()
        self._totals = _Totals(None, now, 0.0, 0.0, 0.0, now, 0)

    def enter(self, state: ThreadState | None) -> None:
        """Switch to `state`; None when the thread has ended."""
        with self._lock:
            self._totals = _settled(self._totals, self._clock())._replace(state=state)

    def progressed(self, items: int = 0) -> None:
        """The thread took an item, or delivered `items`."""
        with self._lock:
            now = self._clock()
            self._totals = _settled(self._totals, now)._replace(progress=now, items=self._totals.items + items)
            if items:
                busy = self._totals.busy - self._item_busy
                self._item_counts[bisect_left(self._item_bounds, busy / items)] += items
                self._item_busy = self._totals.busy

    @contextmanager
    def waiting(self, state: ThreadState) -> Iterator[None]:
        """Book the time inside as `state`. Its end counts as progress, or a long wait would look like a long time on one item."""
        before = self._totals.state
        self.enter(state)
        try:
            yield
        finally:
            with self._lock:
                now = self._clock()
                self._totals = _settled(self._totals, now)._replace(state=before, progress=now)

    def read(self) -> MeterStats:
        """The totals, as if the state in progress ended now."""
        with self._lock:
            totals = _settled(self._totals, self._clock())
            counts, busy = tuple(self._item_counts), self._item_busy
        waits = (totals.waiting_input, totals.waiting_output)
        return MeterStats(totals.state, totals.busy, *waits, totals.progress, totals.items, counts, busy)


def _settled(totals: _Totals, now: float) -> _Totals:
    """The totals with the time since the last change added to the present state."""
    spent = now - totals.since
    match totals.state:
        case "busy":
            return totals._replace(busy=totals.busy + spent, since=now)
        case "waiting_input":
            return totals._replace(waiting_input=totals.waiting_input + spent, since=now)
        case "waiting_output":
            return totals._replace(waiting_output=totals.waiting_output + spent, since=now)
        case _:
            return totals._replace(since=now)
