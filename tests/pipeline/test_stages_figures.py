"""trainer/pipeline/stages.py: what stages and queues tell of themselves while they run."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.support.threads import FakeClock, Worker, eventually
from trainer.pipeline.meter import Meter
from trainer.pipeline.queues import OrderedQueue, Queue
from trainer.pipeline.stages import Stages, StageStats

BIG = 10**9
STAGES = ("dataset", "batches", "target", "drafter")


@dataclass(eq=False)
class Item:
    seq: int
    nbytes: int = 10


class Gate:
    """A stage whose threads stop at each item until one is let through."""

    def __init__(self) -> None:
        self.passes = threading.Semaphore(0)

    def __call__(self, items: Iterator[int]) -> Iterator[int]:
        for item in items:
            self.passes.acquire()
            yield item


class Gated:
    """Stage "target" with three threads on one gate, two numbers to read and room for one; its clock is set by hand."""

    def __init__(self) -> None:
        self.clock, self.gate = FakeClock(), Gate()
        self.stages = Stages(self.clock, item_bounds=(10.0,))
        self.numbers, self.features = Queue[int]("numbers", 2, BIG), Queue[int]("features", 1, BIG)
        for number in (1, 2):
            self.numbers.put(number, Meter())

    def start(self) -> None:
        self.stages.start("target", self.numbers, self.gate, self.gate, self.gate, into=self.features)

    def settle(self, *states: str) -> None:
        """Wait until the threads are in these states, so that the clock can go on."""
        eventually(lambda: sorted(str(meter.read().state) for meter in self.stages._meters["target"]) == sorted(states))

    def target(self) -> StageStats:
        (reading,) = self.stages.read()
        return reading


@pytest.fixture
def gated() -> Iterator[Gated]:
    gated = Gated()
    with gated.stages:
        gated.start()
        yield gated
        gated.numbers.cancel()
        gated.gate.passes.release(9)


def test_a_stages_threads_are_added_up_and_no_time_is_lost(gated: Gated) -> None:
    gated.settle("busy", "busy", "waiting_input")
    gated.clock.now += 10
    assert gated.target() == StageStats("target", 3, 0, 20, 10, 0, 10, 10, 3, (0, 0), 0)

    gated.gate.passes.release()
    gated.settle("busy", "waiting_input", "waiting_input")
    gated.clock.now += 5
    assert gated.target() == StageStats("target", 3, 1, 25, 20, 0, 5, 15, 3, (1, 0), 10)

    gated.gate.passes.release()
    gated.settle("waiting_input", "waiting_input", "waiting_output")
    gated.clock.now += 7
    assert gated.target() == StageStats("target", 3, 1, 25, 34, 7, 12, 0, 3, (1, 0), 10), (
        "while all wait, none is busy with an item"
    )

    gated.numbers.writer_done()
    assert [gated.features.get(Meter()), gated.features.get(Meter())] in ([1, 2], [2, 1])
    gated.settle("None", "None", "None")
    gated.clock.now += 1000
    ended = StageStats("target", 3, 2, 25, 34, 7, 1000, 0, 0, (1, 1), 25)
    assert gated.target() == ended, "an ended thread's time stands still"


def test_the_time_on_an_item_grows_while_a_stage_is_stuck(gated: Gated) -> None:
    gated.settle("busy", "busy", "waiting_input")
    for seconds in (1, 60, 3600):
        gated.clock.now = 100 + seconds
        assert gated.target().seconds_on_item == seconds
    gated.numbers.put(3, Meter())
    gated.settle("busy", "busy", "busy")
    gated.clock.now += 5
    assert (gated.target().seconds_on_item, gated.target().seconds_since_progress) == (3605, 5), "of the one that is stuck; of all"


def test_a_long_wait_is_not_taken_for_a_long_time_on_an_item() -> None:
    clock, ended = FakeClock(), threading.Event()

    def last_words(numbers: Iterator[int]) -> Iterator[int]:
        yield from numbers
        ended.wait()

    with Stages(clock) as stages:
        numbers = Queue[int]("numbers", 1, BIG)
        stages.start("batches", numbers, last_words, into=Queue[int]("batches", 1, BIG))
        (meter,) = stages._meters["batches"]
        eventually(lambda: meter.read().state == "waiting_input")
        clock.now += 500
        numbers.writer_done()
        eventually(lambda: meter.read().state == "busy")
        clock.now += 1
        assert [stage.seconds_on_item for stage in stages.read()] == [1]
        ended.set()


def test_queues_are_told_of_in_the_order_of_the_road() -> None:
    with Stages() as stages:
        numbers = stages.start("dataset", range(9), iter, into=Queue[int]("samples", 2, 100))
        stages.start("batches", numbers, iter, into=Queue[int]("batches", 3, 100))
        eventually(lambda: all(queue.items == queue.capacity_items for queue in stages.read_queues()))
        assert [(queue.name, queue.items, queue.fill_ratio) for queue in stages.read_queues()] == [
            ("samples", 2, 1.0),
            ("batches", 3, 1.0),
        ]


@pytest.mark.parametrize("slow", STAGES)
def test_memory_in_flight_is_bounded_whoever_is_slow(slow: str) -> None:
    with road(slow, seconds=0.002, capacity=100, capacity_bytes=25) as (stages, features):
        peaks: dict[str, int] = {}
        ended = threading.Event()

        def look(_: Meter) -> None:
            while not ended.is_set():
                time.sleep(0.0005)
                for queue in stages.read_queues():
                    peaks[queue.name] = max(peaks.get(queue.name, 0), queue.bytes)

        looking = Worker(look)
        for item in stages.consume("drafter", features):
            work(slow, "drafter", 0.002)
            if item.seq == 60:
                break
        ended.set()
        assert looking.ended() is None
    assert max(peaks["samples"], peaks["batches"]) <= 20, "two items of 10 bytes fit into 25"
    assert peaks["features"] <= 30, "and one more where it is its turn"


@pytest.mark.parametrize("slow", STAGES)
def test_the_slowest_stage_is_the_busiest(slow: str) -> None:
    with road(slow, seconds=0.005, capacity=2, capacity_bytes=BIG) as (stages, features):
        for item in stages.consume("drafter", features):
            work(slow, "drafter", 0.005)
            if item.seq == 40:
                break
        share = {stage.name: shares(stage) for stage in stages.read()}
    assert max(share, key=lambda name: share[name][0]) == slow
    assert share[slow][0] > 0.8
    before, after = STAGES[: STAGES.index(slow)], STAGES[STAGES.index(slow) + 1 :]
    assert all(share[name][2] > 0.6 for name in before), "who comes before it waits to hand on"
    assert all(share[name][1] > 0.6 for name in after), "who comes after it waits for input"


def shares(stage: StageStats) -> tuple[float, float, float]:
    """Busy, waiting for input, waiting for output; they add up to 1."""
    times = stage.busy_seconds, stage.waiting_input_seconds, stage.waiting_output_seconds
    return tuple(seconds / sum(times) for seconds in times)


def work(slow: str, name: str, seconds: float) -> None:
    if name == slow:
        time.sleep(seconds)


@contextmanager
def road(slow: str, seconds: float, capacity: int, capacity_bytes: int) -> Iterator[tuple[Stages, Queue[Item]]]:
    """An endless pipeline in which the stage `slow` needs so many seconds for an item."""

    def doing(name: str) -> Callable[[Iterator[Item]], Iterator[Item]]:
        def function(items: Iterator[Item]) -> Iterator[Item]:
            for item in items:
                work(slow, name, seconds)
                yield item

        return function

    with Stages() as stages:
        samples = Queue[Item]("samples", capacity, capacity_bytes)
        stages.start("dataset", map(Item, itertools.count()), doing("dataset"), into=samples)
        batches = Queue[Item]("batches", capacity, capacity_bytes)
        stages.start("batches", samples, doing("batches"), into=batches)
        features = OrderedQueue[Item]("features", capacity, capacity_bytes)
        yield stages, stages.start("target", batches, doing("target"), into=features)
