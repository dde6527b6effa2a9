"""What the run is asked for from outside, by signals and over HTTP, until the loop of `trainer/train.py` looks, between two steps.

Requests only set flags: nothing is done on the thread that asks, and a run that nobody asks takes a few look-ups a step.
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

# How soon a pause notices a signal; what comes over HTTP wakes it at once.
_GLANCE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """What becomes of a request: 202 it will be done, 200 it is done already, 409 it cannot be; and the same in a sentence."""

    status: int
    message: str


class Control:
    """The wishes of those outside. Every method may be called from any thread, `stop` from a signal's handler too."""

    def __init__(self) -> None:
        self._monitor: Monitor | None = None
        self._asking = threading.Lock()
        self._stop = threading.Event()
        self._woken = threading.Event()  # not `_stop`: the main thread waits for it, and the handler must not set what it waits for
        self._pause = False
        self._pause_reason = self._resume_reason = ""
        self._checkpoint = False
        self.is_lingering = False
        """Whether the run has ended and only waits to be seen."""

    def attach(self, monitor: Monitor) -> None:
        """From now on the run that `monitor` watches is controlled."""
        self._monitor = monitor

    def stop(self) -> None:
        """End the run in order once the step under way is done. Said again, it changes nothing."""
        self._stop.set()

    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def ask(self, action: str, reason: str = "") -> Answer:
        """One of CONTROL_ACTIONS, over HTTP. What is taken is counted, logged and put into the record."""
        monitor = self._monitor
        if monitor is None:
            return Answer(409, "There is no run yet.")
        with self._asking:
            answer = self._decide(action, monitor.state)
            if answer.status == 202:  # told before it is taken: what it brings about is told after it
                log.info("Asked over HTTP to %s%s", action, f": {reason}" if reason else ".")
                monitor.exporter.add(CONTROL_REQUESTS, 1, action)
                monitor.record.event(f"{action}_requested", answer.message, monitor.state.step, reason=reason)
                self._take(action, reason)
        return answer

    def _decide(self, action: str, run: RunState) -> Answer:
        over = run.state in ("finished", "failed")
        match action:
            case "stop" if self.is_stopping():
                return Answer(200, "It is stopping already.")
            case "stop" if over:
                return Answer(202, f"The run has {run.state}; now the trainer ends.")
            case "stop":
                return Answer(202, "The run stops once the step under way is done.")
            case _ if over or run.state == "finishing":
                return Answer(
                    409, f"The run {'is' if run.state == 'finishing' else 'has'} {run.state}: there is nothing to {action}."
                )
            case _ if self.is_stopping():
                return Answer(409, f"The run is stopping: there is nothing to {action}.")
            case "pause" if self._pause:
                paused = run.state == "paused"
                return Answer(200, "The run is paused already." if paused else "The run pauses once the step under way is done.")
            case "pause":
                return Answer(202, "The run pauses once the step under way is done.")
            case "resume" if not self._pause:
                return Answer(409, f"The run is not paused, it is {run.state}: there is nothing to resume.")
            case "resume":
                return Answer(202, "The run goes on.")
            case "checkpoint" if run.step == 0:
                return Answer(409, "The run has not taken a step yet: there is nothing to write into a checkpoint.")
            case "checkpoint":
                when = "now" if run.state == "paused" else "once the step under way is done"
                return Answer(202, f"A checkpoint is written {when}, unless that step has one.")
        raise ValueError(f"action must be one of {', '.join(CONTROL_ACTIONS)}, got {action!r}")

    def _take(self, action: str, reason: str) -> None:
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

    # What the loop asks, on its own thread.

    def takes_checkpoint(self) -> bool:
        """Whether a checkpoint was asked for since this was asked last."""
        if not self._checkpoint:  # looked at once: what is asked for in between must not be taken back
            return False
        self._checkpoint = False
        return True

    def wants_pause(self) -> bool:
        return self._pause and not self.is_stopping()

    def rests(self, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait while the run is paused. True means: write a checkpoint and come again; False: go on."""
        while True:
            if self.takes_checkpoint():  # first: whoever asks for one and then to go on was promised it of this step
                return True
            if not self.wants_pause() or give_up():
                return False
            self._woken.wait(_GLANCE_SECONDS)
            self._woken.clear()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Around a pause: the run is `paused` inside, and its beginning and end are announced."""
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
        """Wait for so long after the run's end; a run that was not stopped yet ends that by being told to."""
        self.is_lingering = True
        stopped, until = self.is_stopping(), time.monotonic() + seconds
        while (stopped or not self.is_stopping()) and (left := until - time.monotonic()) > 0:
            self._woken.wait(min(left, _GLANCE_SECONDS))
            self._woken.clear()
