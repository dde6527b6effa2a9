"""trainer/monitor/state.py: which states may follow which, walked through the monitor that keeps them."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.watched import STEP, Clock, Watched
from trainer.metrics.catalogue.run import RUN_STATES
from trainer.monitor.state import TRANSITIONS

# design.md §7 and docs/layout.md: a way from the start into each state.
WAYS: dict[str, tuple[str, ...]] = {
    "starting": (),
    "running": ("running",),
    "stalled": ("stalled",),
    "paused": ("running", "paused"),
    "finishing": ("finishing",),
    "finished": ("finished",),
    "failed": ("failed",),
}
EXPECTED = {
    ("starting", "running"),
    ("starting", "stalled"),
    ("running", "stalled"),
    ("stalled", "running"),
    ("stalled", "starting"),
    ("running", "paused"),
    ("stalled", "paused"),
    ("paused", "running"),
    *((before, "finishing") for before in ("starting", "running", "stalled", "paused")),
    *((before, end) for before in ("starting", "running", "stalled", "paused", "finishing") for end in ("finished", "failed")),
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(tmp_path: Path, clock: Clock) -> Watched:
    watched = Watched(tmp_path, clock)
    watched.record.close()
    return watched


def brought_to(run: Watched, state: str) -> None:
    run.state = run.state._replace(state="starting", ended_at=None)
    for step in WAYS[state]:
        assert run.enter(step)
    assert run.state.state == state


def test_the_table_names_every_state() -> None:
    assert set(TRANSITIONS) == set(RUN_STATES) == set(WAYS)


def test_every_transition_that_is_in_the_table_happens_and_no_other(run: Watched) -> None:
    happened = set()
    for before in RUN_STATES:
        for after in RUN_STATES:
            brought_to(run, before)
            if run.enter(after):
                happened.add((before, after))
            assert run.state.state == (after if (before, after) in happened else before)
    assert happened == EXPECTED


def test_a_state_that_there_is_not_is_refused(run: Watched) -> None:
    with pytest.raises(ValueError, match=r"state must be one of starting, .*, got 'asleep'"):
        run.enter("asleep")
    with pytest.raises(ValueError, match=r"enter\(\)"):
        run.update(state="paused")


def test_a_transition_can_be_bound_to_where_it_is_meant_from(run: Watched) -> None:
    run.enter("running")
    run.enter("paused")
    assert not run.enter("running", only_from="stalled"), "the end of a stall does not end a pause"
    assert run.enter("running", only_from="paused")


def test_time_runs_until_the_end(run: Watched, clock: Clock) -> None:
    clock.now += 5
    assert run.state.elapsed(clock()) == 5
    run.enter("failed")
    clock.now += 1000
    assert run.state.elapsed(clock()) == 5


def test_a_phase_has_a_time_of_its_own(run: Watched, clock: Clock) -> None:
    clock.now += 5
    run.enter_phase("loading the target")
    clock.now += 2
    evidence = run.state.evidence(clock(), clock.wall(), stall_seconds=300.0, lost_device_seconds=0.0)
    assert (evidence.phase, evidence.phase_seconds, evidence.elapsed) == ("loading the target", 2, 7)


def test_progress_is_what_the_newest_step_says_or_its_share_of_the_last(run: Watched) -> None:
    run.step(STEP)
    assert run.state.progress_ratio == 1 / 200
    run.step(replace(STEP, step=2), progress_ratio=0.25)
    assert run.state.progress_ratio == 0.25
    run.use_up_data()
    assert run.state.progress_ratio == 1.0
