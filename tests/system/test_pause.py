"""What a pause leaves out of the measurements: no stage's time, no step's time, no pace, no lost device time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.monitor.test_sampler import Bench
from tests.support.learning import batches_of, config_of, learner_for, train
from tests.support.threads import FakeClock
from tests.support.watched import STEP
from trainer.monitor.rates import Counts
from trainer.pipeline.queues import Queue
from trainer.pipeline.stages import Stages


def test_a_pause_of_the_consumer_is_booked_nowhere() -> None:
    clock = FakeClock()
    with Stages(clock) as stages:
        items = stages.start("target", range(2), lambda numbers: numbers, into=Queue("features", 4, 100))
        for number in stages.consume("drafter", items):
            clock.now += 1.0
            if number == 0:
                with stages.paused():
                    clock.now += 100.0
                    paused = stages.read()[-1]
                    clock.now += 100.0
                clock.now += 2.0
        after = stages.read()[-1]
    assert (paused.running, paused.seconds_on_item) == (1, 0.0), "paused is neither ended nor at work"
    assert (after.busy_seconds, after.waiting_input_seconds, after.waiting_output_seconds) == (4.0, 0.0, 0.0)
    assert after.item_busy_seconds == 4.0


def test_it_is_known_that_a_stage_has_failed_before_the_consumer_runs_into_it() -> None:
    def fail(_: Iterator[int]) -> Iterator[int]:
        raise ZeroDivisionError

    def run(stages: Stages) -> None:
        with stages:
            stages.start("target", range(2), fail, into=Queue("features", 4, 100))
            stages._threads[0].join(5)
            assert stages.has_failed()

    stages = Stages()
    assert not stages.has_failed()
    with pytest.raises(ZeroDivisionError):
        run(stages)


def test_a_rest_between_two_steps_is_no_steps_time() -> None:
    learner = learner_for(config_of())
    train(learner, batches_of(1))
    with learner.paused():
        time.sleep(0.5)
    (result,) = train(learner, batches_of(2)[1:])
    assert 0 < result.line.step_seconds < 0.5


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.sampler.attach(bench.stages)  # type: ignore[arg-type]
    yield bench
    bench.record.close()


def pause(bench: Bench, seconds: int) -> None:
    """The drafter's times stand still meanwhile; the target's go on, as it waits."""
    bench.watched.enter("paused")
    for _ in range(seconds):
        bench.clock.now += 1
        bench.sampler.tick()
    bench.watched.enter("running")


def test_a_pause_is_in_no_rate_no_share_and_no_lost_time(bench: Bench) -> None:
    bench.run(20)
    lost = bench.watched.status()["verdict"]["lost_device_hours"]
    pause(bench, 100)
    paused = bench.watched.status()
    assert paused["rates"]["steps_per_second"] is None
    bench.run(10, busy=0.5)
    status = bench.watched.status()
    assert status["rates"] == {"context_tokens_per_second": 1000.0, "draft_tokens_per_second": 80.0, "steps_per_second": 1.0}
    assert [stage["busy_ratio"] for stage in status["stages"]] == [1.0, 0.5]
    assert status["verdict"]["state"] == "stage_holds"
    assert 0 < status["verdict"]["lost_device_hours"] - lost <= 6 / 3600, "half of ten seconds"


def test_a_pause_is_no_stall_and_the_verdict_says_what_it_is(bench: Bench) -> None:
    bench.run(20)
    bench.stages.on_item = 500.0
    pause(bench, 100)
    bench.watched.enter("paused")
    bench.sampler.tick()
    assert (bench.watched.state.state, bench.watched.state.verdict.state) == ("paused", "paused")


def test_a_run_that_pauses_before_its_first_step_has_a_pace_after_it(bench: Bench) -> None:
    pause(bench, 100)
    bench.run(10)
    assert bench.watched.status()["rates"]["steps_per_second"] == 1.0


def test_a_pause_in_a_resumed_run(bench: Bench) -> None:
    bench.watched.begin(Counts(step=100, context_tokens=100_000, draft_tokens=8_000))
    for step in range(101, 120):
        if step == 110:
            pause(bench, 100)
        bench.clock.now += 1
        bench.watched.step(replace(STEP, step=step, context_tokens=1000 * step, draft_tokens=80 * step, step_seconds=1.0))
        bench.sampler.tick()
    assert bench.watched.status()["rates"]["steps_per_second"] == 1.0
