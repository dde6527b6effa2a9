"""trainer/pipeline/queues.py: order, bounds, ends and cancelling, and where a thread's time goes."""

import itertools
import random
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.threads import FakeClock, Worker, eventually, restless
from trainer.pipeline import queues
from trainer.pipeline.meter import Meter
from trainer.pipeline.queues import Cancelled, OrderedQueue, Queue, QueueStats

BIG = 10**9


@dataclass(eq=False)
class Item:
    seq: int
    nbytes: int = 1


@pytest.fixture
def no_glances(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that is not woken now lasts longer than the test."""
    monkeypatch.setattr(queues, "_POLL_SECONDS", 60)


# Order, bounds, end.


def test_first_in_first_out() -> None:
    queue, meter = Queue[int]("numbers", 10, BIG), Meter()
    for number in (3, 1, 2):
        queue.put(number, meter)
    assert [queue.get(meter) for _ in range(3)] == [3, 1, 2]


@pytest.mark.usefixtures("no_glances")
def test_a_writer_waits_while_there_are_too_many_items() -> None:
    queue, meter = Queue[int]("numbers", 2, BIG), Meter()
    queue.put(1, meter)
    queue.put(2, meter)
    writer = Worker(lambda own: queue.put(3, own))
    writer.waits("waiting_output")
    assert queue.read() == QueueStats("numbers", 2, 2, 0, BIG)
    assert queue.get(meter) == 1
    writer.ended()
    assert (queue.get(meter), queue.get(meter)) == (2, 3)


@pytest.mark.usefixtures("no_glances")
def test_a_writer_waits_while_there_are_too_many_bytes() -> None:
    queue, meter = Queue[Item]("features", 100, 10), Meter()
    queue.put(Item(0, nbytes=6), meter)
    queue.put(Item(1, nbytes=4), meter)
    writer = Worker(lambda own: queue.put(Item(2, nbytes=5), own))
    writer.waits("waiting_output")
    assert (queue.read().items, queue.read().bytes) == (2, 10)
    queue.get(meter)
    writer.ended()
    assert queue.read().bytes == 9


def test_an_item_above_the_byte_limit_passes_when_it_is_alone() -> None:
    queue, meter = Queue[Item]("features", 4, 10), Meter()
    queue.put(Item(0, nbytes=99), meter)
    writer = Worker(lambda own: queue.put(Item(1), own))
    writer.waits("waiting_output")
    giant = Worker(lambda own: queue.put(Item(2, nbytes=99), own))
    giant.waits("waiting_output")
    first, second, third = (queue.get(meter) for _ in range(3))
    assert first.seq == 0
    assert {second.seq, third.seq} == {1, 2}
    assert queue.read().bytes == 0


@pytest.mark.usefixtures("no_glances")
def test_it_ends_when_every_writer_is_done_and_nothing_is_left() -> None:
    queue, meter = Queue[int]("numbers", 10, BIG), Meter()
    queue.open(writers=3)
    queue.put(7, meter)
    queue.writer_done()
    queue.writer_done()
    assert queue.get(meter) == 7
    readers = [Worker(queue.get) for _ in range(2)]
    for reader in readers:
        reader.waits("waiting_input")
    queue.put(8, meter)
    eventually(lambda: sum(reader.is_alive() for reader in readers) == 1)
    queue.writer_done()
    results = [reader.ended() for reader in readers]
    assert 8 in results
    assert any(isinstance(result, StopIteration) for result in results)


def test_what_is_left_is_read_after_the_last_writer_is_done() -> None:
    queue, meter = Queue[int]("numbers", 10, BIG), Meter()
    queue.put(1, meter)
    queue.writer_done()
    assert queue.get(meter) == 1
    with pytest.raises(StopIteration):
        queue.get(meter)


@pytest.mark.parametrize(
    ("items", "bytes_", "ratio"), [(0, 0, 0.0), (1, 0, 0.25), (1, 50, 0.5), (4, 100, 1.0), (5, 10, 1.0), (1, 900, 1.0)]
)
def test_fill_ratio_tells_of_the_nearer_limit(items: int, bytes_: int, ratio: float) -> None:
    assert QueueStats("features", items, 4, bytes_, 100).fill_ratio == ratio


# Cancelling and giving up.


@pytest.mark.usefixtures("no_glances")
@pytest.mark.parametrize("kind", [Queue, OrderedQueue])
def test_cancel_wakes_everybody_at_once(kind: type[Queue[Item]]) -> None:
    full, empty = kind("full", 1, BIG), kind("empty", 1, BIG)
    full.put(Item(5), Meter())
    writers = [Worker(lambda own, seq=seq: full.put(Item(seq), own)) for seq in (6, 7, 8)]
    readers = [Worker(empty.get) for _ in range(3)]
    for writer, reader in zip(writers, readers, strict=True):
        writer.waits("waiting_output")
        reader.waits("waiting_input")
    began = time.monotonic()
    full.cancel()
    empty.cancel()
    assert all(isinstance(worker.ended(), Cancelled) for worker in writers + readers)
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("kind", [Queue, OrderedQueue])
def test_cancel_lets_go_of_the_items(kind: type[Queue[Item]]) -> None:
    queue = kind("features", 10, BIG)
    items = [Item(seq, nbytes=10) for seq in range(3)]
    alive = [weakref.ref(item) for item in items]
    for item in items:
        queue.put(item, Meter())
    del item, items
    assert all(ref() is not None for ref in alive)
    queue.cancel()
    assert all(ref() is None for ref in alive)
    assert (queue.read().items, queue.read().bytes) == (0, 0)
    with pytest.raises(Cancelled):
        queue.put(Item(9), Meter())
    with pytest.raises(Cancelled):
        queue.get(Meter())


def test_cancelled_is_not_swallowed_by_except_exception() -> None:
    assert not issubclass(Cancelled, Exception)


def test_giving_up_ends_a_wait_soon() -> None:
    queue, enough = Queue[int]("numbers", 1, BIG), threading.Event()
    reader = Worker(lambda own: queue.get(own, give_up=enough.is_set))
    reader.waits("waiting_input")
    began = time.monotonic()
    enough.set()
    assert isinstance(reader.ended(), StopIteration)
    assert time.monotonic() - began < 0.5


def test_what_is_there_is_handed_on_in_spite_of_giving_up() -> None:
    queue = Queue[int]("numbers", 1, BIG)
    queue.put(1, Meter())
    assert queue.get(Meter(), give_up=lambda: True) == 1


# Numbered items.


def test_items_are_handed_on_by_number() -> None:
    queue, meter = OrderedQueue[Item]("features", 10, BIG, first_seq=4), Meter()
    for seq in (6, 4, 7, 5):
        queue.put(Item(seq), meter)
    assert [queue.get(meter).seq for _ in range(4)] == [4, 5, 6, 7]


@pytest.mark.usefixtures("no_glances")
@pytest.mark.parametrize("arrival", list(itertools.permutations(range(4))))
def test_no_order_of_arrival_can_block_it(arrival: tuple[int, ...]) -> None:
    queue = OrderedQueue[Item]("features", 1, BIG)
    writers = []
    for seq in arrival:
        writers.append(Worker(lambda own, seq=seq: queue.put(Item(seq), own)))
        eventually(lambda: not writers[-1].is_alive() or writers[-1].meter.read().state == "waiting_output")
        assert queue.read().items <= 2
    reader = Worker(lambda own: [queue.get(own).seq for _ in arrival])
    assert reader.ended() == [0, 1, 2, 3]
    assert [writer.ended() for writer in writers] == [None] * 4


def race(writers: int, capacity: int, capacity_bytes: int, sizes: list[int], seed: int) -> tuple[list[int], int, int]:
    """Writers take numbers in turn, as target threads do, and hand them on after random delays; returns order and peaks."""
    queue = OrderedQueue[Item]("features", capacity, capacity_bytes)
    queue.open(writers=writers)
    turns, taking, peaks = iter(enumerate(sizes)), threading.Lock(), [0, 0]

    def write(meter: Meter, number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        while True:
            with taking:
                seq, size = next(turns, (None, 0))
            if seq is None:
                queue.writer_done()
                return
            time.sleep(chance.choice((0, 0, 0.0005)))
            queue.put(Item(seq, size), meter)

    def read(meter: Meter) -> list[int]:
        seen = []
        while True:
            reading = queue.read()
            peaks[:] = max(peaks[0], reading.items), max(peaks[1], reading.bytes)
            try:
                seen.append(queue.get(meter).seq)
            except StopIteration:
                return seen

    workers = [Worker(lambda own, number=number: write(own, number)) for number in range(writers)]
    try:
        return Worker(read).ended(within=20), *peaks
    finally:
        queue.cancel()
        assert [worker.ended() for worker in workers] == [None] * writers


@settings(max_examples=60, deadline=None)
@given(
    writers=st.integers(1, 6),
    capacity=st.integers(1, 4),
    capacity_bytes=st.integers(1, 30),
    sizes=st.lists(st.integers(0, 20), max_size=40),
    seed=st.integers(0, 2**32),
)
def test_any_writers_capacities_and_delays(writers: int, capacity: int, capacity_bytes: int, sizes: list[int], seed: int) -> None:
    with restless():
        order, items, bytes_ = race(writers, capacity, capacity_bytes, sizes, seed)
    biggest = max(sizes, default=0)
    assert order == list(range(len(sizes)))
    assert items <= capacity + 1
    assert bytes_ <= max(capacity_bytes, biggest) + biggest


def test_an_end_with_a_gap_is_no_end() -> None:
    queue, meter = OrderedQueue[Item]("features", 10, BIG), Meter()
    queue.put(Item(0), meter)
    queue.put(Item(2), meter)
    queue.writer_done()
    assert queue.get(meter).seq == 0
    with pytest.raises(RuntimeError, match="'features' ended with a gap"):
        queue.get(meter)


# Where time goes.


def test_time_is_booked_by_state_and_a_wait_in_progress_counts() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    clock.now = 101  # before it began: booked nowhere
    meter.enter("busy")
    clock.now = 103
    with meter.waiting("waiting_input"):
        clock.now = 107
        assert (meter.read().state, meter.read().waiting_input) == ("waiting_input", 4)
    clock.now = 108
    with meter.waiting("waiting_output"):
        clock.now = 116
    meter.enter(None)
    clock.now = 200
    reading = meter.read()
    assert (reading.busy, reading.waiting_input, reading.waiting_output) == (3, 4, 8)
    assert reading.state is None


def test_progress_is_an_item_handed_on_or_the_end_of_a_wait() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    meter.enter("busy")
    clock.now = 110
    meter.progressed(2)
    assert (meter.read().progress, meter.read().items) == (110, 2)
    with meter.waiting("waiting_input"):
        clock.now = 500
    clock.now = 501
    assert meter.read().progress == 500, "or it would seem to have been busy with one item for 391 s"


def test_items_are_told_apart_by_their_busy_time_alone() -> None:
    clock = FakeClock()
    meter = Meter(clock, item_bounds=(1.0, 10.0))
    meter.enter("busy")
    for busy, waited in ((1, 500), (1.5, 0), (10, 0), (11, 3)):
        clock.now += busy
        with meter.waiting("waiting_output"):
            clock.now += waited
        meter.progressed(1)
    assert (meter.read().item_counts, meter.read().item_busy) == ((1, 2, 1), 23.5), "a bound belongs to the bucket below it"
    clock.now += 100
    assert meter.read().item_busy == 23.5, "an item counts once it is handed on"
    meter.progressed()
    assert sum(meter.read().item_counts) == 4, "one that is taken in is not handed on"


def test_items_handed_on_together_share_their_time() -> None:
    clock = FakeClock()
    meter = Meter(clock, item_bounds=(4.0,))
    meter.enter("busy")
    clock.now += 12
    meter.progressed(3)
    assert (meter.read().item_counts, meter.read().item_busy) == ((3, 0), 12)


@given(st.lists(st.tuples(st.sampled_from(["busy", "waiting_input", "waiting_output"]), st.integers(0, 1000)), max_size=30))
def test_the_three_times_add_up_to_the_lifetime(spells: list[tuple[str, int]]) -> None:
    clock = FakeClock()
    meter = Meter(clock)
    meter.enter("busy")
    expected = dict.fromkeys(("busy", "waiting_input", "waiting_output"), 0)
    for state, seconds in spells:
        if state == "busy":
            clock.now += seconds
        else:
            with meter.waiting(state):
                clock.now += seconds
        expected[state] += seconds
    reading = meter.read()
    assert {state: getattr(reading, state) for state in expected} == expected


def test_on_a_real_clock_they_add_up_too() -> None:
    queue = Queue[int]("numbers", 1, BIG)
    spans = {}

    def work(meter: Meter, take_or_give: Callable[[int], object], pause: float) -> None:
        began = time.monotonic()
        meter.enter("busy")
        for number in range(15):
            take_or_give(number)
            time.sleep(pause)
        meter.enter(None)
        spans[meter] = time.monotonic() - began

    writer = Worker(lambda own: work(own, lambda number: queue.put(number, own), 0.001))
    reader = Worker(lambda own: work(own, lambda _: queue.get(own), 0.01))
    for worker in (writer, reader):
        assert worker.ended() is None
        reading = worker.meter.read()
        assert reading.busy + reading.waiting_input + reading.waiting_output == pytest.approx(spans[worker.meter], abs=0.005)
    assert writer.meter.read().waiting_output > writer.meter.read().busy
    assert reader.meter.read().waiting_input < 0.05


def test_a_reader_in_another_thread_never_sees_half_of_a_change() -> None:
    ticks = itertools.count(1)
    meter, ended = Meter(lambda: next(ticks)), threading.Event()  # each look at the clock is one second later
    meter.enter("busy")
    began = next(ticks) - 1

    def work(_: Meter) -> None:
        while not ended.is_set():
            with meter.waiting("waiting_input"):
                pass
            with meter.waiting("waiting_output"):
                meter.progressed(1)

    with restless():
        worker, before = Worker(work), meter.read()
        for _ in range(5000):
            low = next(ticks)
            now = meter.read()
            high = next(ticks)
            assert low - began < now.busy + now.waiting_input + now.waiting_output < high - began
            for name in ("busy", "waiting_input", "waiting_output", "items"):
                assert getattr(now, name) >= getattr(before, name), "time went back"
            before = now
        ended.set()
        assert worker.ended() is None
