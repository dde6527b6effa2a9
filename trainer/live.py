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

from trainer import metrics
from trainer.evaluations import Evaluations
from trainer.metrics import RUN_STATES
from trainer.moments import Base, EvaluationFacts, StepFacts, Stepped, Tick, step_line
from trainer.notices import Notices
from trainer.record import RunRecord
from trainer.recorder import Recorder
from trainer.snapshot import Checkpointed, Snapshot, readings_of, status_of
from trainer.verdict import Facts, StageShare, Verdict, judge
from trainer.wording import one_line, words

# States in which the run itself says how it stands, whatever the stages do.
_SAID = ("paused", "finished", "failed")


class Live:
    """One attempt, from before the target is loaded until after the last step.

    `run_facts` is as `run.json`. `clock` counts seconds and never goes back, `wall` gives Unix time.
    """

    def __init__(
        self,
        run_facts: Mapping[str, Any],
        recorder: Recorder,
        record: RunRecord,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.record = record
        self.recorder = recorder
        self._clock = clock
        self._wall = wall
        self._facts = dict(run_facts)
        self._began, self._began_time = clock(), wall()
        self._ended: float | None = None
        self._base = Base()
        self._newest: Stepped | None = None
        self._first_loss: float | None = None
        self._skipped_in_a_row = 0
        self._dropped: dict[str, int] = {}
        self._state = "starting"
        self._before_stall = "starting"
        self._changing = threading.Lock()  # of the state; not taken for a step, save the first
        self._phase, self._phase_since = "", self._began
        self._arrived = False
        self._checkpoint: Checkpointed | None = None
        self._failed_stage: str | None = None
        self._last_error: str | None = None
        self._notices = Notices(record)
        self._evaluations = Evaluations(self._notices, recorder)
        self._newest_tick: Tick | None = None
        self._ticks = 0
        self._ticked = threading.Condition()
        recorder.read_from(lambda: readings_of(self.snapshot()))

    # What the run says.

    def phase(self, text: str) -> None:
        """What it is doing while it starts or finishes, as in "loading the target"."""
        self._phase, self._phase_since = text, self._clock()

    def began(self, step: int = 0, context_tokens: int = 0, draft_tokens: int = 0, samples: int = 0) -> None:
        """Say where this attempt goes on from; a new run from nothing."""
        self._base = Base(step, context_tokens, draft_tokens, samples)
        if self.record.attempt == 0:
            self._notices.tell(logging.INFO, "started", "Started.", step)
        else:
            anew = {name: self._facts.get(name) for name in ("command", "git_commit", "versions", "config")}
            self._notices.tell(logging.INFO, "resumed", f"Resumed after step {step:,}.", step, **anew)

    def stepped(self, facts: StepFacts, skipped: str = "") -> None:
        """Take in an optimizer step; `skipped` says why its update was left out (one of SKIP_REASONS), or is empty.

        Touches memory only; the time it takes is booked as the cost of watching.
        """
        before = time.perf_counter()
        at, now = self._clock(), self._wall()
        if self._newest is None:
            self._change_state("starting", "running")
        if not skipped:
            self._first_loss = facts.loss if self._first_loss is None else self._first_loss
            self._evaluations.trained(facts.step, facts.estimated_acceptance_length)
        self._newest = Stepped(facts, skipped, at, now)
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        self.record.step(step_line(facts, at - self._began))
        self.recorder.record(metrics.STEP_SECONDS, facts.step_seconds)
        if skipped:
            message = f"The update of step {facts.step:,} was left out: {words(skipped)}."
            self.recorder.add(metrics.SKIPPED_STEPS, 1, skipped)
            self._notices.tell(logging.WARNING, "skipped", message, facts.step, reason=skipped)
        self.recorder.add(metrics.WATCH_SECONDS, time.perf_counter() - before, "record")

    def dropped(self, reason: str, example: str = "", count: int = 1) -> None:
        """Conversations that were left out; `reason` as in DROP_REASONS. An event for the first, and for each ten times as many."""
        before = self._dropped.get(reason, 0)
        after = self._dropped[reason] = before + count
        self.recorder.add(metrics.DROPPED, count, reason)
        if len(str(after)) > len(str(before)) or before == 0:
            known = f"{after:,} conversation{'' if after == 1 else 's'} so far left out: {words(reason)}"
            message = f"{known} ({example})." if example else f"{known}."
            self._notices.tell(logging.WARNING, "dropped", message, self.step, reason=reason, count=after)

    def checkpointed(self, step: int, path: str | Path, size: int, seconds: float) -> None:
        """A checkpoint of `size` bytes is whole."""
        self._checkpoint = Checkpointed(step, str(path), self._clock(), self._wall())
        self.recorder.add(metrics.CHECKPOINTS, 1, "written")
        self.recorder.record(metrics.CHECKPOINT_SECONDS, seconds)
        message = f"Checkpoint of step {step:,} written in {seconds:.1f} s."
        self._notices.tell(logging.INFO, "checkpoint", message, step, path=str(path), bytes=size, seconds=round(seconds, 3))

    def checkpoint_failed(self, message: str) -> None:
        self.recorder.add(metrics.CHECKPOINTS, 1, "failed")
        self._notices.trouble(logging.ERROR, "checkpoint_failed", message, self.step)

    def evaluated(self, facts: EvaluationFacts) -> None:
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

    def finished(self, message: str = "") -> None:
        """The run came to its end; by default the event carries the verdict's sentence."""
        self._end("finished")
        self._notices.tell(logging.INFO, "finished", message or self.verdict().sentence, self.step)

    def failed(self, stage: str | None, error: BaseException | str, traceback_text: str = "") -> None:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._failed_stage, self._last_error = stage, one_line(text)
        self._end("failed")
        self.record.event("failed", self.verdict().sentence, self.step, stage=stage, error=text, traceback=traceback_text)

    def set_state(self, state: str) -> None:
        """One of RUN_STATES; raises `ValueError` for another."""
        if state not in RUN_STATES:
            raise ValueError(f"state must be one of {', '.join(RUN_STATES)}, got {state!r}")
        with self._changing:
            self._state = state

    def arrived(self) -> None:
        """The data is used up: the run is done, whatever share of it the last step stood for."""
        self._arrived = True

    def _end(self, state: str) -> None:
        self._ended = self._clock()
        self.set_state(state)

    def _change_state(self, before: str, after: str) -> bool:
        with self._changing:
            if self._state != before:
                return False
            self._state = after
            return True

    # What others ask.

    @property
    def step(self) -> int:
        """Of the run."""
        return self._newest.facts.step if self._newest else self._base.step

    @property
    def state(self) -> str:
        return self._state

    @property
    def newest(self) -> Stepped | None:
        return self._newest

    @property
    def base(self) -> Base:
        return self._base

    @property
    def elapsed(self) -> float:
        """Seconds of this attempt, so far or in all."""
        return (self._ended if self._ended is not None else self._clock()) - self._began

    @property
    def progress_ratio(self) -> float | None:
        """How much of the run is done, 0 to 1; None where that is not known."""
        if self._arrived:
            return 1.0
        if self._newest is not None and self._newest.facts.progress_ratio is not None:
            return self._newest.facts.progress_ratio
        last = self._facts.get("max_steps")
        return min(1.0, self.step / last) if last else None

    def facts(self, stages: Sequence[StageShare] = (), stall_seconds: float = math.inf, lost_seconds: float = 0.0) -> Facts:
        """All that a verdict rests on."""
        newest, steps = self._newest, self.step - self._base.step
        known = newest if newest is not None and newest.skipped != "no_draft_tokens" else None
        return Facts(
            now=self._wall(),
            state=self._state,
            phase=self._phase,
            phase_seconds=self._clock() - self._phase_since,
            elapsed=self.elapsed,
            progress_ratio=self.progress_ratio,
            step=self.step,
            steps=steps,
            loss=known.facts.loss if known else None,
            first_loss=self._first_loss,
            skipped_in_a_row=self._skipped_in_a_row,
            stages=stages,
            stall_seconds=stall_seconds,
            failed_stage=self._failed_stage,
            error=self._last_error,
            lost_device_hours=lost_seconds / 3600,
        )

    def verdict(self) -> Verdict:
        """Of the newest sampling tick; judged anew where the run itself says how it stands."""
        tick = self._newest_tick
        if tick is not None and self._state not in _SAID:
            return tick.verdict
        lost = tick.lost_device_seconds if tick else 0.0
        return judge(self.facts(lost_seconds=lost), tick.verdict if tick else None)

    def snapshot(self) -> Snapshot:
        """All that is known now."""
        verdict = self.verdict()
        return Snapshot(
            run=self._facts,
            state=self._state,
            phase=self._phase,
            step=self.step,
            progress_ratio=self.progress_ratio,
            newest=self._newest,
            base=self._base,
            tick=self._newest_tick or Tick(verdict=verdict),
            verdict=verdict,
            checkpoint=self._checkpoint,
            evaluation=self._evaluations.newest,
            last_error=self._last_error,
            warnings=self._notices.shown,
            began_time=self._began_time,
            elapsed=self.elapsed,
            now=self._clock(),
            watch_seconds=sum(self.recorder.total(metrics.WATCH_SECONDS, part) for part in metrics.WATCH_PARTS),
            record_errors=self.record.errors + self.record.dropped,
        )

    def status(self) -> dict[str, Any]:
        """The answer of `GET /status` (design §7), strict JSON: NaN and infinities are words."""
        return status_of(self.snapshot())

    def wait_tick(self, last: int, timeout: float) -> int:
        """Number of the newest sampling tick, as soon as it differs from `last`, or after `timeout` seconds."""
        with self._ticked:
            self._ticked.wait_for(lambda: self._ticks != last, timeout)
            return self._ticks

    # What the sampler says.

    def ticked(self, tick: Tick) -> None:
        """Take over what a sampling tick saw, and wake who waits for it."""
        self._newest_tick = tick
        with self._ticked:
            self._ticks += 1
            self._ticked.notify_all()

    def stalled(self, stage: str | None, seconds: float, sentence: str) -> bool:
        """Nothing gets on any more; tells whether that is news."""
        with self._changing:
            if self._state not in ("starting", "running"):
                return False
            self._before_stall, self._state = self._state, "stalled"
        self.record.event("stalled", sentence, self.step, stage=stage, seconds=round(seconds, 1))
        return True

    def recovered(self) -> None:
        """It gets on again after a stall."""
        self._change_state("stalled", "running" if self._newest else self._before_stall)
