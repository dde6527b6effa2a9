"""When measured and estimated acceptance have parted company, and what is said then; by table."""

import math
import random
from dataclasses import replace

import pytest

from trainer.monitor.acceptance import ROUNDS, standard_error, why_apart
from trainer.record.format import EvaluationLine

FACTS = EvaluationLine(
    step=1500,
    measured_length=2.0,
    acceptance_by_position=(0.5, 0.3, 0.2),
    held_out_estimated_length=2.1,
    training_estimated_length=2.2,
    prompts=16,
    rounds=1000,
    tokens=2000,
    seconds=40.0,
    tokens_per_second=60.0,
)


def kinds(training: float | None, held_out: float | None, measured: float, **changed: object) -> list[str]:
    lengths = {"training_estimated_length": training, "held_out_estimated_length": held_out, "measured_length": measured}
    return [parting.kind for parting in why_apart(replace(FACTS, **lengths, **changed))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("training", "held_out", "measured", "expected"),
    [
        (2.2, 2.1, 2.0, []),
        (1.03, 1.02, 1.0, []),  # too early
        (1.2, 1.0, 1.0, []),  # still too early, though all of it is lost
        (3.0, 2.5, 2.0, []),  # less at each step, as is to be expected
        (3.0, 1.9, 1.8, ["memorised"]),
        (3.0, 2.05, 2.02, []),  # just above a half
        (2.2, 2.1, 1.2, ["decoding"]),
        (8.0, 2.5, 1.1, ["memorised", "decoding"]),
        (4.0, 2.7, 2.0, ["either"]),  # no single step explains it, both together lose two thirds
        (4.0, None, 1.3, ["either"]),
        (4.0, None, 3.5, []),
        (None, 2.1, 1.2, ["decoding"]),
        (None, None, 1.2, []),
        (2.0, 2.0, 5.0, []),  # better than promised is no fault
        (math.nan, 2.1, 1.2, ["decoding"]),
        (4.0, math.nan, 3.5, []),
    ],
)
def test_what_has_parted(training: float | None, held_out: float | None, measured: float, expected: list[str]) -> None:
    assert kinds(training, held_out, measured) == expected


def test_few_rounds_say_nothing() -> None:
    assert kinds(9.0, 9.0, 1.1, rounds=ROUNDS) == ["decoding"]
    assert kinds(9.0, 9.0, 1.1, rounds=ROUNDS - 1) == []
    assert kinds(9.0, 9.0, 1.1, rounds=0) == []


def test_a_difference_within_the_noise_says_nothing() -> None:
    lumpy = (0.03,) * 15  # three rounds in a hundred keep everything
    assert kinds(2.4, 2.4, 1.45, acceptance_by_position=lumpy, rounds=60) == []
    assert kinds(2.4, 2.4, 1.45, acceptance_by_position=lumpy, rounds=600) == ["decoding"]


def test_the_standard_error_is_that_of_the_rounds() -> None:
    drawn = random.Random(0)
    kept = [min(7, int(drawn.expovariate(0.5))) for _ in range(500)]
    mean = sum(kept) / 500
    shares = tuple(sum(tokens >= k for tokens in kept) / 500 for k in range(1, 8))
    direct = math.sqrt(sum((tokens - mean) ** 2 for tokens in kept) / 500 / 500)
    facts = replace(FACTS, acceptance_by_position=(*shares, None), rounds=500)
    assert standard_error(facts) == pytest.approx(direct)
    assert sum(shares) == pytest.approx(mean)


def test_sentences_hold_the_numbers_and_the_way_out() -> None:
    memorised, decoding = why_apart(
        replace(FACTS, training_estimated_length=8.0, held_out_estimated_length=2.5, measured_length=1.1)
    )
    assert memorised.sentence == (
        "After step 1,500 the acceptance length is estimated at 8.00 on training data and at 2.50 on held-out conversations: "
        "the drafter knows its training data by heart. More conversations or fewer epochs help."
    )
    assert decoding.sentence.startswith(
        "After step 1,500 the acceptance length is estimated at 2.50 on held-out conversations and measured at 1.10 there: "
    )
    [either] = why_apart(replace(FACTS, training_estimated_length=8.0, held_out_estimated_length=None, measured_length=1.1))
    for sentence in (decoding.sentence, either.sentence):
        for cause in (
            "not this target's own",
            "`prepare`",
            "precision",
            "chat template or thinking mode",
            "sampled instead of greedy",
        ):
            assert cause in sentence
        assert len(sentence) <= 500, "longer ones are cut"
    assert "8.00" in either.sentence
    assert "1.10" in either.sentence
    assert "more conversations or fewer epochs" in either.sentence
