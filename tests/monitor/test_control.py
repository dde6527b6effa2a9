"""trainer/monitor/control.py: wishes are answered by how the run stands, wait for the loop, and are told once."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from tests.support.fake_monitor import FakeMonitor
from tests.support.threads import Worker, eventually
from trainer.monitor import control as control_module
from trainer.monitor.control import Control

SOON = 2.0


def controlled(**changed: object) -> tuple[Control, FakeMonitor]:
    live, control = FakeMonitor(**changed), Control()
    control.attach(live)
    return control, live


def names(live: FakeMonitor) -> list[str]:
    return [name for name, _ in live.told]


def test_nobody_who_asks_means_nothing_to_do() -> None:
    control, live = controlled()
    assert not control.wants_pause()
    assert not control.takes_checkpoint()
    assert not control.is_stopping()
    assert not control.wait_while_paused()
    assert live.told == []


def test_without_a_run_there_is_nothing_to_ask_for() -> None:
    assert Control().request("stop").status == 409


@pytest.mark.parametrize("action", ["checkpoint", "pause", "resume", "stop"])
def test_what_is_taken_is_counted_logged_and_recorded(action: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    control, live = controlled()
    if action == "resume":
        control.request("pause")
        live.told.clear()
        caplog.clear()
    answer = control.request(action, "lunch")
    assert answer.status == 202
    assert live.told == [
        ("control_requests_total", {"amount": 1, "labels": (action,)}),
        (f"{action}_requested", {"message": answer.message, "step": 1240, "reason": "lunch"}),
    ]
    assert caplog.messages == [f"Request over HTTP: {action}: lunch"]


@pytest.mark.parametrize("action", ["pause", "stop"])
def test_asking_twice_changes_nothing_and_tells_nothing(action: str) -> None:
    control, live = controlled()
    control.request(action)
    told = list(live.told)
    assert control.request(action).status == 200
    assert live.told == told
    assert (control.wants_pause(), control.is_stopping()) == (action == "pause", action == "stop")


def test_a_checkpoint_that_is_asked_for_in_the_middle_of_a_look_is_not_lost() -> None:
    class Raced(Control):
        """Somebody asks just after the loop has looked, and before it does anything else."""

        @property
        def _checkpoint(self) -> bool:
            found, self.__dict__["wanted"] = self.__dict__["wanted"], True
            return found

        @_checkpoint.setter
        def _checkpoint(self, wanted: bool) -> None:
            self.__dict__["wanted"] = wanted

    control = Raced()
    assert not control.takes_checkpoint()
    assert control.takes_checkpoint()


def test_a_checkpoint_is_taken_once() -> None:
    control, _ = controlled()
    control.request("checkpoint")
    control.request("checkpoint")
    assert control.takes_checkpoint()
    assert not control.takes_checkpoint()


@pytest.mark.parametrize(
    ("state", "step", "asked", "answers"),
    [
        ("starting", 0, "checkpoint", 409),
        ("starting", 7, "checkpoint", 202),  # resumed
        ("starting", 0, "pause", 202),
        ("starting", 0, "stop", 202),
        ("running", 7, "resume", 409),
        ("stalled", 7, "pause", 202),
        ("stalled", 7, "checkpoint", 202),
        ("finishing", 7, "stop", 202),
        *((state, 7, action, 409) for state in ("finishing", "finished", "failed") for action in ("pause", "resume", "checkpoint")),
        ("finished", 7, "stop", 202),  # ends the lingering
        ("failed", 7, "stop", 202),
    ],
)
def test_answers_by_how_the_run_stands(state: str, step: int, asked: str, answers: int) -> None:
    control, live = controlled(state=state, step=step)
    answer = control.request(asked)
    assert answer.status == answers
    assert answer.message.endswith(".")
    assert (live.told == []) == (answers == 409)


def test_a_run_that_stops_takes_no_other_wish() -> None:
    control, _ = controlled()
    control.stop()
    assert {action: control.request(action).status for action in ("pause", "resume", "checkpoint", "stop")} == {
        "pause": 409,
        "resume": 409,
        "checkpoint": 409,
        "stop": 200,
    }


def test_an_action_that_there_is_not_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="action must be one of checkpoint, pause, resume, stop, got 'dance'"):
        controlled()[0].request("dance")


def rest(control: Control, live: FakeMonitor) -> Worker:
    """A loop that pauses as `trainer.train.obey` does, on a thread; ends with how many checkpoints it wrote."""

    def loop(_: object) -> int:
        written = 0
        with control.paused():
            while control.wait_while_paused():
                written += 1
        return written

    worker = Worker(loop)
    eventually(lambda: live.state.state == "paused")
    return worker


def test_a_pause_lasts_until_somebody_lets_the_run_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "_POLL_SECONDS", 60.0)  # so nothing but the request wakes it
    control, live = controlled()
    control.request("pause", "lunch")
    worker = rest(control, live)
    assert control.request("pause").status == 200
    assert control.request("checkpoint").status == 202
    eventually(lambda: not control._checkpoint)
    assert control.request("resume", "fed").status == 202
    assert worker.ended() == 1
    assert live.state.state == "running"
    events = [(name, fields.get("reason")) for name, fields in live.told if name != "control_requests_total"]
    assert events == [
        ("pause_requested", "lunch"),
        ("paused", "lunch"),
        ("checkpoint_requested", ""),
        ("resume_requested", "fed"),
        ("unpaused", "fed"),
    ]
    assert 0 < live.told[-1][1]["seconds"] < SOON


def test_a_signal_ends_a_pause_soon() -> None:
    control, live = controlled()
    control.request("pause")
    worker = rest(control, live)
    control.stop()
    assert worker.ended(SOON) == 0


def test_a_pause_ends_when_there_is_nothing_left_to_pause() -> None:
    control, _ = controlled()
    control.request("pause")
    assert not control.wait_while_paused(give_up=lambda: True)


@pytest.mark.parametrize("end", ["resume", "stop"])
def test_a_checkpoint_that_was_asked_for_in_a_pause_is_written_before_the_pause_ends(end: str) -> None:
    control, live = controlled()
    control.request("pause")
    live.enter("paused")
    assert control.request("checkpoint").message.startswith("A checkpoint is written now")
    control.request(end)
    assert [control.wait_while_paused() for _ in range(2)] == [True, False]


def test_lingering_ends_by_itself_or_when_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "_POLL_SECONDS", 60.0)
    control, _ = controlled(state="finished")
    began = time.monotonic()
    control.linger(0.15)
    assert 0.15 <= time.monotonic() - began < SOON
    worker = Worker(lambda _: control.linger(60))
    answer = control.request("stop")
    assert (answer.status, answer.message) == (202, "The run has finished; the trainer exits now.")
    worker.ended()
    began = time.monotonic()
    control.linger(0.15)  # of a run that was stopped: that it was is no reason to go
    assert 0.15 <= time.monotonic() - began < SOON


def test_wishes_from_many_threads_are_each_answered_once() -> None:
    control, live = controlled()
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(control.request("pause").status)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200] * 19 + [202]
    assert names(live) == ["control_requests_total", "pause_requested"]
