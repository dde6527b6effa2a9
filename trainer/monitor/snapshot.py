"""All that is known of a run at one moment, and how it is shown: as the answer of `/status`, and as numbers for `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trainer.metrics.catalogue import run as run_metrics
from trainer.metrics.catalogue.watching import RECORD_ERRORS
from trainer.metrics.exporter import MetricSample
from trainer.monitor.moments import Base, Stepped, Tick, evaluation_samples, step_samples, verdict_samples
from trainer.monitor.verdict import Verdict
from trainer.record.format import EvaluationLine, TelemetryLine, strict
from trainer.record.writer import Disk


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The newest whole checkpoint; `at` on the clock that never goes back, `time` as Unix time."""

    step: int
    path: str
    at: float
    time: float
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    run: Mapping[str, Any]
    """As in `run.json`, as far as it is known."""
    state: str
    phase: str
    step: int
    progress_ratio: float | None
    newest: Stepped | None
    base: Base
    tick: Tick
    verdict: Verdict
    checkpoint: Checkpointed | None
    evaluation: EvaluationLine | None
    last_error: str | None
    warnings: tuple[str, ...]
    began_time: float
    """Unix time at which this attempt began."""
    elapsed: float
    """Seconds of this attempt."""
    now: float
    """On the clock that never goes back."""
    watch_seconds: float
    record_errors: int
    attempt: int = 0
    disk: Disk | None = None


def status_of(known: Snapshot) -> dict[str, Any]:
    """The answer of `GET /status` (design §7): strict JSON, where NaN and infinities are words."""
    newest = known.newest.facts if known.newest else None
    status = {
        "run": {key: known.run.get(key) for key in ("id", "name", "started_at", "command")},
        "state": known.state,
        "phase": known.phase,
        "step": known.step,
        "max_steps": known.run.get("max_steps"),
        "epoch": newest.epoch if newest else None,
        "progress_ratio": known.progress_ratio,
        "eta_seconds": _eta(known),
        "loss": newest.loss if newest else None,
        "learning_rate": newest.learning_rate if newest else None,
        "grad_norm": newest.grad_norm if newest else None,
        "acceptance": _acceptance(known),
        **known.tick.shown(),
        "verdict": known.verdict.shown(),
        "gpu_sampler": known.tick.gpus.shown(known.now),
        "checkpoint": _checkpoint(known),
        "last_error": known.last_error,
        "warnings": known.warnings,
        "watching": _watching(known),
        "versions": known.run.get("versions") or {},
    }
    return dict(strict(status))


def telemetry_line(known: Snapshot) -> TelemetryLine:
    """What `/status` says and no other file of the record does."""
    return TelemetryLine(
        step=known.step,
        max_steps=known.run.get("max_steps"),
        progress_ratio=known.progress_ratio,
        eta_seconds=_eta(known),
        state=known.state,
        **known.tick.shown(),
    )


def _eta(known: Snapshot) -> float | None:
    """From the pace of the last 60 s; None while there is none, and for a run that ended before its time."""
    done, pace = known.progress_ratio, known.tick.rates.progress_per_second
    if known.state in ("finished", "failed"):
        return 0.0 if known.state == "finished" and done == 1 else None
    return round((1 - done) / pace, 1) if done is not None and pace else None


def _acceptance(known: Snapshot) -> dict[str, Any]:
    newest, evaluation = known.newest.facts if known.newest else None, known.evaluation
    return {
        "estimated_length": newest.estimated_acceptance_length if newest else None,
        "position_accuracy": newest.position_accuracy if newest else [],
        "measured_length": evaluation.measured_length if evaluation else None,
        "measured_at_step": evaluation.step if evaluation else None,
        "measured_by_position": evaluation.acceptance_by_position if evaluation else [],
        "held_out_estimated_length": evaluation.held_out_estimated_length if evaluation else None,
    }


def _checkpoint(known: Snapshot) -> dict[str, Any]:
    newest = known.checkpoint
    if newest is None:
        return {"step": None, "path": None, "age_seconds": None}
    return {"step": newest.step, "path": newest.path, "age_seconds": round(known.now - newest.at, 1)}


def _watching(known: Snapshot) -> dict[str, Any]:
    ratio = known.watch_seconds / known.elapsed if known.elapsed > 0 else 0.0
    return {"seconds": round(known.watch_seconds, 6), "ratio": round(ratio, 6)}


def run_samples(known: Snapshot) -> Iterator[MetricSample]:
    """What the run itself knows, for `/metrics`; stages, queues and devices are the sampler's."""
    yield from _identity(known)
    yield MetricSample(run_metrics.START_TIME, known.began_time)
    yield MetricSample(run_metrics.RESTARTS, known.attempt)
    yield MetricSample(run_metrics.GLOBAL_STEP, known.step)
    yield MetricSample(run_metrics.MAX_STEPS, known.run.get("max_steps"))
    yield MetricSample(run_metrics.PROGRESS, known.progress_ratio)
    yield MetricSample(run_metrics.REMAINING, _eta(known))
    for state in run_metrics.RUN_STATES:
        yield MetricSample(run_metrics.STATE, float(state == known.state), (state,))
    yield from verdict_samples(known.verdict)
    yield MetricSample(run_metrics.LOST_DEVICE_SECONDS, known.tick.lost_device_seconds)
    yield from _safety(known)
    yield from step_samples(known.newest, known.base)
    yield from evaluation_samples(known.evaluation)


def _identity(known: Snapshot) -> Iterator[MetricSample]:
    target, versions = known.run.get("target") or {}, known.run.get("versions") or {}
    code = (versions.get("draftscope"), known.run.get("git_commit"))
    yield MetricSample(run_metrics.RUN_INFO, 1, _words(known.run.get("id"), target.get("name"), *code))
    yield MetricSample(run_metrics.BUILD_INFO, 1, _words(*code, versions.get("python"), versions.get("torch")))


def _safety(known: Snapshot) -> Iterator[MetricSample]:
    """How much of the work a crash would lose, and the disk that it is kept on."""
    newest, config = known.checkpoint, known.run.get("config") or {}
    yield MetricSample(run_metrics.CHECKPOINT_STEP, newest.step if newest else 0)
    yield MetricSample(run_metrics.CHECKPOINT_TIME, newest.time if newest else 0.0)
    yield MetricSample(run_metrics.CHECKPOINT_BYTES, newest.bytes if newest else 0)
    yield MetricSample(run_metrics.CHECKPOINT_EVERY, (config.get("checkpoint") or {}).get("every"))
    yield MetricSample(run_metrics.DISK_FREE, known.disk.free_bytes if known.disk else None)
    yield MetricSample(run_metrics.DISK_SIZE, known.disk.size_bytes if known.disk else None)
    yield MetricSample(RECORD_ERRORS, known.record_errors)


def _words(*labels: object) -> tuple[str, ...]:
    """Label values; empty for what is not known."""
    return tuple(str(label or "") for label in labels)


class LiveRun(Protocol):
    """What is known of the run at this moment; `trainer.monitor.live.Live` is one. Any thread may ask."""

    def status(self) -> dict[str, Any]:
        """The answer of `GET /status`."""

    def wait_tick(self, last: int, timeout: float) -> int:
        """Number of the newest telemetry tick, as soon as it differs from `last`, or after `timeout` seconds."""
