"""Requests from outside (signals, HTTP) to stop, pause, resume or checkpoint, kept until the training loop takes them up.

A request only sets a flag: the work is done by the loop of `trainer/train.py`, between two steps.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainer.formatting import duration
from trainer.metrics.catalogue.watching import CONTROL_ACTIONS, CONTROL_REQUESTS
from trainer.monitor.monitor import Monitor
from trainer.monitor.state import RunState

log = logging.getLogger(__name__)

# How soon a pause notices a signal; a request over HTTP wakes it at once.
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """What becomes of a request, as an HTTP status (202 will be done, 200 is so already, 409 impossible) and a sentence."""

    status: int
    message: str


class Control:
    """The pending requests. Every method may be called from any thread, `stop` from a signal handler too."""

    def __init__(self) -> None:
        self._monitor: Monitor | None = None
        self._requesting = threading.Lock()
        self._stop = threading.Event()
        # Not `_stop`: a signal handler sets that, and would deadlock a main thread that waits for it.
        self._woken = threading.Event()
        self._pause = False
        self._pause_reason = self._resume_reason = ""
        self._checkpoint = False
        self.is_lingering = False
        """Whether the run has ended and still answers over HTTP, so that its end is seen."""

    def attach(self, monitor: Monitor) -> None:
        """The run that requests are about."""
        self._monitor = monitor

    def stop(self) -> None:
        """End the run in order after the step under way; a second call changes nothing."""
        self._stop.set()

    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def request(self, action: str, reason: str = "") -> Answer:
        """One of CONTROL_ACTIONS, over HTTP. A request that is accepted is counted, logged and recorded."""
        monitor = self._monitor
        if monitor is None:
            return Answer(409, "There is no run yet.")
        with self._requesting:
            answer = self._decide(action, monitor.state)
            if answer.status == 202:  # recorded before it takes effect, so that its effects come after it in the record
                log.info("Request over HTTP: %s%s", action, f": {reason}" if reason else ".")
                monitor.exporter.add(CONTROL_REQUESTS, 1, action)
                monitor.record.event(f"{action}_requested", answer.message, monitor.state.step, reason=reason)
                self._accept(action, reason)
        return answer

    def _decide(self, action: str, run: RunState) -> Answer:
        over = run.state in ("finished", "failed")
        match action:
            case "stop" if self.is_stopping():
                return Answer(200, "The run is stopping already.")
            case "stop" if over:
                return Answer(202, f"The run has {run.state}; the trainer exits now.")
            case "stop":
                return Answer(202, "The run stops after the current step.")
            case _ if over or run.state == "finishing":
                return Answer(
                    409, f"The run {'is' if run.state == 'finishing' else 'has'} {run.state}: there is nothing to {action}."
                )
            case _ if self.is_stopping():
                return Answer(409, f"The run is stopping: there is nothing to {action}.")
            case "pause" if self._pause:
                paused = run.state == "paused"
                return Answer(200, "The run is paused already." if paused else "The run pauses after the current step.")
            case "pause":
                return Answer(202, "The run pauses after the current step.")
            case "resume" if not self._pause:
                return Answer(409, f"The run is not paused, it is {run.state}: there is nothing to resume.")
            case "resume":
                return Answer(202, "The run resumes.")
            case "checkpoint" if run.step == 0:
                return Answer(409, "The run has not completed a step yet: there is nothing to save.")
            case "checkpoint":
                when = "now" if run.state == "paused" else "after the current step"
                return Answer(202, f"A checkpoint is written {when}, unless one exists for that step.")
        raise ValueError(f"action must be one of {', '.join(CONTROL_ACTIONS)}, got {action!r}")

    def _accept(self, action: str, reason: str) -> None:
        match action:
            case "stop":
                self._stop.set()
            case "pause":
                self._pause, self._pause_reason, self._resume_reason = True, reason, ""
            case "resume":
                self._pause, self._resume_reason = False, reason
            case "checkpoint":
                self._checkpoint = True
        self._woken.set()

    # For the training loop.

    def takes_checkpoint(self) -> bool:
        """Whether a checkpoint was requested since the last call."""
        if not self._checkpoint:  # tested before it is cleared, or a request in between would be lost
            return False
        self._checkpoint = False
        return True

    def wants_pause(self) -> bool:
        return self._pause and not self.is_stopping()

    def wait_while_paused(self, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Returns True when a checkpoint is to be written and the wait to be continued, False when the pause is over."""
        while True:
            if self.takes_checkpoint():  # first: a checkpoint that was requested before a resume is of this step
                return True
            if not self.wants_pause() or give_up():
                return False
            self._woken.wait(_POLL_SECONDS)
            self._woken.clear()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The run is `paused` inside; its beginning and end are logged and recorded."""
        monitor = self._monitor
        if monitor is None:
            yield
            return
        began = time.monotonic()
        self._announce(monitor, "paused", f"Paused after step {monitor.state.step:,}.", self._pause_reason)
        monitor.enter("paused")
        try:
            yield
        finally:
            monitor.enter("running", only_from="paused")
            seconds = time.monotonic() - began
            message = f"The pause of {duration(seconds)} is over."
            self._announce(monitor, "unpaused", message, self._resume_reason, seconds=round(seconds, 3))

    def _announce(self, monitor: Monitor, event: str, message: str, reason: str, **fields: float) -> None:
        log.info("%s%s", message, f" ({reason})" if reason else "")
        monitor.record.event(event, message, monitor.state.step, reason=reason, **fields)

    def linger(self, seconds: float) -> None:
        """Keep answering for so long after the run's end; a stop ends that, unless it was what ended the run."""
        self.is_lingering = True
        stopped, until = self.is_stopping(), time.monotonic() + seconds
        while (stopped or not self.is_stopping()) and (left := until - time.monotonic()) > 0:
            self._woken.wait(min(left, _POLL_SECONDS))
            self._woken.clear()
