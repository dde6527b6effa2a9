"""The one writer of the run's state: what happens comes in, the state changes, and the log, the events and the counters follow."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainer.formatting import one_line, words
from trainer.metrics.catalogue.run import CHECKPOINT_SECONDS, CHECKPOINTS, RUN_STATES
from trainer.metrics.catalogue.training import DROPPED, SKIPPED_STEPS, STEP_SECONDS
from trainer.metrics.catalogue.watching import WATCH_SECONDS
from trainer.metrics.exporter import Exporter
from trainer.monitor.rates import NOTHING_DONE, Counts
from trainer.monitor.state import ENDS, VERDICT_AT_ONCE, Checkpoint, RunState, Step, Tick, may_follow
from trainer.monitor.verdict import Verdict, judge
from trainer.record.format import EvaluationLine, StepLine
from trainer.record.writer import RunRecord

log = logging.getLogger(__name__)

_MOST_WARNINGS = 20


class Monitor:
    """Holds the state of one attempt, from before the target is loaded until after the last step.

    Every method may be called from any thread and touches memory only. `run` is as `run.json`; `clock` is monotonic seconds,
    `wall` Unix time.
    """

    state: RunState
    """The newest; take it once to read several fields of the same moment."""

    def __init__(
        self,
        run: Mapping[str, Any],
        exporter: Exporter,
        record: RunRecord,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.record = record
        self.exporter = exporter
        self.clock = clock
        self.wall = wall
        # Two threads that replaced the state at the same time would lose one of the changes. The lock is held for the
        # microseconds of a `replace`: readers take none, and the drafter's thread waits for another writer no longer than that.
        self._writing = threading.Lock()
        self._ticked = threading.Condition()
        self._dropped: dict[str, int] = {}
        self._observe_step_seconds = exporter.recording(STEP_SECONDS)
        self._add_watching = exporter.adding(WATCH_SECONDS, "record")
        now = clock()
        state = RunState(
            run=dict(run),
            attempt=record.attempt,
            began_at=now,
            began_time=wall(),
            phase_at=now,
            verdict=Verdict(state="warming_up", stage=None, sentence="", since=wall()),
        )
        self.state = state._replace(verdict=self._judge(state))

    def _write(self, change: Callable[[RunState], RunState]) -> tuple[RunState, RunState]:
        """Replace the state by what `change` makes of it; returns it before and after. Nothing else assigns it."""
        with self._writing:
            before = self.state
            self.state = after = change(before)
        return before, after

    def update(self, **changes: Any) -> None:
        """Replace fields of the state, except for the run's state itself."""
        if "state" in changes:
            raise ValueError("the state of a run changes by enter(), which knows what may follow what")
        self._write(lambda state: state._replace(**changes))

    def enter(self, state: str, *, only_from: str | None = None, **changes: Any) -> bool:
        """Go into `state`, with other fields changed as by `update`. Returns whether that happened.

        Nothing happens where the run is in that state already, where TRANSITIONS does not allow it, or where the run is not in
        `only_from`. Raises `ValueError` for what is none of RUN_STATES.
        """
        if state not in RUN_STATES:
            raise ValueError(f"state must be one of {', '.join(RUN_STATES)}, got {state!r}")

        def change(before: RunState) -> RunState:
            return before if only_from not in (None, before.state) else self._moved(before, state, **changes)

        before, after = self._write(change)
        return after is not before

    def _moved(self, before: RunState, state: str, **changes: Any) -> RunState:
        """What `before` is once the run is in `state`; unchanged where TRANSITIONS does not allow that."""
        if not may_follow(before.state, state):
            return before
        after = before._replace(state=state, ended_at=self.clock() if state in ENDS else None, **changes)
        if before.state == "paused" and before.tick is not None:
            after = after._replace(verdict=before.tick.verdict)  # that of before the pause, unless a tick fell into it
        return after._replace(verdict=self._judge(after)) if state in VERDICT_AT_ONCE else after

    def _judge(self, state: RunState) -> Verdict:
        """The verdict of a state that is one in itself."""
        lost = state.tick.lost_device_seconds if state.tick else 0.0
        evidence = state.evidence(self.clock(), self.wall(), stall_seconds=math.inf, lost_device_seconds=lost)
        return judge(evidence, state.verdict if state.verdict.sentence else None)

    # The attempt's beginning and end.

    def begin(self, base: Counts = NOTHING_DONE) -> None:
        """The attempt starts from `base`, what earlier ones had done; a new run from nothing."""
        self.update(base=base)
        if self.record.attempt == 0:
            self.announce(logging.INFO, "started", "Started.")
        else:
            run = self.state.run
            changed = {name: run.get(name) for name in ("command", "git_commit", "versions", "config")}
            self.announce(logging.INFO, "resumed", f"Resumed after step {base.step:,}.", **changed)

    def inherit(self, step: int, path: str | Path, size: int, time: float, evaluation: EvaluationLine | None) -> None:
        """What earlier attempts left: the checkpoint, of Unix time `time`, that this one resumes from; the newest evaluation."""
        at = self.clock() - max(0.0, self.wall() - time)
        self.update(checkpoint=Checkpoint(step, str(path), at, time, size), evaluation=evaluation)

    def finish(self, message: str = "") -> None:
        """The run came to its end; by default the event carries the verdict's sentence."""
        if self.enter("finished"):
            self.announce(logging.INFO, "finished", message or self.state.verdict.sentence)

    def fail(self, stage: str | None, error: BaseException | str, traceback_text: str = "") -> None:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        if self.enter("failed", failed_stage=stage, error=one_line(text)):
            state = self.state
            fields = {"stage": stage, "error": text, "traceback": traceback_text}
            self.record.event("failed", state.verdict.sentence, state.step, **fields)

    # What the road reports.

    def enter_phase(self, phase: str) -> None:
        """What the run does while it starts or finishes, as in "loading the target"."""

        def change(state: RunState) -> RunState:
            after = state._replace(phase=phase, phase_at=self.clock())
            return after._replace(verdict=self._judge(after)) if state.state == "starting" else after

        self._write(change)

    def step(self, line: StepLine, skipped: str = "", progress_ratio: float | None = None) -> None:
        """Take in an optimizer step; `skipped` says why its update was left out (one of SKIP_REASONS), or is empty.

        `progress_ratio` is the share of the run that is done, by default the step's share of `max_steps`. The
        time that this takes is counted as the cost of watching.
        """
        before = time.perf_counter()
        newest = Step(line, skipped, self.clock(), self.wall(), progress_ratio)

        def change(state: RunState) -> RunState:
            first_loss = line.loss if state.first_loss is None and not skipped else state.first_loss
            after = state._replace(
                newest=newest, first_loss=first_loss, skipped_in_a_row=state.skipped_in_a_row + 1 if skipped else 0
            )
            # In the same change: a stall that ends at this moment must not lead back to the start.
            return self._moved(after, "running") if state.state == "starting" else after

        state, _ = self._write(change)
        self.record.step(line, newest.at - state.began_at)
        self._observe_step_seconds(line.step_seconds)
        if skipped:
            message = f"The update of step {line.step:,} was left out: {words(skipped)}."
            self.exporter.add(SKIPPED_STEPS, 1, skipped)
            self.announce(logging.WARNING, "skipped", message, reason=skipped)
        self._add_watching(time.perf_counter() - before)

    def use_up_data(self) -> None:
        """Every visit of the data is done: so is the run, whatever share of it the last step stood for."""
        self.update(data_used_up=True)

    def drop(self, reason: str, example: str = "", count: int = 1) -> None:
        """Conversations were left out; `reason` is one of DROP_REASONS. An event for the first, and for each ten times as many."""
        before = self._dropped.get(reason, 0)
        after = self._dropped[reason] = before + count
        self.exporter.add(DROPPED, count, reason)
        if len(str(after)) > len(str(before)) or before == 0:
            known = f"{after:,} conversation{'' if after == 1 else 's'} left out so far: {words(reason)}"
            message = f"{known} ({example})." if example else f"{known}."
            self.announce(logging.WARNING, "dropped", message, reason=reason, count=after)

    def checkpointed(self, step: int, path: str | Path, size: int, seconds: float) -> None:
        """A checkpoint of `size` bytes is whole, after `seconds`."""
        self.update(checkpoint=Checkpoint(step, str(path), self.clock(), self.wall(), size))
        self.exporter.add(CHECKPOINTS, 1, "written")
        self.exporter.record(CHECKPOINT_SECONDS, seconds)
        message = f"Checkpoint of step {step:,} written in {seconds:.1f} s."
        self.announce(logging.INFO, "checkpoint", message, step, path=str(path), bytes=size, seconds=round(seconds, 3))

    def checkpoint_failed(self, message: str) -> None:
        self.exporter.add(CHECKPOINTS, 1, "failed")
        self.show(message)
        self.announce(logging.ERROR, "checkpoint_failed", one_line(message))

    # What the sampler sees.

    def take_tick(self, tick: Tick) -> None:
        """The newest telemetry tick; wakes everyone who waits for it."""

        def change(state: RunState) -> RunState:
            # A run that has just ended or been paused knows better than a tick that began before.
            verdict = state.verdict if state.state in ("paused", *ENDS) else tick.verdict
            return state._replace(tick=tick, ticks=state.ticks + 1, verdict=verdict)

        self._write(change)
        with self._ticked:
            self._ticked.notify_all()

    def wait_tick(self, last: int, timeout: float) -> int:
        """Number of the newest tick, as soon as it differs from `last`, or after `timeout` seconds."""
        with self._ticked:
            self._ticked.wait_for(lambda: self.state.ticks != last, timeout)
            return self.state.ticks

    def stall(self, stage: str | None, seconds: float, sentence: str) -> bool:
        """Nothing moves any more. Returns whether that is news."""
        if not self.enter("stalled"):
            return False
        self.record.event("stalled", sentence, self.state.step, stage=stage, seconds=round(seconds, 1))
        return True

    def recover(self) -> None:
        """Something moves again, if the run had stalled."""

        def change(state: RunState) -> RunState:
            return self._moved(state, "running" if state.newest else "starting") if state.state == "stalled" else state

        self._write(change)

    # What people are told.

    def announce(self, level: int, event: str, message: str, step: int | None = None, **fields: Any) -> None:
        """One sentence to the log and to the record's events."""
        log.log(level, "%s", message)
        self.record.event(event, message, self.state.step if step is None else step, **fields)

    def warn(self, message: str) -> None:
        """Log a warning and show it on every page; said again while it is shown, it changes nothing."""
        if self.show(message):
            self.announce(logging.WARNING, "warning", one_line(message))

    def show(self, message: str, instead_of: str = "") -> bool:
        """Put a sentence among the warnings on the page, the newest last. Returns whether it is new there."""
        sentence, gone = one_line(message), one_line(instead_of)

        def change(state: RunState) -> RunState:
            kept = [known for known in state.warnings if known not in (sentence, gone)]
            return state._replace(warnings=(*kept, sentence)[-_MOST_WARNINGS:])

        before, _ = self._write(change)
        return sentence not in before.warnings

    def withdraw(self, message: str) -> None:
        """Take a warning off the page: it no longer holds."""
        sentence = one_line(message)
        self._write(lambda state: state._replace(warnings=tuple(known for known in state.warnings if known != sentence)))
