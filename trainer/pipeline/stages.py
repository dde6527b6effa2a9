"""Runs plain generators as stages on threads of their own, joined by queues.

A stage is a function from an iterator to an iterator; it knows nothing of threads, queues or measuring. `Stages` owns the threads.
The first failure anywhere cancels every queue; leaving the `with` block joins all threads and raises it with its stage's name.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from trainer.pipeline.meter import Clock, Meter, MeterStats
from trainer.pipeline.queues import Cancelled, Queue, QueueStats

T = TypeVar("T")
U = TypeVar("U")
StageFunction = Callable[[Iterator[T]], Iterator[U]]

JOIN_SECONDS = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageStats:
    """Sums over a stage's threads, in thread-seconds. Busy and both waits add up to threads x lifetime, less pauses."""

    name: str
    threads: int
    items: int
    busy_seconds: float
    waiting_input_seconds: float
    waiting_output_seconds: float
    seconds_since_progress: float
    """Since the last time that any of its threads took or delivered an item."""
    seconds_on_item: float
    """Longest present time that one of its threads has been busy without progress; 0 while all wait or have ended."""
    running: int
    """Threads that have not ended."""
    item_counts: tuple[int, ...] = ()
    """Items by the busy time that each took, as in `MeterStats`."""
    item_busy_seconds: float = 0.0
    """Busy time of those items: `busy_seconds` without the items in progress."""


class Stages:
    """The threads of a pipeline, as a context manager.

    Each thread calls `thread_start` first. `clock` is monotonic, in seconds. `item_bounds` are rising busy seconds, the bounds of
    the histogram `StageStats.item_counts`.
    """

    def __init__(
        self,
        clock: Clock = time.monotonic,
        thread_start: Callable[[], object] = lambda: None,
        item_bounds: Sequence[float] = (),
    ) -> None:
        self._clock = clock
        self._item_bounds = item_bounds
        self._thread_start = thread_start
        self._threads: list[threading.Thread] = []
        self._meters: dict[str, list[Meter]] = {}
        self._queues: list[Queue[Any]] = []
        self._consumer: str | None = None
        self._failure: tuple[str | None, BaseException] | None = None
        self._lock = threading.Lock()
        self._closed = False
        self.failed_stage: str | None = None
        """Set when the `with` block is left because of an error."""

    def start(self, name: str, source: Iterable[T] | Queue[T], *functions: StageFunction[T, U], into: Queue[U]) -> Queue[U]:
        """Run each of `functions` on a thread of its own; all read `source` (a queue, or any iterable) and write to `into`."""
        into.open(writers=len(functions))
        with self._lock:
            self._queues.append(into)
            if self._failure is not None:  # an earlier stage has failed already, and could not cancel this queue
                into.cancel()
        self._meters[name] = [Meter(self._clock, self._item_bounds) for _ in functions]
        for number, (function, meter) in enumerate(zip(functions, self._meters[name], strict=True)):
            arguments = (name, function, source, into, meter)
            thread = threading.Thread(target=self._run, args=arguments, name=f"{name}-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return into

    def consume(self, name: str, source: Queue[T], give_up: Callable[[], bool] = lambda: False) -> Iterator[T]:
        """Make the caller's thread the last stage: its time with an item counts as busy. Ends when `give_up()` returns True."""
        meter = Meter(self._clock, self._item_bounds)
        self._meters[name] = [meter]
        self._consumer = name
        meter.enter("busy")
        try:
            for item in _read(source, meter, give_up):
                try:
                    yield item
                finally:  # the caller may break out of its loop: the item counts all the same
                    meter.progressed(1)
                if give_up():
                    break
        finally:
            meter.enter(None)

    def paused(self) -> AbstractContextManager[None]:
        """Wraps a pause on the consumer's thread: its time counts neither as busy nor as a wait."""
        (meter,) = self._meters[str(self._consumer)]
        return meter.waiting("paused")

    def has_failed(self) -> bool:
        """Whether a stage has raised, after which there is nothing more to consume."""
        return self._failure is not None

    def close(self) -> None:
        """End the pipeline: cancel the queues, and ignore what a stage raises from now on. Items in flight are dropped."""
        self._closed = True
        self._cancel()

    def read(self) -> list[StageStats]:
        """The stages in the order they were started, waits in progress included."""
        return [_add_up(name, [meter.read() for meter in meters], self._clock()) for name, meters in list(self._meters.items())]

    def read_queues(self) -> list[QueueStats]:
        """The queues in the order of the stages that write to them."""
        return [queue.read() for queue in list(self._queues)]

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None and not isinstance(error, Cancelled):
            self._fail(self._consumer, error)
        stuck = self._join()
        complaint = f"these threads did not end within {JOIN_SECONDS:g} s: {', '.join(stuck)}"
        if self._failure is None:
            if stuck:  # Python cannot end a thread; daemon threads end with the process
                log.warning(complaint)
            return
        self.failed_stage, first = self._failure
        if self.failed_stage is not None:
            first.add_note(f"in stage '{self.failed_stage}'")
        if stuck:
            first.add_note(complaint)
        if first is not error:
            context = first.__context__
            try:
                raise first
            finally:
                first.__context__ = context  # without `Cancelled`, which only carried the failure to this thread

    def _run(self, name: str, function: StageFunction[T, U], source: Iterable[T] | Queue[T], into: Queue[U], meter: Meter) -> None:
        meter.enter("busy")
        try:
            self._thread_start()
            for item in function(_read(source, meter)):
                into.put(item, meter)
        except Cancelled:
            pass
        except BaseException as error:
            self._fail(name, error)
        finally:
            into.writer_done()
            meter.enter(None)

    def _fail(self, name: str | None, error: BaseException) -> None:
        with self._lock:
            if self._failure is None and not self._closed:
                self._failure = (name, error)
        self._cancel()

    def _cancel(self) -> None:
        with self._lock:
            for queue in self._queues:
                queue.cancel()

    def _join(self) -> list[str]:
        """Cancel every queue and wait for the threads; returns the names of those that did not end in time."""
        self._cancel()
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [thread.name for thread in self._threads if thread.is_alive()]


def _read(source: Iterable[T] | Queue[T], meter: Meter, give_up: Callable[[], bool] = lambda: False) -> Iterator[T]:
    if not isinstance(source, Queue):
        yield from source
        return
    while True:
        try:
            item = source.get(meter, give_up)
        except StopIteration:
            return
        yield item


def _add_up(name: str, readings: list[MeterStats], now: float) -> StageStats:
    on_item = [now - reading.progress for reading in readings if reading.state == "busy"]
    return StageStats(
        name=name,
        threads=len(readings),
        items=sum(reading.items for reading in readings),
        busy_seconds=sum(reading.busy for reading in readings),
        waiting_input_seconds=sum(reading.waiting_input for reading in readings),
        waiting_output_seconds=sum(reading.waiting_output for reading in readings),
        seconds_since_progress=now - max(reading.progress for reading in readings),
        seconds_on_item=max(on_item, default=0.0),
        running=sum(reading.state is not None for reading in readings),
        item_counts=tuple(map(sum, zip(*(reading.item_counts for reading in readings), strict=True))),
        item_busy_seconds=sum(reading.item_busy for reading in readings),
    )
