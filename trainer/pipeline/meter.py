"""Where the time of one thread goes: busy, waiting for input, waiting for output."""

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


class _Book(NamedTuple):
    state: ThreadState | None
    since: float
    busy: float
    waiting_input: float
    waiting_output: float
    progress: float
    items: int


@dataclass(frozen=True, slots=True)
class MeterStats:
    """Where a thread's time went so far, in seconds, the part still in progress included; `progress` is a clock time."""

    state: ThreadState | None
    busy: float
    waiting_input: float
    waiting_output: float
    progress: float
    items: int
    item_counts: tuple[int, ...] = ()
    """Items by the busy time that each took: one number for each of the meter's bounds, one more for those above the last."""
    item_busy: float = 0.0
    """Busy time of those items, all together."""


class Meter:
    """Books the time of one thread by state, a pause's nowhere. Only that thread writes; anybody may read at any time.

    `item_bounds` are busy seconds, rising, by which the items that were handed on are told apart.

    The lock is held for a microsecond. Without it a reader that comes between the writer's look at the clock and its entry would
    book that moment under the old state, and the next reading would go back: Prometheus takes that for a restart.
    """

    def __init__(self, clock: Clock = time.monotonic, item_bounds: Sequence[float] = ()) -> None:
        self._clock = clock
        self._item_bounds = item_bounds
        self._item_counts = [0] * (len(item_bounds) + 1)
        self._item_busy = 0.0
        self._lock = threading.Lock()
        now = clock()
        self._book = _Book(None, now, 0.0, 0.0, 0.0, now, 0)

    def enter(self, state: ThreadState | None) -> None:
        """From now on the thread is in `state`; None when it has ended."""
        with self._lock:
            self._book = _settled(self._book, self._clock())._replace(state=state)

    def progressed(self, items: int = 0) -> None:
        """The thread took an item in, or handed `items` on."""
        with self._lock:
            now = self._clock()
            self._book = _settled(self._book, now)._replace(progress=now, items=self._book.items + items)
            if items:
                busy = self._book.busy - self._item_busy
                self._item_counts[bisect_left(self._item_bounds, busy / items)] += items
                self._item_busy = self._book.busy

    @contextmanager
    def waiting(self, state: ThreadState) -> Iterator[None]:
        """Book the time inside as a wait. Its end counts as progress, or a long wait would look like a long time on one item."""
        before = self._book.state
        self.enter(state)
        try:
            yield
        finally:
            with self._lock:
                now = self._clock()
                self._book = _settled(self._book, now)._replace(state=before, progress=now)

    def read(self) -> MeterStats:
        with self._lock:
            book = _settled(self._book, self._clock())
            counts, busy = tuple(self._item_counts), self._item_busy
        waits = (book.waiting_input, book.waiting_output)
        return MeterStats(book.state, book.busy, *waits, book.progress, book.items, counts, busy)


def _settled(book: _Book, now: float) -> _Book:
    """The book with the time since its last change added to the state that it is in."""
    spent = now - book.since
    match book.state:
        case "busy":
            return book._replace(busy=book.busy + spent, since=now)
        case "waiting_input":
            return book._replace(waiting_input=book.waiting_input + spent, since=now)
        case "waiting_output":
            return book._replace(waiting_output=book.waiting_output + spent, since=now)
        case _:
            return book._replace(since=now)
