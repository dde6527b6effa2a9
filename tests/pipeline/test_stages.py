"""trainer/pipeline/stages.py: generators on threads, and that every way to end ends all of them."""

import itertools
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.threads import eventually, restless
from trainer.pipeline import stages as stages_module
from trainer.pipeline.queues import Cancelled, OrderedQueue, Queue
from trainer.pipeline.stages import Stages

BIG = 10**9
SOON = 1.0  # seconds; the promise is 5
STAGES = ("dataset", "batches", "target", "drafter")


class BoomError(Exception): ...


@dataclass(eq=False)
class Item:
    seq: int
    nbytes: int = 10


Work = Callable[[str, Item], None]


def nothing(_: str, __: Item) -> None:
    pass


@dataclass
class Road:
    """A small pipeline with the shape of the real one; `work(stage, item)` is called in every stage for every item."""

    work: Work = nothing
    length: int | None = 20
    capacity: int = 1
    targets: int = 2
    stages: Stages = field(default_factory=Stages)
    seen: list[int] = field(default_factory=list)

    def doing(self, name: str) -> Callable[[Iterator[Item]], Iterator[Item]]:
        def function(items: Iterator[Item]) -> Iterator[Item]:
            for item in items:
                self.work(name, item)
                yield item

        return function

    def travel(self) -> list[int]:
        numbers = itertools.count() if self.length is None else range(self.length)
        with self.stages as stages:
            samples = Queue[Item]("samples", self.capacity, BIG)
            stages.start("dataset", map(Item, numbers), self.doing("dataset"), into=samples)
            batches = Queue[Item]("batches", self.capacity, BIG)
            stages.start("batches", samples, self.doing("batches"), into=batches)
            features = OrderedQueue[Item]("features", self.capacity, BIG)
            stages.start("target", batches, *[self.doing("target")] * self.targets, into=features)
            for item in stages.consume("drafter", features):
                self.work("drafter", item)
                self.seen.append(item.seq)
        return self.seen


def failing(stage: str, seq: int) -> Work:
    def explode(name: str, item: Item) -> None:
        if (name, item.seq) == (stage, seq):
            raise BoomError(f"{stage} at {seq}")

    return explode


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.rpartition("-")[0] in STAGES}


def plain(numbers: Iterator[int]) -> Iterator[int]:
    yield from numbers


Function = Callable[[Iterator[int]], Iterator[int]]


def run(stages: Stages, *functions: Function, source: Iterable[int] | None = None, leave_after: int | None = None) -> list[int]:
    """The functions on a thread each, from an endless source unless told otherwise; what comes out."""
    seen = []
    with stages:
        queue = itertools.count() if source is None else source
        for name, function in zip(STAGES, functions, strict=False):
            queue = stages.start(name, queue, function, into=Queue[int](name, 1, BIG))
        for number in stages.consume("drafter", queue):
            seen.append(number)
            if number == leave_after:
                break
    return seen


# Orderly ends.


@pytest.mark.parametrize("targets", [1, 2, 5])
@pytest.mark.parametrize("capacity", [1, 3, 100])
def test_generators_are_joined_into_a_road(capacity: int, targets: int) -> None:
    road = Road(capacity=capacity, targets=targets)
    assert road.travel() == list(range(20))
    assert threads() == set()
    assert {stage.name: (stage.items, stage.running) for stage in road.stages.read()} == dict.fromkeys(STAGES, (20, 0))
    assert road.stages.failed_stage is None


def test_no_data_is_a_clean_end() -> None:
    assert Road(length=0).travel() == run(Stages(), plain, source=()) == []


def test_a_stage_may_hand_on_fewer_or_more_items_than_it_takes() -> None:
    def pairs(numbers: Iterator[int]) -> Iterator[int]:
        for number in numbers:
            if number % 2:
                yield number
                yield -number

    assert run(Stages(), pairs, plain, source=range(5)) == [1, -1, 3, -3]


def test_leaving_the_loop_ends_an_endless_source() -> None:
    stages = Stages()
    assert run(stages, plain, leave_after=7) == list(range(8))
    assert threads() == set()
    assert {stage.name: stage.items for stage in stages.read()}["drafter"] == 8, "the last one too"
    assert {stage.name: stage.running for stage in stages.read()} == {"dataset": 0, "drafter": 0}


def test_a_signal_is_handled_within_a_wait_and_can_end_it() -> None:
    enough, began = threading.Event(), time.monotonic()
    before = signal.signal(signal.SIGUSR1, lambda *_: enough.set())
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        with Stages() as stages:
            assert list(stages.consume("drafter", Queue[int]("features", 1, BIG), give_up=enough.is_set)) == []
        assert time.monotonic() - began < 0.1 + 0.3
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_giving_up_ends_the_loop_after_the_item_in_hand() -> None:
    enough, seen = threading.Event(), []
    with Stages() as stages:
        queue = stages.start("dataset", itertools.count(), plain, into=Queue[int]("samples", 3, BIG))
        for number in stages.consume("drafter", queue, give_up=enough.is_set):
            seen.append(number)
            if number == 3:
                enough.set()
    assert seen == [0, 1, 2, 3]


def test_each_thread_begins_by_thread_start() -> None:
    names = []
    road = Road(stages=Stages(thread_start=lambda: names.append(threading.current_thread().name)))
    road.travel()
    assert sorted(names) == ["batches-0", "dataset-0", "target-0", "target-1"]


# Failures.


def explode_at(last: int) -> Function:
    def explode(numbers: Iterator[int]) -> Iterator[int]:
        for number in numbers:
            if number == last:
                raise BoomError
            yield number

    return explode


def fail_in_the_loop(stages: Stages, *functions: Function) -> None:
    with stages:
        queue = stages.start("dataset", itertools.count(), functions[0], into=Queue[int]("samples", 1, BIG))
        for _ in stages.consume("drafter", stages.start("batches", queue, functions[1], into=Queue[int]("batches", 1, BIG))):
            raise BoomError


def assert_failed(road: Road, stage: str, function: str = "explode") -> BoomError:
    began = time.monotonic()
    with pytest.raises(BoomError) as caught:
        road.travel()
    assert time.monotonic() - began < SOON
    assert threads() == set()
    assert caught.value.__notes__ == [f"in stage '{stage}'"]
    assert road.stages.failed_stage == stage
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == function, "where it happened, not where it surfaced"
    assert "Cancelled" not in "".join(traceback.format_exception(caught.value))
    assert all(stage.running == 0 for stage in road.stages.read())
    return caught.value


@pytest.mark.parametrize("seq", [0, 1, 2, 7, 19])
@pytest.mark.parametrize("stage", STAGES)
def test_a_failure_anywhere_stops_everything(stage: str, seq: int) -> None:
    assert str(assert_failed(Road(failing(stage, seq)), stage)) == f"{stage} at {seq}"


@settings(max_examples=50, deadline=None)
@given(stage=st.sampled_from(STAGES), seq=st.integers(0, 30), capacity=st.integers(1, 4), targets=st.integers(1, 4))
def test_a_failure_at_any_item_with_any_shape(stage: str, seq: int, capacity: int, targets: int) -> None:
    with restless():
        road = Road(failing(stage, seq), length=None, capacity=capacity, targets=targets)
        assert_failed(road, stage)
    assert road.seen == list(range(len(road.seen)))


@pytest.mark.parametrize("stage", STAGES)
def test_a_failure_while_the_queues_are_full_and_writers_wait(stage: str) -> None:
    jammed, road = threading.Event(), Road(length=None)

    def explode(name: str, item: Item) -> None:
        if name == "drafter" and item.seq == 0:
            eventually(lambda: all(queue.fill_ratio == 1 for queue in road.stages.read_queues()))
            jammed.set()
        if name == stage and jammed.is_set():
            raise BoomError

    road.work = explode
    assert_failed(road, stage)


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_failure_while_readers_wait_for_a_slow_source(stage: str) -> None:
    def work(name: str, item: Item) -> None:
        time.sleep(0.01 if name == "dataset" else 0)
        failing(stage, 2)(name, item)

    assert_failed(Road(work, length=None), stage)


@pytest.mark.parametrize(("one", "other"), [("target", "target"), ("dataset", "target"), ("batches", "drafter")])
def test_two_failures_at_once_are_one_error(one: str, other: str) -> None:
    both = threading.Barrier(2, timeout=5)

    def explode(name: str, item: Item) -> None:
        if (name, item.seq) in ((one, 4), (other, 3)):
            both.wait()
            raise BoomError(name)

    road = Road(explode, length=None, capacity=2)
    with pytest.raises(BoomError) as caught:
        road.travel()
    assert threads() == set()
    assert caught.value.__notes__ == [f"in stage '{road.stages.failed_stage}'"] == [f"in stage '{caught.value}'"]


def test_the_first_failure_is_told_not_what_came_of_it() -> None:
    def complain(numbers: Iterator[int]) -> Iterator[int]:
        try:
            for number in numbers:
                yield number
                time.sleep(0.01)  # so that all others wait for it, and it is here that it hears of the failure
        except Cancelled as error:
            raise ValueError("a consequence") from error

    stages = Stages()
    with pytest.raises(BoomError) as caught:
        run(stages, plain, complain, explode_at(5))
    assert caught.value.__notes__ == ["in stage 'target'"]
    with pytest.raises(BoomError) as caught:
        fail_in_the_loop(stages := Stages(), plain, complain)
    assert caught.value.__notes__ == ["in stage 'drafter'"]
    assert stages.failed_stage == "drafter"


def test_what_caused_a_failure_stays_with_it() -> None:
    def explode(name: str, item: Item) -> None:
        if name == "target":
            try:
                {}["missing"]
            except KeyError:
                raise BoomError  # noqa: B904

    assert isinstance(assert_failed(Road(explode), "target").__context__, KeyError)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_whatever_the_loop_raises_the_others_stop(kind: type[BaseException]) -> None:
    def explode(name: str, item: Item) -> None:
        if (name, item.seq) == ("drafter", 2):
            raise kind

    with pytest.raises(kind) as caught:
        Road(explode, length=None).travel()
    assert caught.value.__notes__ == ["in stage 'drafter'"]
    assert threads() == set()


def test_a_failure_before_the_loop_is_no_stages() -> None:
    def fail() -> None:
        with stages:
            stages.start("dataset", itertools.count(), plain, into=Queue[int]("samples", 1, BIG))
            raise BoomError

    stages = Stages()
    with pytest.raises(BoomError) as caught:
        fail()
    assert (stages.failed_stage, getattr(caught.value, "__notes__", [])) == (None, [])
    assert threads() == set()


def test_a_stage_that_fails_before_the_next_one_starts_is_not_taken_for_the_end() -> None:
    ended = []

    def late() -> None:
        with Stages() as stages:
            samples = stages.start("dataset", range(9), explode_at(0), into=Queue[int]("samples", 1, BIG))
            eventually(lambda: threads() == set())
            batches = stages.start("batches", samples, plain, into=Queue[int]("batches", 1, BIG))
            ended.extend(stages.consume("drafter", batches))
            ended.append("as if all had been read")

    with pytest.raises(BoomError):
        late()
    assert ended == []


def test_a_source_that_cannot_be_read_is_a_failure_of_its_stage() -> None:
    with pytest.raises(BoomError) as caught:
        run(Stages(), plain, source=explode_at(1)(iter(range(9))))
    assert caught.value.__notes__ == ["in stage 'dataset'"]


def test_a_thread_that_cannot_begin_is_a_failure_of_its_stage() -> None:
    def explode() -> None:
        raise BoomError

    assert_failed(Road(stages=Stages(thread_start=explode)), "dataset")


def test_a_stage_cannot_swallow_that_it_was_cancelled() -> None:
    def stubborn(numbers: Iterator[int]) -> Iterator[int]:
        while True:
            try:
                yield next(numbers)
            except StopIteration:
                return
            except Exception:
                continue

    with pytest.raises(BoomError):
        run(Stages(), plain, stubborn, explode_at(5))
    assert threads() == set()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A stage that waits for it does not end before the test does."""
    monkeypatch.setattr(stages_module, "JOIN_SECONDS", 0.2)
    release = threading.Event()
    yield release
    release.set()
    eventually(lambda: threads() == set())


def test_a_thread_that_does_not_end_is_named_and_stops_nobody(stuck: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    def hang(numbers: Iterator[int]) -> Iterator[int]:
        yield next(numbers)
        stuck.wait()

    stages = Stages()
    run(stages, plain, hang, leave_after=0)
    assert "did not end within 0.2 s: batches-0" in caplog.text
    assert stages.failed_stage is None
    assert {stage.name: stage.running for stage in stages.read()} == {"dataset": 0, "batches": 1, "drafter": 0}


def test_a_failure_tells_of_threads_that_did_not_end(stuck: threading.Event) -> None:
    hanging = threading.Event()

    def explode(name: str, item: Item) -> None:
        if (name, item.seq) == ("dataset", 1):
            hanging.set()
            stuck.wait()
        if name == "target" and hanging.wait(5):
            raise BoomError

    with pytest.raises(BoomError) as caught:
        Road(explode).travel()
    assert caught.value.__notes__ == ["in stage 'target'", "these threads did not end within 0.2 s: dataset-0"]
