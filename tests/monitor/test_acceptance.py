"""Evaluations in status, metrics and events; why the acceptance lengths differ, what is warned of then, and for how long."""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.watched import EVALUATION, STEP, Watched
from trainer.monitor import acceptance
from trainer.monitor.acceptance import ROUNDS, gaps, standard_error


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    watched.record.close()


def test_before_the_first_evaluation_nothing_is_known(run: Watched) -> None:
    acceptance = run.status()["acceptance"]
    assert (acceptance["measured_length"], acceptance["measured_at_step"], acceptance["measured_by_position"]) == (None, None, [])
    text = run.exposed()
    assert "\ndraftscope_measured_acceptance_length_tokens{" not in text, "0 would be a lie"
    assert "\ndraftscope_last_evaluation_step{" not in text
    for outcome in ("done", "failed", "skipped"):
        assert f'draftscope_evaluations_total{{outcome="{outcome}"}} 0.0' in text


def test_an_evaluation_is_in_status_metrics_and_events(run: Watched) -> None:
    run.step(replace(STEP, step=1529, estimated_acceptance_length=2.2))
    run.evaluations.evaluated(replace(EVALUATION, acceptance_by_position=(0.5, 0.3, None)))
    assert run.status()["acceptance"] == {
        "estimated_length": 2.2,
        "position_accuracy": [0.5, None],
        "measured_length": 2.0,
        "measured_at_step": 1500,
        "measured_by_position": [0.5, 0.3, None],
        "held_out_estimated_length": 2.1,
    }
    text = run.exposed()
    for line in (
        'draftscope_measured_acceptance_length_tokens{run_id="one"} 2.0',
        'draftscope_held_out_estimated_acceptance_length_tokens{run_id="one"} 2.1',
        'draftscope_measured_position_acceptance_ratio{position="2",run_id="one"} 0.3',
        'draftscope_last_evaluation_step{run_id="one"} 1500.0',
        'draftscope_evaluations_total{outcome="done"} 1.0',
        "draftscope_evaluation_duration_seconds_sum 40.0",
        f"draftscope_evaluation_rounds_total {float(EVALUATION.rounds)}",
        f"draftscope_evaluation_accepted_tokens_total {float(EVALUATION.rounds)}",
    ):
        assert line in text
    assert 'draftscope_measured_position_acceptance_ratio{position="3"' not in text
    [event] = run.events()
    said = "Measured acceptance length 2.00 on 16 held-out prompts after step 1,500 (estimated there: 2.10)."
    assert (event["event"], event["step"], event["message"]) == ("evaluated", 1500, said)
    assert event["acceptance_by_position"] == [0.5, 0.3, None]
    names = ("measured_length", "held_out_estimated_length", "training_estimated_length", "prompts", "rounds", "tokens", "seconds")
    assert [event[name] for name in (*names, "tokens_per_second")] == [2.0, 2.1, 2.2, 16, 1000, 2000, 40.0, 60.0]


def test_the_event_has_the_fields_that_the_record_page_names(run: Watched) -> None:
    page = (Path(__file__).parents[2] / "docs" / "record.md").read_text()
    example = json.loads(page.rpartition("```json\n")[2].partition("```")[0])
    run.evaluations.evaluated(EVALUATION)
    assert example.keys() == run.events()[0].keys()


def test_the_sentence() -> None:
    assert acceptance.sentence(replace(EVALUATION, prompts=1, held_out_estimated_length=None)) == (
        "Measured acceptance length 2.00 on 1 held-out prompt after step 1,500."
    )


def warnings(run: Watched) -> list[str]:
    return list(run.status()["warnings"])


def test_a_parting_is_told_once_and_shown_with_its_newest_numbers_until_it_is_over(run: Watched) -> None:
    run.evaluations.evaluated(replace(EVALUATION, step=500, measured_length=1.1))
    run.warn("Something else.")
    run.evaluations.evaluated(replace(EVALUATION, step=1000, measured_length=1.2))
    other, newest = warnings(run)
    assert other == "Something else."
    assert newest.startswith("After step 1,000 ")
    assert "measured at 1.20" in newest
    run.evaluations.evaluated(EVALUATION)
    assert warnings(run) == ["Something else."]
    run.evaluations.evaluated(replace(EVALUATION, step=2000, measured_length=1.3))
    assert len(warnings(run)) == 2
    told = [event["message"] for event in run.events() if event["event"] == "warning"]
    assert [str(message)[:16] for message in told] == ["After step 500 t", "Something else."]


def test_a_failed_evaluation_is_a_warning_and_no_failure(run: Watched) -> None:
    run.evaluations.evaluation_failed("The evaluation after step 5 failed:\nno room.")
    assert warnings(run) == ["The evaluation after step 5 failed: no room."]
    assert (run.status()["last_error"], run.state.state) == (None, "starting")
    assert 'draftscope_evaluations_total{outcome="failed"} 1.0' in run.exposed()
    assert [event["event"] for event in run.events()] == ["evaluation_failed"]


def test_failures_that_repeat_push_no_other_warning_off_the_page(run: Watched) -> None:
    run.warn("Something else.")
    for step in range(40):
        run.evaluations.evaluation_failed(f"The evaluation after step {step} failed.")
    assert warnings(run) == ["Something else.", "The evaluation after step 39 failed."]
    run.evaluations.evaluated(replace(EVALUATION, step=50))
    assert warnings(run) == ["Something else."]


def test_a_skipped_evaluation_is_counted_and_told_once(run: Watched) -> None:
    for step in (1000, 1500):
        run.evaluations.evaluation_skipped(step)
    assert 'draftscope_evaluations_total{outcome="skipped"} 2.0' in run.exposed()
    [warning] = warnings(run)
    assert warning.startswith("No evaluation after step 1,000:")
    assert "evaluate.every" in warning
    assert len(run.events()) == 1


def kinds(training: float | None, held_out: float | None, measured: float, **changed: object) -> list[str]:
    lengths = {"training_estimated_length": training, "held_out_estimated_length": held_out, "measured_length": measured}
    return [gap.kind for gap in gaps(replace(EVALUATION, **lengths, **changed))]  # type: ignore[arg-type]


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
    facts = replace(EVALUATION, acceptance_by_position=(*shares, None), rounds=500)
    assert standard_error(facts) == pytest.approx(direct)
    assert sum(shares) == pytest.approx(mean)


def test_sentences_hold_the_numbers_and_the_way_out() -> None:
    memorised, decoding = gaps(
        replace(EVALUATION, training_estimated_length=8.0, held_out_estimated_length=2.5, measured_length=1.1)
    )
    assert memorised.sentence == (
        "After step 1,500 the acceptance length is estimated at 8.00 on training data and at 2.50 on held-out conversations: "
        "the drafter knows its training data by heart. More conversations or fewer epochs help."
    )
    assert decoding.sentence.startswith(
        "After step 1,500 the acceptance length is estimated at 2.50 on held-out conversations and measured at 1.10 there: "
    )
    [either] = gaps(replace(EVALUATION, training_estimated_length=8.0, held_out_estimated_length=None, measured_length=1.1))
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
