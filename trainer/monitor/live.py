"""What is known of the run at this moment, for the console, `/status` and `/metrics`.

Every value is immutable and replaced as a whole: writers take no lock that a reader could hold, and a reader never sees half of a
change. `stepped` runs on the drafter's own thread and touches memory only.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.formatting import one_line, words
from trainer.metrics.catalogue.run import CHECKPOINT_SECONDS, CHECKPOINTS
from trainer.metrics.catalogue.training import DROPPED, SKIPPED_STEPS, STEP_SECONDS
from trainer.metrics.catalogue.watching import WATCH_PARTS, WATCH_SECONDS
from trainer.metrics.exporter import Exporter
from trainer.monitor.acceptance import Evaluations
from trainer.monitor.moments import Base, Stepped, Tick
from trainer.monitor.snapshot import Checkpointed, Snapshot, run_samples, status_of
from trainer.monitor.standing import Standing
from trainer.monitor.verdict import Facts, StageShare, Verdict, judge
from trainer.monitor.warnings import Notices
from trainer.record.format import EvaluationLine, StepLine
from trainer.record.writer import RunRecord

# States in which the run itself says how it stands, whatever the stages do.
_SAID = ("paused", "finished", "failed")


class Live:
    """One attempt, from before the target is loaded until after the last step.

    `run_facts` is as `run.json`. `clock` counts seconds and never goes back, `wall` gives Unix time.
    """

    def __init__(
        self,
        run_facts: Mapping[str, Any],
        exporter: Exporter,
        record: RunRecord,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.record = record
        self.exporter = exporter
        self._clock = clock
        self._wall = wall
        self._facts = dict(run_facts)
        self._began_time = wall()
        self._standing = Standing(clock)
        self._base = Base()
        self._newest: Stepped | None = None
        self._first_loss: float | None = None
        self._skipped_in_a_row = 0
        self._dropped: dict[str, int] = {}
        self._arrived = False
        self._checkpoint: Checkpointed | None = None
        self._notices = Notices(record)
        self._evaluations = Evaluations(self._notices, exporter)
        self._newest_tick: Tick | None = None
        self._ticks = 0
        self._ticked = threading.Condition()
        self._book_step_seconds = exporter.recording(STEP_SECONDS)
        self._book_watching = exporter.adding(WATCH_SECONDS, "record")
        exporter.register(lambda: run_samples(self.snapshot()))

    # What the run says.

    def phase(self, text: str) -> None:
        """What it is doing while it starts or finishes, as in "loading the target"."""
        self._standing.enter_phase(text)

    def began(self, step: int = 0, context_tokens: int = 0, draft_tokens: int = 0, samples: int = 0) -> None:
        """Say where this attempt goes on from; a new run from nothing."""
        self._base = Base(step, context_tokens, draft_tokens, samples)
        if self.record.attempt == 0:
            self._notices.tell(logging.INFO, "started", "Started.", step)
        else:
            anew = {name: self._facts.get(name) for name in ("command", "git_commit", "versions", "config")}
            self._notices.tell(logging.INFO, "resumed", f"Resumed after step {step:,}.", step, **anew)

    def inherited(self, step: int, path: str | Path, size: int, time: float, evaluation: EvaluationLine | None) -> None:
        """What earlier attempts left: the checkpoint, of Unix time `time`, that this one goes on from; the newest evaluation."""
        self._checkpoint = Checkpointed(step, str(path), self._clock() - max(0.0, self._wall() - time), time, size)
        self._evaluations.newest = evaluation

    def stepped(self, facts: StepLine, skipped: str = "", progress_ratio: float | None = None) -> None:
        """Take in an optimizer step; `skipped` says why its update was left out (one of SKIP_REASONS), or is empty.

        `progress_ratio` is the share of the run that is done, by default the step's share of `max_steps`. Touches
        memory only; the time it takes is booked as the cost of watching.
        """
        before = time.perf_counter()
        at, now = self._clock(), self._wall()
        if self._newest is None:
            self._standing.change("starting", "running")
        if not skipped:
            self._first_loss = facts.loss if self._first_loss is None else self._first_loss
            self._evaluations.trained(facts.step, facts.estimated_acceptance_length)
        self._newest = Stepped(facts, skipped, at, now, progress_ratio)
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        self.record.step(facts, at - self._standing.began)
        self._book_step_seconds(facts.step_seconds)
        if skipped:
            message = f"The update of step {facts.step:,} was left out: {words(skipped)}."
            self.exporter.add(SKIPPED_STEPS, 1, skipped)
            self._notices.tell(logging.WARNING, "skipped", message, facts.step, reason=skipped)
        self._book_watching(time.perf_counter() - before)

    def dropped(self, reason: str, example: str = "", count: int = 1) -> None:
        """Conversations that were left out; `reason` as in DROP_REASONS. An event for the first, and for each ten times as many."""
        before = self._dropped.get(reason, 0)
        after = self._dropped[reason] = before + count
        self.exporter.add(DROPPED, count, reason)
        if len(str(after)) > len(str(before)) or before == 0:
            known = f"{after:,} conversation{'' if after == 1 else 's'} so far left out: {words(reason)}"
            message = f"{known} ({example})." if example else f"{known}."
            self._notices.tell(logging.WARNING, "dropped", message, self.step, reason=reason, count=after)

    def checkpointed(self, step: int, path: str | Path, size: int, seconds: float) -> None:
        """A checkpoint of `size` bytes is whole."""
        self._checkpoint = Checkpointed(step, str(path), self._clock(), self._wall(), size)
        self.exporter.add(CHECKPOINTS, 1, "written")
        self.exporter.record(CHECKPOINT_SECONDS, seconds)
        message = f"Checkpoint of step {step:,} written in {seconds:.1f} s."
        self._notices.tell(logging.INFO, "checkpoint", message, step, path=str(path), bytes=size, seconds=round(seconds, 3))

    def checkpoint_failed(self, message: str) -> None:
        self.exporter.add(CHECKPOINTS, 1, "failed")
        self._notices.trouble(logging.ERROR, "checkpoint_failed", message, self.step)

    def evaluated(self, facts: EvaluationLine) -> None:
        """The drafter of `facts.step` has been measured; training may be at a later step by now."""
        self._evaluations.done(facts)

    def evaluation_failed(self, message: str) -> None:
        """Training goes on without it."""
        self._evaluations.failed(message, self.step)

    def evaluation_skipped(self, step: int) -> None:
        """It was due after `step`, and the one before was still under way."""
        self._evaluations.skipped(step)

    def warn(self, message: str) -> None:
        """Something that a person should know; said again, it is not shown twice."""
        self._notices.warn(message, self.step)

    def withdraw(self, message: str) -> None:
        """What was warned of no longer holds; does nothing for what is not shown."""
        self._notices.withdraw(one_line(message))

    def finished(self, message: str = "") -> None:
        """The run came to its end; by default the event carries the verdict's sentence."""
        self._standing.end("finished")
        self._notices.tell(logging.INFO, "finished", message or self.verdict().sentence, self.step)

    def failed(self, stage: str | None, error: BaseException | str, traceback_text: str = "") -> None:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._standing.failed_stage, self._standing.error = stage, one_line(text)
        self._standing.end("failed")
        self.record.event("failed", self.verdict().sentence, self.step, stage=stage, error=text, traceback=traceback_text)

    def set_state(self, state: str) -> None:
        """One of RUN_STATES; raises `ValueError` for another."""
        self._standing.set(state)

    def arrived(self) -> None:
        """The data is used up: the run is done, whatever share of it the last step stood for."""
        self._arrived = True

    # What others ask.

    @property
    def step(self) -> int:
        """Of the run."""
        return self._newest.facts.step if self._newest else self._base.step

    @property
    def state(self) -> str:
        return self._standing.state

    @property
    def newest(self) -> Stepped | None:
        return self._newest

    @property
    def base(self) -> Base:
        return self._base

    @property
    def elapsed(self) -> float:
        """Seconds of this attempt, so far or in all."""
        return self._standing.elapsed

    @property
    def progress_ratio(self) -> float | None:
        """How much of the run is done, 0 to 1; None where that is not known."""
        if self._arrived:
            return 1.0
        if self._newest is not None and self._newest.progress_ratio is not None:
            return self._newest.progress_ratio
        last = self._facts.get("max_steps")
        return min(1.0, self.step / last) if last else None

    def facts(self, stages: Sequence[StageShare] = (), stall_seconds: float = math.inf, lost_seconds: float = 0.0) -> Facts:
        """All that a verdict rests on."""
        newest, steps = self._newest, self.step - self._base.step
        known = newest if newest is not None and newest.skipped != "no_draft_tokens" else None
        return Facts(
            now=self._wall(),
            state=self._standing.state,
            phase=self._standing.phase,
            phase_seconds=self._standing.phase_seconds,
            elapsed=self.elapsed,
            progress_ratio=self.progress_ratio,
            step=self.step,
            steps=steps,
            loss=known.facts.loss if known else None,
            first_loss=self._first_loss,
            skipped_in_a_row=self._skipped_in_a_row,
            stages=stages,
            stall_seconds=stall_seconds,
            failed_stage=self._standing.failed_stage,
            error=self._standing.error,
            lost_device_hours=lost_seconds / 3600,
        )

    def verdict(self) -> Verdict:
        """Of the newest telemetry tick; judged anew where the run itself says how it stands."""
        tick = self._newest_tick
        if tick is not None and self._standing.state not in _SAID:
            return tick.verdict
        lost = tick.lost_device_seconds if tick else 0.0
        return judge(self.facts(lost_seconds=lost), tick.verdict if tick else None)

    def snapshot(self) -> Snapshot:
        """All that is known now."""
        verdict = self.verdict()
        return Snapshot(
            run=self._facts,
            state=self._standing.state,
            phase=self._standing.phase,
            step=self.step,
            progress_ratio=self.progress_ratio,
            newest=self._newest,
            base=self._base,
            tick=self._newest_tick or Tick(verdict=verdict),
            verdict=verdict,
            checkpoint=self._checkpoint,
            attempt=self.record.attempt,
            disk=self.record.disk,
            evaluation=self._evaluations.newest,
            last_error=self._standing.error,
            warnings=self._notices.shown,
            began_time=self._began_time,
            elapsed=self.elapsed,
            now=self._clock(),
            watch_seconds=sum(self.exporter.total(WATCH_SECONDS, part) for part in WATCH_PARTS),
            record_errors=self.record.errors + self.record.dropped,
        )

    def status(self) -> dict[str, Any]:
        """The answer of `GET /status` (design §7), strict JSON: NaN and infinities are words."""
        return status_of(self.snapshot())

    def wait_tick(self, last: int, timeout: float) -> int:
        """Number of the newest telemetry tick, as soon as it differs from `last`, or after `timeout` seconds."""
        with self._ticked:
            self._ticked.wait_for(lambda: self._ticks != last, timeout)
            return self._ticks

    # What the sampler says.

    def ticked(self, tick: Tick) -> None:
        """Take over what a telemetry tick saw, and wake who waits for it."""
        self._newest_tick = tick
        with self._ticked:
            self._ticks += 1
            self._ticked.notify_all()

    def stalled(self, stage: str | None, seconds: float, sentence: str) -> bool:
        """Nothing gets on any more; tells whether that is news."""
        if not self._standing.stall():
            return False
        self.record.event("stalled", sentence, self.step, stage=stage, seconds=round(seconds, 1))
        return True

    def recovered(self) -> None:
        """It gets on again after a stall."""
        self._standing.recover(stepped=self._newest is not None)
