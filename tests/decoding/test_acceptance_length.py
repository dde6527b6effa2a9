"""trainer/decoding/acceptance_length.py: what rounds keep, by hand."""

import pytest

from trainer.decoding.acceptance_length import (
    Round,
    acceptance_by_position,
    acceptance_length,
    accepted_prefix,
    round_of,
    up_to_stop,
)

STOP = 9


@pytest.mark.parametrize(
    ("draft", "target", "kept"),
    [
        ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]),
        ([1, 2, 3], [1, 5, 3, 4], [1, 5]),
        ([1, 2, 3], [5, 2, 3, 4], [5]),
        ([], [4], [4]),
    ],
)
def test_a_round_keeps_the_common_prefix_and_one_token_of_the_targets(draft: list[int], target: list[int], kept: list[int]) -> None:
    assert accepted_prefix(draft, target) == kept


def test_a_text_is_cut_behind_the_first_token_that_ends_it() -> None:
    assert up_to_stop([1, STOP, 2, STOP], [STOP]) == [1, STOP]
    assert up_to_stop([1, 2], [STOP]) == [1, 2]


@pytest.mark.parametrize(
    ("drafted", "verified", "kept", "counts"),
    [
        (4, 5, [1, 2, 3, 4, 5], Round(4, 4, 5)),
        (4, 1, [1], Round(4, 0, 1)),
        (3, 4, [1, 2, 3], Round(3, 3, 3)),  # cut by the most tokens
        (4, 5, [1, STOP], Round(2, 2, 2)),  # the end was guessed; nothing is asked behind it
        (4, 2, [1, STOP], Round(2, 1, 2)),  # the end was the target's own token: a guess gone wrong
        (4, 5, [1, 2, 3, 4, STOP], Round(4, 4, 5)),  # an end behind a whole block was no guess
    ],
)
def test_the_counts_of_a_round(drafted: int, verified: int, kept: list[int], counts: Round) -> None:
    assert round_of(drafted, verified, kept, [STOP]) == counts


def test_acceptance_length_is_the_mean_over_rounds() -> None:
    assert acceptance_length([Round(4, 4, 5), Round(4, 0, 1), Round(2, 2, 2)]) == pytest.approx(8 / 3)
    assert acceptance_length([]) is None


def test_acceptance_by_position_counts_the_rounds_that_drafted_so_far() -> None:
    some = [Round(4, 4, 5), Round(4, 1, 2), Round(2, 2, 2), Round(4, 0, 1)]
    assert acceptance_by_position(some, 6) == (0.75, 0.5, pytest.approx(1 / 3), pytest.approx(1 / 3), None)
