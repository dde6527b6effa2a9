"""The state of the run: one immutable value, and the table of which state may follow which.

`trainer/monitor/monitor.py` is its only writer; readers take the value and never see half of a change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainer.gpus.device import NOT_SAMPLED, GpuSnapshot
from trainer.monitor.rates import NO_RATES, NOTHING_DONE, Counts, Rates
from trainer.monitor.verdict import Evidence, StageShare, Verdict
from trainer.pipeline.queues import QueueStats
from trainer.record.format import EvaluationLine, StepLine

# What may follow a state, and what causes it. From every state that is not an end the run may finish, or fail.
TRANSITIONS: Mapping[str, tuple[str, ...]] = {
    "starting": ("running", "stalled"),  # the first step; the verdict
    "running": ("paused", "stalled"),  # control, between two steps; the verdict
    "stalled": ("running", "starting", "paused"),  # progress again
    "paused": ("running",),  # control
    "finishing": (),
    "finished": (),
    "failed": (),
}
ENDS = ("finished", "failed")
# States that are a verdict in themselves, whatever the stages do.
VERDICT_AT_ONCE = ("starting", "paused", *ENDS)


def may_follow(before: str, after: str) -> bool:
    """Whether a run in the state `before` may go into `after`."""
    return after in TRANSITIONS[before] or (before not in ENDS and after in ("finishing", *ENDS) and after != before)


@dataclass(frozen=True, slots=True)
class Step:
    """An optimizer step, why its update was skipped if it was (one of SKIP_REASONS), and when it ended."""

    line: StepLine
    skipped: str
    at: float
    """On the monotonic clock."""
    time: float
    """Unix time."""
    progress_ratio: float | None = None
    """How much of the run was done, 0 to 1; None where only `max_steps` can say."""

    @property
    def counts(self) -> Counts:
        return Counts(self.line.step, self.line.context_tokens, self.line.draft_tokens, self.line.samples)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest whole checkpoint; `at` on the monotonic clock, `time` as Unix time."""

    step: int
    path: str
    at: float
    time: float
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What one telemetry tick saw: the pipeline, its devices and the process, over the last 60 s."""

    verdict: Verdict
    rates: Rates = NO_RATES
    stages: tuple[StageShare, ...] = ()
    queues: tuple[QueueStats, ...] = ()
    gpus: GpuSnapshot = NOT_SAMPLED
    cpu_cores: float | None = None
    """Cores that this process kept busy."""
    memory_bytes: int | None = None
    """Resident memory of this process."""
    lost_device_seconds: float = 0.0
    """Time that drafter devices did not spend in a step, since the attempt began."""


class RunState(NamedTuple):
    """All that is known of one attempt. Times named `…_at` are on the monotonic clock, those named `…_time` are Unix times.

    A named tuple, since each step replaces it: `_replace` takes a third of the time that `dataclasses.replace` does.
    """

    run: Mapping[str, Any]
    """As in `run.json`."""
    attempt: int
    began_at: float
    began_time: float
    phase_at: float
    verdict: Verdict
    ended_at: float | None = None
    state: str = "starting"
    """One of RUN_STATES."""
    phase: str = ""
    """What it does, or last did, while it starts or finishes, as in "loading the target"."""
    base: Counts = NOTHING_DONE
    """What earlier attempts had done."""
    newest: Step | None = None
    first_loss: float | None = None
    skipped_in_a_row: int = 0
    data_used_up: bool = False
    """The run is done, whatever share of it the last step stood for."""
    checkpoint: Checkpoint | None = None
    evaluation: EvaluationLine | None = None
    failed_stage: str | None = None
    error: str | None = None
    """What the run failed of, in one line."""
    warnings: tuple[str, ...] = ()
    """On every page, the newest last."""
    tick: Tick | None = None
    ticks: int = 0

    @property
    def step(self) -> int:
        """Optimizer steps of the run, earlier attempts included."""
        return self.newest.line.step if self.newest else self.base.step

    @property
    def progress_ratio(self) -> float | None:
        """How much of the run is done, 0 to 1; None where that is not known."""
        if self.data_used_up:
            return 1.0
        if self.newest is not None and self.newest.progress_ratio is not None:
            return self.newest.progress_ratio
        last = self.run.get("max_steps")
        return min(1.0, self.step / last) if last else None

    @property
    def eta_seconds(self) -> float | None:
        """Time to the end at the pace of the last 60 s; None while there is none, and for a run that ended before its time."""
        done, pace = self.progress_ratio, self.tick.rates.progress_per_second if self.tick else None
        if self.state in ENDS:
            return 0.0 if self.state == "finished" and done == 1 else None
        return round((1 - done) / pace, 1) if done is not None and pace else None

    def elapsed(self, at: float) -> float:
        """Seconds from the attempt's beginning to `at`, or to its end."""
        return (at if self.ended_at is None else self.ended_at) - self.began_at

    def evidence(
        self, at: float, time: float, stages: Sequence[StageShare] = (), *, stall_seconds: float, lost_device_seconds: float
    ) -> Evidence:
        """What a verdict at this moment rests on."""
        learnt = self.newest if self.newest is not None and self.newest.skipped != "no_draft_tokens" else None
        return Evidence(
            now=time,
            state=self.state,
            phase=self.phase,
            phase_seconds=at - self.phase_at,
            elapsed=self.elapsed(at),
            progress_ratio=self.progress_ratio,
            step=self.step,
            steps=self.step - self.base.step,
            loss=learnt.line.loss if learnt else None,
            first_loss=self.first_loss,
            skipped_in_a_row=self.skipped_in_a_row,
            stages=stages,
            stall_seconds=stall_seconds,
            failed_stage=self.failed_stage,
            error=self.error,
            lost_device_hours=lost_device_seconds / 3600,
        )
