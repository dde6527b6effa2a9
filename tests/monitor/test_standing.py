"""trainer/monitor/standing.py: which states follow on which, and what time counts."""

import pytest

from tests.support.threads import FakeClock
from trainer.monitor.standing import Standing


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def standing(clock: FakeClock) -> Standing:
    return Standing(clock)


def test_time_runs_until_the_end(standing: Standing, clock: FakeClock) -> None:
    clock.now += 5
    assert standing.elapsed == 5
    standing.end("failed")
    clock.now += 1000
    assert (standing.state, standing.elapsed) == ("failed", 5)


def test_a_phase_has_a_time_of_its_own(standing: Standing, clock: FakeClock) -> None:
    clock.now += 5
    standing.enter_phase("loading the target")
    clock.now += 2
    assert (standing.phase, standing.phase_seconds, standing.elapsed) == ("loading the target", 2, 7)


def test_a_change_happens_only_from_the_state_that_was_meant(standing: Standing) -> None:
    assert not standing.change("running", "paused")
    assert standing.change("starting", "running")
    assert standing.state == "running"


@pytest.mark.parametrize(("stepped", "after"), [(False, "starting"), (True, "running")])
def test_a_stall_while_starting_is_over_with_the_first_step(standing: Standing, stepped: bool, after: str) -> None:
    assert standing.stall()
    assert not standing.stall(), "no news"
    standing.recover(stepped=stepped)
    assert standing.state == after


@pytest.mark.parametrize("state", ["paused", "finishing", "finished", "failed"])
def test_what_is_meant_to_stand_still_does_not_stall(standing: Standing, state: str) -> None:
    standing.set(state)
    assert not standing.stall()
    standing.recover(stepped=True)
    assert standing.state == state


def test_a_state_that_there_is_not(standing: Standing) -> None:
    with pytest.raises(ValueError, match=r"state must be one of starting, .*, got 'asleep'"):
        standing.set("asleep")
