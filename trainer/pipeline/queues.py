"""The bounded queue between two stages, which measures itself.

Writers put items, readers get them; it is bounded in items and bytes, and ends when every writer is done. It knows nothing of
what it carries: an item may tell its size by `nbytes`. `Meter` is where a thread's time is booked: busy, or waiting on a queue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from trainer.pipeline.meter import Meter

T = TypeVar("T")

# A wait looks up this often, so that a signal's handler in the main thread gets its turn.
_GLANCE_SECONDS = 0.1


class Cancelled(BaseException):
    """The queue was cancelled under a reader or a writer. Not an `Exception`, so that no stage swallows it."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    name: str
    items: int
    capacity_items: int
    bytes: int
    capacity_bytes: int

    @property
    def fill_ratio(self) -> float:
        """How near the queue is to either of its limits, 0 to 1."""
        return min(1.0, max(self.items / self.capacity_items, self.bytes / self.capacity_bytes))


class Queue(Generic[T]):
    """First in, first out, bounded in items and bytes; an item above the byte limit passes when it is alone."""

    def __init__(self, name: str, capacity_items: int, capacity_bytes: int) -> None:
        self.name = name
        self._capacity_items = capacity_items
        self._capacity_bytes = capacity_bytes
        self._writers = 1
        self._count = 0
        self._bytes = 0
        self._cancelled = False
        self._changed = threading.Condition()
        self._items: deque[T] = deque()

    def open(self, writers: int) -> None:
        """Say how many writers there will be; the queue ends when as many have called `writer_done`."""
        self._writers = writers

    def put(self, item: T, meter: Meter) -> None:
        """Hand `item` on; waits for room, and books the wait. Raises `Cancelled`."""
        with self._changed:
            if not (self._has_room(item) or self._cancelled):
                with meter.waiting("waiting_output"):
                    self._wait_until(lambda: self._has_room(item) or self._cancelled)
            if self._cancelled:
                raise Cancelled(self.name)
            self._push(item)
            self._count += 1
            self._bytes += _size(item)
            meter.progressed(1)
            self._changed.notify_all()

    def get(self, meter: Meter, give_up: Callable[[], bool] = lambda: False) -> T:
        """The next item; waits for one, and books the wait.

        Raises `StopIteration` when every writer is done and nothing is left, or when `give_up()` turns true while waiting,
        `Cancelled` when the queue was cancelled, and `RuntimeError` when it ended with a gap.
        """
        with self._changed:
            if not (self._is_ready() or self._is_over()):
                with meter.waiting("waiting_input"):
                    self._wait_until(lambda: self._is_ready() or self._is_over() or give_up())
            if self._cancelled:
                raise Cancelled(self.name)
            if not self._is_ready():
                if self._writers == 0 and self._count:
                    raise RuntimeError(f"queue '{self.name}' ended with a gap: what comes before its last {self._count} never came")
                raise StopIteration
            item = self._pop()
            self._count -= 1
            self._bytes -= _size(item)
            meter.progressed()
            self._changed.notify_all()
            return item

    def writer_done(self) -> None:
        with self._changed:
            self._writers -= 1
            self._changed.notify_all()

    def cancel(self) -> None:
        """End every wait with `Cancelled` and let go of what is in the queue."""
        with self._changed:
            self._cancelled = True
            self._drop_all()
            self._count = self._bytes = 0
            self._changed.notify_all()

    def read(self) -> QueueStats:
        return QueueStats(self.name, self._count, self._capacity_items, self._bytes, self._capacity_bytes)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.wait(_GLANCE_SECONDS)

    def _is_over(self) -> bool:
        return self._cancelled or self._writers == 0

    def _has_room(self, item: T) -> bool:
        if self._count == 0:
            return True
        return self._count < self._capacity_items and self._bytes + _size(item) <= self._capacity_bytes

    def _is_ready(self) -> bool:
        return bool(self._items)

    def _push(self, item: T) -> None:
        self._items.append(item)

    def _pop(self) -> T:
        return self._items.popleft()

    def _drop_all(self) -> None:
        self._items.clear()


class Numbered(Protocol):
    @property
    def seq(self) -> int: ...


N = TypeVar("N", bound=Numbered)


class OrderedQueue(Queue[N]):
    """Hands items on by their number `seq`, from `first_seq` on without a gap, in whatever order they come in.

    The item whose turn it is always finds room, or writers that hold later ones would wait for it for ever.
    """

    def __init__(self, name: str, capacity_items: int, capacity_bytes: int, first_seq: int = 0) -> None:
        super().__init__(name, capacity_items, capacity_bytes)
        self._next_seq = first_seq
        self._early: dict[int, N] = {}

    def _has_room(self, item: N) -> bool:
        return item.seq == self._next_seq or super()._has_room(item)

    def _is_ready(self) -> bool:
        return self._next_seq in self._early

    def _push(self, item: N) -> None:
        self._early[item.seq] = item

    def _pop(self) -> N:
        item = self._early.pop(self._next_seq)
        self._next_seq += 1
        return item

    def _drop_all(self) -> None:
        self._early.clear()


def _size(item: object) -> int:
    return int(getattr(item, "nbytes", 0))
