"""Numbers for `/metrics`: the state of the run, its stages and its queues in, samples of the catalogue's metrics out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainer.metrics.catalogue import run as run_metrics
from trainer.metrics.catalogue import stages as stage_metrics
from trainer.metrics.catalogue import training as training_metrics
from trainer.metrics.catalogue.index import step_columns
from trainer.metrics.catalogue.metric import Metric
from trainer.metrics.catalogue.watching import LOG_MESSAGES, RECORD_ERRORS
from trainer.metrics.exporter import Distribution, MetricSample
from trainer.monitor.rates import NOTHING_DONE
from trainer.monitor.state import RunState
from trainer.monitor.verdict import Verdict
from trainer.pipeline.queues import QueueStats
from trainer.pipeline.stages import StageStats
from trainer.record.format import EvaluationLine, StepLine
from trainer.record.writer import RunRecord


def run_samples(state: RunState, record: RunRecord) -> Iterator[MetricSample]:
    """All that the run's state says; stages, queues and devices are the sampler's."""
    yield from _identity(state)
    yield MetricSample(run_metrics.START_TIME, state.began_time)
    yield MetricSample(run_metrics.RESTARTS, state.attempt)
    yield MetricSample(run_metrics.GLOBAL_STEP, state.step)
    yield MetricSample(run_metrics.MAX_STEPS, state.run.get("max_steps"))
    yield MetricSample(run_metrics.PROGRESS, state.progress_ratio)
    yield MetricSample(run_metrics.REMAINING, state.eta_seconds)
    for name in run_metrics.RUN_STATES:
        yield MetricSample(run_metrics.STATE, float(name == state.state), (name,))
    yield from verdict_samples(state.verdict)
    yield MetricSample(run_metrics.LOST_DEVICE_SECONDS, state.tick.lost_device_seconds if state.tick else 0.0)
    yield from _safety(state, record)
    yield from _done(state)
    if state.newest is not None:
        yield from step_samples(state.newest.line)
    if state.evaluation is not None:
        yield from evaluation_samples(state.evaluation)


def _identity(state: RunState) -> Iterator[MetricSample]:
    target, versions = state.run.get("target") or {}, state.run.get("versions") or {}
    code = (versions.get("draftscope"), state.run.get("git_commit"))
    yield MetricSample(run_metrics.RUN_INFO, 1, _labels(state.run.get("id"), target.get("name"), *code))
    yield MetricSample(run_metrics.BUILD_INFO, 1, _labels(*code, versions.get("python"), versions.get("torch")))


def _labels(*values: object) -> tuple[str, ...]:
    """Label values; empty for what is not known."""
    return tuple(str(value or "") for value in values)


def _safety(state: RunState, record: RunRecord) -> Iterator[MetricSample]:
    """How much of the work a crash would lose, and the disk that it is kept on."""
    newest, config, disk = state.checkpoint, state.run.get("config") or {}, record.disk
    yield MetricSample(run_metrics.CHECKPOINT_STEP, newest.step if newest else 0)
    yield MetricSample(run_metrics.CHECKPOINT_TIME, newest.time if newest else 0.0)
    yield MetricSample(run_metrics.CHECKPOINT_BYTES, newest.bytes if newest else 0)
    yield MetricSample(run_metrics.CHECKPOINT_EVERY, (config.get("checkpoint") or {}).get("every"))
    yield MetricSample(run_metrics.DISK_FREE, disk.free_bytes if disk else None)
    yield MetricSample(run_metrics.DISK_SIZE, disk.size_bytes if disk else None)
    yield MetricSample(RECORD_ERRORS, record.errors + record.dropped)


def _done(state: RunState) -> Iterator[MetricSample]:
    """What this process has done: counts of the run, less those of earlier attempts."""
    base, counts = (state.base, state.newest.counts) if state.newest else (NOTHING_DONE, NOTHING_DONE)
    yield MetricSample(training_metrics.STEPS, counts.step - base.step)
    yield MetricSample(training_metrics.SAMPLES, counts.samples - base.samples)
    yield MetricSample(training_metrics.TOKENS, counts.context_tokens - base.context_tokens, ("context",))
    yield MetricSample(training_metrics.TOKENS, counts.draft_tokens - base.draft_tokens, ("draft",))
    yield MetricSample(training_metrics.LAST_STEP_TIME, state.newest.time if state.newest else 0)


def step_samples(line: StepLine) -> Iterator[MetricSample]:
    """Each column of `steps.jsonl` that is a gauge of the catalogue; a list has a sample for each position."""
    for column, metric in step_columns():
        if metric.kind == "gauge":
            yield from _column(metric, getattr(line, column))


def _column(metric: Metric, value: float | tuple[float | None, ...] | None) -> Iterator[MetricSample]:
    if isinstance(value, tuple):
        yield from (MetricSample(metric, share, (str(position),)) for position, share in enumerate(value, start=1))
    else:
        yield MetricSample(metric, value)


def evaluation_samples(line: EvaluationLine) -> Iterator[MetricSample]:
    yield MetricSample(training_metrics.MEASURED_ACCEPTANCE, line.measured_length)
    yield MetricSample(training_metrics.HELD_OUT_ACCEPTANCE, line.held_out_estimated_length)
    yield MetricSample(training_metrics.EVALUATION_STEP, line.step)
    yield from _column(training_metrics.MEASURED_POSITION, line.acceptance_by_position)


def verdict_samples(verdict: Verdict) -> Iterator[MetricSample]:
    """1 for the present verdict, 0 for every other there can be."""
    known, present = run_metrics.verdict_labels(), (verdict.state, verdict.stage or "")
    present = present if present in known else (verdict.state, "")
    for labels in known:
        yield MetricSample(run_metrics.VERDICT, float(labels == present), labels)
    yield MetricSample(run_metrics.HEADROOM, verdict.headroom_ratio)


def stage_samples(stages: Sequence[StageStats]) -> Iterator[MetricSample]:
    """A stage that has not begun has spent no time yet; one that has ended is not waited for any more."""
    known = {stage.name: stage for stage in stages}
    for name in stage_metrics.STAGES:
        stage = known.get(name) or StageStats(name, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)
        seconds = (stage.busy_seconds, stage.waiting_input_seconds, stage.waiting_output_seconds)
        yield from (
            MetricSample(stage_metrics.STAGE_SECONDS, spent, (name, doing))
            for doing, spent in zip(stage_metrics.STAGE_STATES, seconds, strict=True)
        )
        yield MetricSample(stage_metrics.STAGE_THREADS, stage.threads, (name,))
        yield MetricSample(stage_metrics.STAGE_RUNNING, stage.running, (name,))
        yield MetricSample(stage_metrics.STAGE_ITEMS, stage.items, (name,))
        counts = stage.item_counts or (0,) * (len(stage_metrics.STAGE_ITEM_SECONDS.buckets) + 1)
        yield MetricSample(stage_metrics.STAGE_ITEM_SECONDS, Distribution(counts, stage.item_busy_seconds), (name,))
        ended = stage.threads > 0 and stage.running == 0
        yield MetricSample(stage_metrics.STAGE_IDLE, None if ended else stage.seconds_since_progress, (name,))


def queue_samples(queues: Sequence[QueueStats]) -> Iterator[MetricSample]:
    known = {queue.name: queue for queue in queues}
    for name in stage_metrics.QUEUES:
        queue = known.get(name) or QueueStats(name, 0, 0, 0, 0)
        yield MetricSample(stage_metrics.QUEUE_ITEMS, queue.items, (name,))
        yield MetricSample(stage_metrics.QUEUE_CAPACITY_ITEMS, queue.capacity_items, (name,))
        yield MetricSample(stage_metrics.QUEUE_BYTES, queue.bytes, (name,))
        yield MetricSample(stage_metrics.QUEUE_CAPACITY_BYTES, queue.capacity_bytes, (name,))


def log_samples(warnings: int, errors: int) -> Iterator[MetricSample]:
    yield MetricSample(LOG_MESSAGES, warnings, ("warning",))
    yield MetricSample(LOG_MESSAGES, errors, ("error",))
