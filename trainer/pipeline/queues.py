"""The bounded queue between two stages. It measures its own fill, and books the waits of its readers and writers.

A queue is bounded in items and in bytes, and ends when every writer is done. It knows nothing of what it carries, except that an
item may have a size, `nbytes`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from trainer.pipeline.meter import Meter

T = TypeVar("T")

# Waits wake up this often to poll `give_up`, which a signal's handler may have turned true.
_POLL_SECONDS = 0.1


class Cancelled(BaseException):
    """Raised in readers and writers of a cancelled queue. Not an `Exception`, so that no stage catches it by accident."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    name: str
    items: int
    capacity_items: int
    bytes: int
    capacity_bytes: int

    @property
    def fill_ratio(self) -> float:
        """Fill by items or by bytes, whichever is closer to its limit: 0 to 1."""
        return min(1.0, max(self.items / self.capacity_items, self.bytes / self.capacity_bytes))


class Queue(Generic[T]):
    """First in, first out, bounded in items and bytes. An item above the byte limit passes when the queue is empty.

    One condition serves readers and writers: whoever changes the queue wakes all of them, and each checks again. With a handful of
    threads a queue that is cheaper than two conditions, between which a wake-up could be lost.
    """

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
        """Set the number of writers; the queue ends when each of them has called `writer_done`."""
        self._writers = writers

    def put(self, item: T, meter: Meter) -> None:
        """Append `item`, waiting for room; the wait is booked on `meter`. Raises `Cancelled`."""
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
        """Take the next item, waiting for one; the wait is booked on `meter`.

        Raises `StopIteration` when every writer is done and nothing is left, or when `give_up()` returns True during the wait;
        `Cancelled` when the queue was cancelled; `RuntimeError` when an ordered queue ended with a gap in its numbers.
        """
        with self._changed:
            if not (self._is_ready() or self._is_over()):
                with meter.waiting("waiting_input"):
                    self._wait_until(lambda: self._is_ready() or self._is_over() or give_up())
            if self._cancelled:
                raise Cancelled(self.name)
            if not self._is_ready():
                if self._writers == 0 and self._count:
                    raise RuntimeError(
                        f"queue '{self.name}' ended with a gap: the item before its last {self._count} was never written"
                    )
                raise StopIteration
            item = self._pop()
            self._count -= 1
            self._bytes -= _size(item)
            meter.progressed()
            self._changed.notify_all()
            return item

    def writer_done(self) -> None:
        """To be called by each writer when it will put nothing more."""
        with self._changed:
            self._writers -= 1
            self._changed.notify_all()

    def cancel(self) -> None:
        """End every wait with `Cancelled` and drop the items, whose memory is freed."""
        with self._changed:
            self._cancelled = True
            self._drop_all()
            self._count = self._bytes = 0
            self._changed.notify_all()

    def read(self) -> QueueStats:
        """The present fill. Takes no lock: a scrape never delays a stage, and may see `items` and `bytes` an item apart."""
        return QueueStats(self.name, self._count, self._capacity_items, self._bytes, self._capacity_bytes)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.wait(_POLL_SECONDS)

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
    """Delivers items by their number `seq`, from `first_seq` on without a gap, in whatever order they arrive.

    The item whose turn it is always finds room. Otherwise a queue full of later items would deadlock: the reader waits for that
    item, and its writer for room. The queue may therefore exceed its bounds by that one item.
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
