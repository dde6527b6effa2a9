"""Evaluations as the run tells of them: in status, metrics and events; what is warned of, and for how long."""

import json
import math
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.monitor.test_live import RUN, STEP
from tests.monitor.test_parting import FACTS
from tests.support.lines import lines_of
from trainer.metrics.exporter import Exporter
from trainer.monitor.acceptance import ESTIMATES_KEPT, sentence
from trainer.monitor.live import Live
from trainer.record.writer import RunRecord


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    record = RunRecord(tmp_path, 0, flush_seconds=0.01)
    yield Live(RUN, Exporter(CollectorRegistry(), "one"), record)
    record.close()


def exposed(live: Live) -> str:
    return live.exporter.exposition(None)[0].decode()


def events(live: Live) -> list[dict[str, object]]:
    live.record.close()
    return lines_of(live.record.folder / "events.jsonl")


def train(live: Live, steps: range, estimate: float = 2.2) -> None:
    for step in steps:
        live.stepped(replace(STEP, step=step, estimated_acceptance_length=estimate))


def test_before_the_first_evaluation_nothing_is_known(live: Live) -> None:
    acceptance = live.status()["acceptance"]
    assert (acceptance["measured_length"], acceptance["measured_at_step"], acceptance["measured_by_position"]) == (None, None, [])
    text = exposed(live)
    assert "\ndraftscope_measured_acceptance_length_tokens{" not in text, "0 would be a lie"
    assert "\ndraftscope_last_evaluation_step{" not in text
    for outcome in ("done", "failed", "skipped"):
        assert f'draftscope_evaluations_total{{outcome="{outcome}"}} 0.0' in text


def test_an_evaluation_is_in_status_metrics_and_events(live: Live) -> None:
    train(live, range(1490, 1530))
    live.evaluated(replace(FACTS, acceptance_by_position=(0.5, 0.3, None)))
    assert live.status()["acceptance"] == {
        "estimated_length": 2.2,
        "position_accuracy": [0.5, None],
        "measured_length": 2.0,
        "measured_at_step": 1500,
        "measured_by_position": [0.5, 0.3, None],
        "held_out_estimated_length": 2.1,
    }
    text = exposed(live)
    for line in (
        'draftscope_measured_acceptance_length_tokens{run_id="one"} 2.0',
        'draftscope_held_out_estimated_acceptance_length_tokens{run_id="one"} 2.1',
        'draftscope_measured_position_acceptance_ratio{position="2",run_id="one"} 0.3',
        'draftscope_last_evaluation_step{run_id="one"} 1500.0',
        'draftscope_evaluations_total{outcome="done"} 1.0',
        "draftscope_evaluation_duration_seconds_sum 40.0",
        f"draftscope_evaluation_rounds_total {float(FACTS.rounds)}",
        f"draftscope_evaluation_accepted_tokens_total {float(FACTS.rounds)}",
    ):
        assert line in text
    assert 'draftscope_measured_position_acceptance_ratio{position="3"' not in text
    [event] = events(live)
    said = "Measured acceptance length 2.00 on 16 held-out prompts after step 1,500 (estimated there: 2.10)."
    assert (event["event"], event["step"], event["message"]) == ("evaluated", 1500, said)
    assert event["acceptance_by_position"] == [0.5, 0.3, None]
    names = ("measured_length", "held_out_estimated_length", "training_estimated_length", "prompts", "rounds", "tokens", "seconds")
    assert [event[name] for name in (*names, "tokens_per_second")] == [2.0, 2.1, 2.2, 16, 1000, 2000, 40.0, 60.0]


def test_the_event_has_the_fields_that_the_record_page_names(live: Live) -> None:
    page = (Path(__file__).parents[2] / "docs" / "record.md").read_text()
    example = json.loads(page.rpartition("```json\n")[2].partition("```")[0])
    live.evaluated(FACTS)
    assert example.keys() == events(live)[0].keys()


def test_the_sentence() -> None:
    assert sentence(replace(FACTS, prompts=1, held_out_estimated_length=None)) == (
        "Measured acceptance length 2.00 on 1 held-out prompt after step 1,500."
    )


def test_what_training_promised_is_of_the_step_that_was_measured(live: Live) -> None:
    train(live, range(1, 11), estimate=9.0)
    train(live, range(11, 31), estimate=2.0)
    live.stepped(replace(STEP, step=31, estimated_acceptance_length=math.nan))
    live.stepped(replace(STEP, step=31, estimated_acceptance_length=50.0), "no_draft_tokens")
    train(live, range(32, 100), estimate=7.0)  # while the evaluation ran
    live.evaluated(replace(FACTS, step=31, training_estimated_length=None))
    live.evaluated(replace(FACTS, step=31, training_estimated_length=1.25))
    live.evaluated(replace(FACTS, step=0, training_estimated_length=None))
    assert [event["training_estimated_length"] for event in events(live) if event["event"] == "evaluated"] == [2.0, 1.25, None]


def test_what_is_remembered_of_training_has_a_bound(live: Live) -> None:
    train(live, range(ESTIMATES_KEPT + 100))
    assert len(live._evaluations._estimates) == ESTIMATES_KEPT


def warnings(live: Live) -> list[str]:
    return list(live.status()["warnings"])


def test_a_parting_is_told_once_and_shown_with_its_newest_numbers_until_it_is_over(live: Live) -> None:
    live.evaluated(replace(FACTS, step=500, measured_length=1.1))
    live.warn("Something else.")
    live.evaluated(replace(FACTS, step=1000, measured_length=1.2))
    other, newest = warnings(live)
    assert other == "Something else."
    assert newest.startswith("After step 1,000 ")
    assert "measured at 1.20" in newest
    live.evaluated(FACTS)
    assert warnings(live) == ["Something else."]
    live.evaluated(replace(FACTS, step=2000, measured_length=1.3))
    assert len(warnings(live)) == 2
    told = [event["message"] for event in events(live) if event["event"] == "warning"]
    assert [str(message)[:16] for message in told] == ["After step 500 t", "Something else."]


def test_a_failed_evaluation_is_a_warning_and_no_failure(live: Live) -> None:
    live.evaluation_failed("The evaluation after step 5 failed:\nno room.")
    assert warnings(live) == ["The evaluation after step 5 failed: no room."]
    assert (live.status()["last_error"], live.state) == (None, "starting")
    assert 'draftscope_evaluations_total{outcome="failed"} 1.0' in exposed(live)
    assert [event["event"] for event in events(live)] == ["evaluation_failed"]


def test_failures_that_repeat_push_no_other_warning_off_the_page(live: Live) -> None:
    live.warn("Something else.")
    for step in range(40):
        live.evaluation_failed(f"The evaluation after step {step} failed.")
    assert warnings(live) == ["Something else.", "The evaluation after step 39 failed."]
    live.evaluated(replace(FACTS, step=50))
    assert warnings(live) == ["Something else."]


def test_a_skipped_evaluation_is_counted_and_told_once(live: Live) -> None:
    for step in (1000, 1500):
        live.evaluation_skipped(step)
    assert 'draftscope_evaluations_total{outcome="skipped"} 2.0' in exposed(live)
    [warning] = warnings(live)
    assert warning.startswith("No evaluation after step 1,000,")
    assert "evaluate.every" in warning
    assert len(events(live)) == 1


def test_training_and_evaluating_at_once(live: Live) -> None:
    """Two threads that change places often; a deque that changes while it is read would raise."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    trainer = threading.Thread(target=train, args=(live, range(1, 3000)))
    trainer.start()
    try:
        while trainer.is_alive():
            live.evaluated(replace(FACTS, training_estimated_length=None))
            live.status()
    finally:
        trainer.join()
        sys.setswitchinterval(before)
    assert live.step == 2999
