"""What a run says of itself in /status, /metrics and the record, from before the target is loaded until its end."""

import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.watched import EVALUATION, STEP, Clock, Watched
from trainer.metrics.catalogue.index import step_columns
from trainer.metrics.catalogue.watching import WATCH_SECONDS
from trainer.monitor.rates import Counts, Rates
from trainer.monitor.state import Tick
from trainer.monitor.verdict import Verdict


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(tmp_path: Path, clock: Clock) -> Iterator[Watched]:
    watched = Watched(tmp_path, clock)
    yield watched
    watched.record.close()


def test_it_answers_while_the_target_is_loading(run: Watched) -> None:
    run.enter_phase("loading the target")
    status = run.status()
    assert (status["state"], status["phase"], status["step"], status["loss"]) == ("starting", "loading the target", 0, None)
    assert status["verdict"]["sentence"] == "Warming up: loading the target, 0.0 s so far."
    assert status["rates"]["steps_per_second"] is None
    assert "\ndraftscope_loss{" not in run.exposed(), "no loss is known yet, and 0 would be a lie"
    assert "draftscope_steps_total 0.0" in run.exposed()


def test_a_step_is_in_status_metrics_and_record(run: Watched, clock: Clock) -> None:
    run.begin()
    clock.now += 3
    run.step(STEP)
    status = run.status()
    assert (status["state"], status["step"], status["loss"], status["progress_ratio"]) == ("running", 1, 10.8, 1 / 200)
    assert status["acceptance"]["position_accuracy"] == [0.5, None]
    text = run.exposed()
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
    run.record.close()
    [row] = map(json.loads, (run.record.folder / "steps.jsonl").read_text().splitlines())
    assert {key: row[key] for key in ("step", "elapsed", "loss", "position_accuracy")} == {
        "step": 1,
        "elapsed": 3.0,
        "loss": 10.8,
        "position_accuracy": [0.5, None],
    }


def test_the_record_gets_every_column_that_the_catalogue_names(run: Watched) -> None:
    run.step(STEP)
    run.record.close()
    row = json.loads((run.record.folder / "steps.jsonl").read_text())
    assert {column for column, _ in step_columns()} <= row.keys()


def test_counters_are_of_this_process_and_the_step_is_the_runs(run: Watched) -> None:
    run.begin(Counts(step=100, context_tokens=5000, draft_tokens=300, samples=50))
    assert run.status()["step"] == 100
    run.step(replace(STEP, step=101, context_tokens=6000, draft_tokens=380, samples=54))
    text = run.exposed()
    assert 'draftscope_global_step{run_id="one"} 101.0' in text
    assert "draftscope_steps_total 1.0" in text
    assert "draftscope_samples_total 4.0" in text
    assert 'draftscope_tokens_total{kind="context",run_id="one"} 1000.0' in text


@pytest.mark.parametrize(("attempt", "name"), [(0, "started"), (1, "resumed")])
def test_how_an_attempt_begins(tmp_path: Path, attempt: int, name: str) -> None:
    run = Watched(tmp_path, attempt=attempt)
    run.begin(Counts(step=7 * attempt))
    assert [(event["event"], event["attempt"], event["step"]) for event in run.events()] == [(name, attempt, 7 * attempt)]


def test_numbers_that_are_none_are_words_in_status(run: Watched) -> None:
    run.step(replace(STEP, loss=math.nan, grad_norm=math.inf))
    status = run.status()
    assert (status["loss"], status["grad_norm"]) == ("NaN", "Infinity")
    json.dumps(status, allow_nan=False)


def test_a_skipped_step_is_counted_and_told(run: Watched) -> None:
    run.step(STEP)
    run.step(replace(STEP, step=2, grad_norm=math.inf), "non_finite_gradient")
    assert run.state.skipped_in_a_row == 1
    assert 'draftscope_skipped_steps_total{reason="non_finite_gradient"} 1.0' in run.exposed()
    run.step(replace(STEP, step=3))
    assert run.state.skipped_in_a_row == 0
    assert run.events()[0]["message"] == "The update of step 2 was left out: non finite gradient."


def test_a_step_with_nothing_to_learn_from_is_no_divergence(run: Watched, clock: Clock) -> None:
    def evidence_of_loss() -> float | None:
        return run.state.evidence(clock(), clock.wall(), stall_seconds=9.0, lost_device_seconds=0.0).loss

    run.step(replace(STEP, loss=math.nan), "no_draft_tokens")
    assert evidence_of_loss() is None
    run.step(replace(STEP, step=2, loss=math.nan), "non_finite_loss")
    assert math.isnan(evidence_of_loss() or 0)


def test_progress_is_what_the_steps_say(run: Watched) -> None:
    run.step(STEP, progress_ratio=0.25)
    assert run.status()["progress_ratio"] == 0.25


def test_the_end_is_expected_from_the_pace(run: Watched) -> None:
    run.step(STEP, progress_ratio=0.25)
    assert run.status()["eta_seconds"] is None
    run.take_tick(Tick(verdict=a_verdict(), rates=Rates(progress_per_second=0.01)))
    assert run.status()["eta_seconds"] == 75.0
    run.step(replace(STEP, step=2), progress_ratio=1.0)
    run.finish()
    assert run.status()["eta_seconds"] == 0.0


def test_a_run_that_was_stopped_early_expects_no_end(run: Watched) -> None:
    run.step(STEP, progress_ratio=0.25)
    run.finish()
    assert run.status()["eta_seconds"] is None


def a_verdict(sentence: str = "Balanced.") -> Verdict:
    return Verdict(state="balanced", stage=None, sentence=sentence, since=1.0)


def test_dropped_conversations_are_counted_one_by_one_and_told_by_tens(run: Watched) -> None:
    for _ in range(12):
        run.drop("template", "it has no user")
    assert 'draftscope_samples_dropped_total{reason="template"} 12.0' in run.exposed()
    told = [(event["count"], event["message"]) for event in run.events()]
    assert told == [
        (1, "1 conversation left out so far: template (it has no user)."),
        (10, "10 conversations left out so far: template (it has no user)."),
    ]


def test_checkpoints(run: Watched, clock: Clock) -> None:
    assert run.status()["checkpoint"] == {"step": None, "path": None, "age_seconds": None}
    run.checkpointed(50, Path("checkpoints/step-000000050"), 1234, 0.25)
    clock.now += 30
    assert run.status()["checkpoint"] == {"step": 50, "path": "checkpoints/step-000000050", "age_seconds": 30.0}
    run.checkpoint_failed("The disk is full.")
    assert run.status()["warnings"] == ["The disk is full."]
    assert run.status()["last_error"] is None, "the run goes on"
    text = run.exposed()
    assert 'draftscope_checkpoints_total{outcome="written"} 1.0' in text
    assert 'draftscope_checkpoints_total{outcome="failed"} 1.0' in text
    assert "draftscope_last_checkpoint_step 50.0" in text
    assert "draftscope_last_checkpoint_bytes 1234.0" in text
    written, failed = run.events()
    assert (written["event"], written["bytes"], written["seconds"]) == ("checkpoint", 1234, 0.25)
    assert (failed["event"], failed["message"]) == ("checkpoint_failed", "The disk is full.")


def test_what_earlier_attempts_left_is_known_from_the_start(run: Watched, clock: Clock) -> None:
    run.inherit(50, Path("checkpoints/step-000000050"), 1234, clock.wall() - 600, EVALUATION)
    run.begin(Counts(step=50))
    clock.now += 30
    status = run.status()
    assert status["checkpoint"] == {"step": 50, "path": "checkpoints/step-000000050", "age_seconds": 630.0}
    assert (status["acceptance"]["measured_length"], status["acceptance"]["measured_at_step"]) == (2.0, 1500)
    text = run.exposed()
    assert "draftscope_last_checkpoint_step 50.0" in text, "or its first checkpoint would look overdue from the start"
    assert "draftscope_last_checkpoint_timestamp_seconds 1.7644965e+09" in text
    assert 'draftscope_checkpoints_total{outcome="written"} 0.0' in text, "not by this process"
    assert 'draftscope_last_evaluation_step{run_id="one"} 1500.0' in text
    assert 'draftscope_evaluations_total{outcome="done"} 0.0' in text


def test_a_checkpoint_from_a_clock_that_ran_ahead_has_no_negative_age(run: Watched, clock: Clock) -> None:
    run.inherit(50, "x", 1, clock.wall() + 3600, None)
    assert run.status()["checkpoint"]["age_seconds"] == 0.0


def test_warnings_are_shown_once_and_only_the_newest(run: Watched) -> None:
    for number in [*range(25), 24]:
        run.warn(f"Warning {number}.")
    assert run.status()["warnings"] == [f"Warning {number}." for number in range(5, 25)]
    assert len(run.events()) == 25


def test_a_failure_is_told_with_its_stage(run: Watched) -> None:
    run.fail("target", ValueError("no\nroom"), "Traceback ...")
    status = run.status()
    assert (status["state"], status["last_error"]) == ("failed", "ValueError: no room")
    assert status["verdict"]["sentence"] == "Failed in the target stage: ValueError: no room."
    [event] = run.events()
    assert (event["event"], event["stage"], event["traceback"]) == ("failed", "target", "Traceback ...")


def test_the_end_stands_at_once_whatever_the_last_tick_said(run: Watched, clock: Clock) -> None:
    run.step(STEP, progress_ratio=1.0)
    run.take_tick(Tick(verdict=a_verdict()))
    assert run.status()["verdict"]["sentence"] == "Balanced."
    clock.now += 20
    run.finish()
    clock.now += 1000
    assert run.status()["verdict"]["sentence"] == "Finished: 1 step in 20 s, loss 10.8 → 10.8."
    assert 'draftscope_verdict{stage="",state="finished"} 1.0' in run.exposed()


def test_a_pause_is_a_verdict_at_once_and_a_tick_does_not_take_it_back(run: Watched) -> None:
    run.step(STEP)
    assert run.enter("paused")
    run.take_tick(Tick(verdict=a_verdict()))
    assert run.status()["verdict"]["state"] == "paused"
    assert run.enter("running", only_from="paused")
    run.take_tick(Tick(verdict=a_verdict()))
    assert run.status()["verdict"]["state"] == "balanced"


def test_a_stall_is_news_once_and_passes(run: Watched) -> None:
    run.step(STEP)
    assert run.stall("target", 38.0, "The target is stalled.")
    assert not run.stall("target", 39.0, "The target is stalled.")
    assert run.state.state == "stalled"
    run.recover()
    assert run.state.state == "running"
    run.enter("finishing")
    assert not run.stall("target", 38.0, "no")
    run.recover()
    assert run.state.state == "finishing"
    assert [(event["event"], event["stage"]) for event in run.events()] == [("stalled", "target")]


def test_a_stall_before_the_first_step_leads_back_to_the_start(run: Watched) -> None:
    assert run.stall("target", 400.0, "The target is stalled.")
    run.recover()
    assert run.state.state == "starting"


def test_a_stall_that_ends_with_the_first_step_leads_on(run: Watched) -> None:
    run.stall("target", 400.0, "The target is stalled.")
    run.step(STEP)
    run.recover()
    assert run.state.state == "running"


def test_after_a_pause_without_a_tick_the_verdict_is_that_of_before(run: Watched) -> None:
    run.step(STEP)
    run.take_tick(Tick(verdict=a_verdict()))
    run.enter("paused")
    run.enter("running", only_from="paused")
    assert run.status()["verdict"]["state"] == "balanced"


def test_threads_that_write_at_once_lose_nothing(run: Watched) -> None:
    def warn(name: str) -> None:
        for number in range(200):
            run.show(f"{name} {number}")
            run.withdraw(f"{name} {number}")

    def step() -> None:
        for number in range(1, 400):
            run.step(replace(STEP, step=number), "non_finite_loss")

    writers = [threading.Thread(target=warn, args=(name,)) for name in "ab"] + [threading.Thread(target=step)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (run.state.step, run.state.skipped_in_a_row) == (399, 399)
    assert not [sentence for sentence in run.state.warnings if sentence[0] in "ab"]


def test_who_waits_for_a_tick_is_woken(run: Watched) -> None:
    assert run.wait_tick(-1, 0) == 0, "what differs is there at once"
    assert run.wait_tick(0, 0.01) == 0, "after the timeout nothing is new"
    timer = threading.Timer(0.05, lambda: run.take_tick(Tick(verdict=a_verdict())))
    timer.start()
    began = time.monotonic()
    assert run.wait_tick(0, 5.0) == 1
    assert time.monotonic() - began < 2
    timer.join()


def test_watching_is_added_up(run: Watched, clock: Clock) -> None:
    run.exporter.add(WATCH_SECONDS, 0.5, "http")
    run.exporter.add(WATCH_SECONDS, 0.25, "sampler")
    clock.now += 100
    assert run.status()["watching"] == {"seconds": 0.75, "ratio": 0.0075}
    run.step(STEP)
    assert run.exporter.total(WATCH_SECONDS, "record") > 0


def test_a_step_touches_no_file(run: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    run.record.close()  # the writer must not write while files are forbidden
    monkeypatch.setattr("builtins.open", None)
    monkeypatch.setattr("os.write", None)
    run.step(STEP)
    run.step(replace(STEP, step=2), "non_finite_loss")
