"""Rates from steps: whole steps only, the last minute, and sinking while a step is overdue."""

from typing import NamedTuple

import pytest

from trainer.monitor.rates import NOTHING_DONE, Counts, Pace


class Ended(NamedTuple):
    at: float
    counts: Counts
    seconds: float


def step(number: int, at: float, seconds: float = 2.0) -> Ended:
    return Ended(at, Counts(number, 1000 * number, 80 * number), seconds)


def paced(*steps: Ended, base: Counts = NOTHING_DONE, per_step: float = 0.01) -> Pace:
    pace = Pace()
    for one in steps:
        pace.add(one.at, one.counts, per_step * one.counts.step, step_seconds=one.seconds, base=base)
    return pace


def test_nothing_is_known_before_the_first_step() -> None:
    assert Pace().rates(5.0).steps_per_second is None


def test_the_first_step_counts_from_its_own_beginning() -> None:
    rates = paced(step(1, at=10.0, seconds=4.0)).rates(10.0)
    assert (rates.steps_per_second, rates.context_tokens_per_second) == (0.25, 250)


def test_rates_go_from_the_end_of_one_step_to_the_end_of_another() -> None:
    rates = paced(*(step(n, at=2.0 * n) for n in range(1, 6))).rates(11.9)
    assert rates.steps_per_second == pytest.approx(0.5)
    assert rates.context_tokens_per_second == pytest.approx(500)
    assert rates.draft_tokens_per_second == pytest.approx(40)
    assert rates.progress_per_second == pytest.approx(0.005)


def test_the_first_step_is_left_out_once_there_are_three() -> None:
    pace = paced(step(1, at=100.0, seconds=90.0), step(2, at=101.0))
    assert pace.rates(101.0).steps_per_second == pytest.approx(2 / 91, abs=1e-4)
    third = step(3, at=102.0)
    pace.add(third.at, third.counts, 0.03, step_seconds=third.seconds, base=NOTHING_DONE)
    assert pace.rates(102.0).steps_per_second == pytest.approx(1.0)


def test_only_the_last_minute_counts() -> None:
    slow = [step(n, at=10.0 * n) for n in range(1, 11)]
    fast = [step(10 + n, at=100.0 + n) for n in range(1, 71)]
    assert paced(*slow, *fast).rates(170.0).steps_per_second == pytest.approx(1.0)


def test_steps_that_are_slower_than_the_window() -> None:
    assert paced(*(step(n, at=90.0 * n) for n in range(1, 5))).rates(360.0).steps_per_second == pytest.approx(1 / 90, abs=1e-4)


def test_in_a_stall_rates_sink() -> None:
    pace = paced(*(step(n, at=float(n)) for n in range(1, 5)))
    assert pace.rates(4.9).steps_per_second == pytest.approx(1.0), "the next step is not overdue yet"
    assert pace.rates(604.0).steps_per_second == pytest.approx(1 / 600, abs=1e-4)


def test_a_resumed_run_counts_its_own_steps() -> None:
    base = Counts(step=100, context_tokens=100_000, draft_tokens=8000)
    rates = paced(step(101, at=10.0), base=base).rates(10.0)
    assert (rates.steps_per_second, rates.context_tokens_per_second) == (0.5, 500)
    assert rates.progress_per_second == pytest.approx(0.005)


def test_ticks_between_two_steps_change_nothing() -> None:
    first, second = step(1, at=1.0), step(2, at=2.0)
    assert paced(first, first, first, second, second).rates(2.0) == paced(first, second).rates(2.0)
