"""What a run says of itself, from before the target is loaded until its end."""

import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.monitor.test_parting import FACTS
from tests.support.lines import lines_of
from trainer.metrics.catalogue.index import step_columns
from trainer.metrics.catalogue.watching import WATCH_SECONDS
from trainer.metrics.exporter import Exporter
from trainer.monitor.live import Live
from trainer.monitor.moments import Rates, Tick
from trainer.monitor.verdict import Verdict
from trainer.record.format import StepLine
from trainer.record.writer import RunRecord

RUN = {"id": "one", "name": "one", "started_at": "2026-11-30T10:00:00+00:00", "command": ["train"], "max_steps": 200}
STEP = StepLine(
    step=1,
    epoch=0.1,
    loss=10.8,
    learning_rate=6e-4,
    grad_norm=1.5,
    position_accuracy=(0.5, None),
    estimated_acceptance_length=1.5,
    context_tokens=1000,
    draft_tokens=80,
    samples=4,
    step_seconds=0.5,
    seq=0,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def record(tmp_path: Path) -> Iterator[RunRecord]:
    record = RunRecord(tmp_path, 0, flush_seconds=0.01)
    yield record
    record.close()


@pytest.fixture
def live(record: RunRecord, clock: Clock) -> Live:
    return Live(RUN, Exporter(CollectorRegistry(), "one"), record, clock, lambda: 1764497000.0 + clock.now)


def exposed(live: Live) -> str:
    return live.exporter.exposition(None)[0].decode()


def events(live: Live) -> list[dict[str, object]]:
    live.record.close()
    return lines_of(live.record.folder / "events.jsonl")


def test_it_answers_while_the_target_is_loading(live: Live, clock: Clock) -> None:
    live.phase("loading the target")
    clock.now += 12
    status = live.status()
    assert (status["state"], status["phase"], status["step"], status["loss"]) == ("starting", "loading the target", 0, None)
    assert status["verdict"]["sentence"] == "Warming up: loading the target, 12 s so far."
    assert status["rates"]["steps_per_second"] is None
    assert "\ndraftscope_loss{" not in exposed(live), "no loss is known yet, and 0 would be a lie"
    assert "draftscope_steps_total 0.0" in exposed(live)


def test_a_step_is_in_status_metrics_and_record(live: Live, clock: Clock) -> None:
    live.began()
    clock.now += 3
    live.stepped(STEP)
    status = live.status()
    assert (status["state"], status["step"], status["loss"], status["progress_ratio"]) == ("running", 1, 10.8, 1 / 200)
    assert status["acceptance"]["position_accuracy"] == [0.5, None]
    text = exposed(live)
    for line in (
        'draftscope_loss{run_id="one"} 10.8',
        'draftscope_global_step{run_id="one"} 1.0',
        'draftscope_tokens_total{kind="draft",run_id="one"} 80.0',
        'draftscope_position_accuracy_ratio{position="1",run_id="one"} 0.5',
        "draftscope_step_duration_seconds_sum 0.5",
        'draftscope_run_state{state="running"} 1.0',
        "draftscope_last_step_timestamp_seconds 1.764497103e+09",
    ):
        assert line in text
    assert 'position="2"' not in text, "no draft token was there"
    live.record.close()
    [row] = map(json.loads, (live.record.folder / "steps.jsonl").read_text().splitlines())
    assert {key: row[key] for key in ("step", "elapsed", "loss", "position_accuracy")} == {
        "step": 1,
        "elapsed": 3.0,
        "loss": 10.8,
        "position_accuracy": [0.5, None],
    }


def test_the_record_gets_every_column_that_the_catalogue_names(live: Live) -> None:
    live.stepped(STEP)
    live.record.close()
    row = json.loads((live.record.folder / "steps.jsonl").read_text())
    assert {column for column, _ in step_columns()} <= row.keys()


def test_counters_are_of_this_process_and_the_step_is_the_runs(live: Live) -> None:
    live.began(step=100, context_tokens=5000, draft_tokens=300, samples=50)
    assert live.status()["step"] == 100
    live.stepped(replace(STEP, step=101, context_tokens=6000, draft_tokens=380, samples=54))
    text = exposed(live)
    assert 'draftscope_global_step{run_id="one"} 101.0' in text
    assert "draftscope_steps_total 1.0" in text
    assert "draftscope_samples_total 4.0" in text
    assert 'draftscope_tokens_total{kind="context",run_id="one"} 1000.0' in text


@pytest.mark.parametrize(("attempt", "name"), [(0, "started"), (1, "resumed")])
def test_how_an_attempt_begins(tmp_path: Path, attempt: int, name: str) -> None:
    live = Live(RUN, Exporter(CollectorRegistry()), RunRecord(tmp_path, attempt))
    live.began(step=7 * attempt)
    assert [(event["event"], event["attempt"], event["step"]) for event in events(live)] == [(name, attempt, 7 * attempt)]


def test_numbers_that_are_none_are_words_in_status(live: Live) -> None:
    live.stepped(replace(STEP, loss=math.nan, grad_norm=math.inf))
    status = live.status()
    assert (status["loss"], status["grad_norm"]) == ("NaN", "Infinity")
    json.dumps(status, allow_nan=False)


def test_a_skipped_step_is_counted_and_told(live: Live) -> None:
    live.stepped(STEP)
    live.stepped(replace(STEP, step=2, grad_norm=math.inf), "non_finite_gradient")
    assert live.facts().skipped_in_a_row == 1
    assert 'draftscope_skipped_steps_total{reason="non_finite_gradient"} 1.0' in exposed(live)
    live.stepped(replace(STEP, step=3))
    assert live.facts().skipped_in_a_row == 0
    assert events(live)[0]["message"] == "The update of step 2 was left out: non finite gradient."


def test_a_step_with_nothing_to_learn_from_is_no_divergence(live: Live) -> None:
    live.stepped(replace(STEP, loss=math.nan), "no_draft_tokens")
    assert live.facts().loss is None
    live.stepped(replace(STEP, step=2, loss=math.nan), "non_finite_loss")
    assert math.isnan(live.facts().loss or 0)


def test_progress_is_what_the_steps_say(live: Live) -> None:
    live.stepped(STEP, progress_ratio=0.25)
    assert live.status()["progress_ratio"] == 0.25


def test_the_end_is_expected_from_the_pace(live: Live) -> None:
    live.stepped(STEP, progress_ratio=0.25)
    assert live.status()["eta_seconds"] is None
    live.ticked(Tick(verdict=a_verdict(), rates=Rates(progress_per_second=0.01)))
    assert live.status()["eta_seconds"] == 75.0
    live.stepped(replace(STEP, step=2), progress_ratio=1.0)
    live.finished()
    assert live.status()["eta_seconds"] == 0.0


def test_a_run_that_was_stopped_early_expects_no_end(live: Live) -> None:
    live.stepped(STEP, progress_ratio=0.25)
    live.finished()
    assert live.status()["eta_seconds"] is None


def a_verdict(sentence: str = "Balanced.") -> Verdict:
    return Verdict(state="balanced", stage=None, sentence=sentence, since=1.0)


def test_dropped_conversations_are_counted_one_by_one_and_told_by_tens(live: Live) -> None:
    for _ in range(12):
        live.dropped("template", "it has no user")
    assert 'draftscope_samples_dropped_total{reason="template"} 12.0' in exposed(live)
    told = [(event["count"], event["message"]) for event in events(live)]
    assert told == [
        (1, "1 conversation so far left out: template (it has no user)."),
        (10, "10 conversations so far left out: template (it has no user)."),
    ]


def test_checkpoints(live: Live, clock: Clock) -> None:
    assert live.status()["checkpoint"] == {"step": None, "path": None, "age_seconds": None}
    live.checkpointed(50, Path("checkpoints/step-000000050"), 1234, 0.25)
    clock.now += 30
    assert live.status()["checkpoint"] == {"step": 50, "path": "checkpoints/step-000000050", "age_seconds": 30.0}
    live.checkpoint_failed("The disk is full.")
    assert live.status()["warnings"] == ["The disk is full."]
    assert live.status()["last_error"] is None, "the run goes on"
    text = exposed(live)
    assert 'draftscope_checkpoints_total{outcome="written"} 1.0' in text
    assert 'draftscope_checkpoints_total{outcome="failed"} 1.0' in text
    assert "draftscope_last_checkpoint_step 50.0" in text
    assert "draftscope_last_checkpoint_bytes 1234.0" in text
    written, failed = events(live)
    assert (written["event"], written["bytes"], written["seconds"]) == ("checkpoint", 1234, 0.25)
    assert (failed["event"], failed["message"]) == ("checkpoint_failed", "The disk is full.")


def test_what_earlier_attempts_left_is_known_from_the_start(live: Live, clock: Clock) -> None:
    live.inherited(50, Path("checkpoints/step-000000050"), 1234, 1764497000.0 + clock.now - 600, FACTS)
    live.began(step=50)
    clock.now += 30
    status = live.status()
    assert status["checkpoint"] == {"step": 50, "path": "checkpoints/step-000000050", "age_seconds": 630.0}
    assert (status["acceptance"]["measured_length"], status["acceptance"]["measured_at_step"]) == (2.0, 1500)
    text = exposed(live)
    assert "draftscope_last_checkpoint_step 50.0" in text, "or its first checkpoint would look overdue from the start"
    assert "draftscope_last_checkpoint_timestamp_seconds 1.7644965e+09" in text
    assert 'draftscope_checkpoints_total{outcome="written"} 0.0' in text, "not by this process"
    assert 'draftscope_last_evaluation_step{run_id="one"} 1500.0' in text
    assert 'draftscope_evaluations_total{outcome="done"} 0.0' in text


def test_a_checkpoint_from_a_clock_that_ran_ahead_has_no_negative_age(live: Live, clock: Clock) -> None:
    live.inherited(50, "x", 1, 1764497000.0 + clock.now + 3600, None)
    assert live.status()["checkpoint"]["age_seconds"] == 0.0


def test_warnings_are_shown_once_and_only_the_newest(live: Live) -> None:
    for number in [*range(25), 24]:
        live.warn(f"Warning {number}.")
    assert live.status()["warnings"] == [f"Warning {number}." for number in range(5, 25)]
    assert len(events(live)) == 25


def test_a_failure_is_told_with_its_stage(live: Live) -> None:
    live.failed("target", ValueError("no\nroom"), "Traceback ...")
    status = live.status()
    assert (status["state"], status["last_error"]) == ("failed", "ValueError: no room")
    assert status["verdict"]["sentence"] == "Failed in the target stage: ValueError: no room."
    [event] = events(live)
    assert (event["event"], event["stage"], event["traceback"]) == ("failed", "target", "Traceback ...")


def test_the_end_stands_at_once_whatever_the_last_tick_said(live: Live, clock: Clock) -> None:
    live.stepped(STEP, progress_ratio=1.0)
    live.ticked(Tick(verdict=a_verdict()))
    assert live.status()["verdict"]["sentence"] == "Balanced."
    clock.now += 20
    live.finished()
    clock.now += 1000
    assert live.status()["verdict"]["sentence"] == "Finished: 1 step in 20 s, loss 10.8 → 10.8."
    assert 'draftscope_verdict{stage="",state="finished"} 1.0' in exposed(live)


def test_states_are_those_of_the_catalogue(live: Live) -> None:
    live.set_state("paused")
    assert live.status()["verdict"]["state"] == "paused"
    with pytest.raises(ValueError, match=r"state must be one of starting, .*, got 'asleep'"):
        live.set_state("asleep")


def test_a_stall_is_news_once_and_passes(live: Live) -> None:
    live.stepped(STEP)
    assert live.stalled("target", 38.0, "The target is stalled.")
    assert not live.stalled("target", 39.0, "The target is stalled.")
    assert live.state == "stalled"
    live.recovered()
    assert live.state == "running"
    live.set_state("finishing")
    assert not live.stalled("target", 38.0, "no")
    live.recovered()
    assert live.state == "finishing"
    assert [(event["event"], event["stage"]) for event in events(live)] == [("stalled", "target")]


def test_who_waits_for_a_tick_is_woken(live: Live) -> None:
    assert live.wait_tick(-1, 0) == 0, "what differs is there at once"
    assert live.wait_tick(0, 0.01) == 0, "after the timeout nothing is new"
    timer = threading.Timer(0.05, lambda: live.ticked(Tick(verdict=a_verdict())))
    timer.start()
    began = time.monotonic()
    assert live.wait_tick(0, 5.0) == 1
    assert time.monotonic() - began < 2
    timer.join()


def test_watching_is_added_up(live: Live, clock: Clock) -> None:
    live.exporter.add(WATCH_SECONDS, 0.5, "http")
    live.exporter.add(WATCH_SECONDS, 0.25, "sampler")
    clock.now += 100
    assert live.status()["watching"] == {"seconds": 0.75, "ratio": 0.0075}
    live.stepped(STEP)
    assert live.exporter.total(WATCH_SECONDS, "record") > 0


def test_a_step_touches_no_file(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.record.close()  # the writer must not write while files are forbidden
    monkeypatch.setattr("builtins.open", None)
    monkeypatch.setattr("os.write", None)
    live.stepped(STEP)
    live.stepped(replace(STEP, step=2), "non_finite_loss")
