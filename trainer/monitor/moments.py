"""What a step and a telemetry tick tell, as plain immutable values, and how each is shown: in `/status`, the record, `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from trainer.gpus.device import NOT_SAMPLED, GpuSnapshot
from trainer.metrics.catalogue import stages as stage_metrics
from trainer.metrics.catalogue import training as training_metrics
from trainer.metrics.catalogue.run import HEADROOM, VERDICT, verdict_labels
from trainer.metrics.catalogue.watching import LOG_MESSAGES
from trainer.metrics.exporter import Distribution, MetricSample
from trainer.monitor.verdict import StageShare, Verdict
from trainer.pipeline.queues import QueueStats
from trainer.pipeline.stages import StageStats
from trainer.record.format import EvaluationLine, StepLine


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step, why its update was left out if it was, and when: on the clock that never goes back, and as Unix time."""

    facts: StepLine
    skipped: str
    at: float
    time: float
    progress_ratio: float | None = None
    """How much of the run was done, 0 to 1; None where only `max_steps` can say."""


@dataclass(frozen=True, slots=True)
class Base:
    """Where this attempt began: counts over the run."""

    step: int = 0
    context_tokens: int = 0
    draft_tokens: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Over the last 60 s; None before the first step."""

    context_tokens_per_second: float | None = None
    draft_tokens_per_second: float | None = None
    steps_per_second: float | None = None
    progress_per_second: float | None = None
    """Share of the run."""

    def shown(self) -> dict[str, Any]:
        names = ("context_tokens_per_second", "draft_tokens_per_second", "steps_per_second")
        return {name: None if (rate := getattr(self, name)) is None else round(rate, 4) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    verdict: Verdict
    rates: Rates = Rates()
    stages: tuple[StageShare, ...] = ()
    queues: tuple[QueueStats, ...] = ()
    gpus: GpuSnapshot = NOT_SAMPLED
    cpu_cores: float | None = None
    """Cores that this process kept busy, over the last 60 s."""
    memory_bytes: int | None = None
    """Resident memory of this process."""
    lost_device_seconds: float = 0.0

    def shown(self) -> dict[str, Any]:
        """The objects that `/status` and `telemetry.jsonl` have in common."""
        return {
            "rates": self.rates.shown(),
            "stages": [share.shown() for share in self.stages],
            "queues": [show_queue(queue) for queue in self.queues],
            "devices": [device.shown() for device in self.gpus.devices],
            "process": {"cpu_cores": self.cpu_cores, "memory_bytes": self.memory_bytes},
            "verdict": self.verdict.shown(),
        }


def show_queue(queue: QueueStats) -> dict[str, Any]:
    return {**asdict(queue), "fill_ratio": round(queue.fill_ratio, 4)}


def step_samples(newest: Stepped | None, base: Base) -> Iterator[MetricSample]:
    """For `/metrics`. What only a step can tell is absent before the first."""
    facts = newest.facts if newest else None
    yield MetricSample(training_metrics.STEPS, facts.step - base.step if facts else 0)
    yield MetricSample(training_metrics.SAMPLES, facts.samples - base.samples if facts else 0)
    yield MetricSample(training_metrics.TOKENS, facts.context_tokens - base.context_tokens if facts else 0, ("context",))
    yield MetricSample(training_metrics.TOKENS, facts.draft_tokens - base.draft_tokens if facts else 0, ("draft",))
    yield MetricSample(training_metrics.LAST_STEP_TIME, newest.time if newest else 0)
    if facts is None:
        return
    yield MetricSample(training_metrics.LOSS, facts.loss)
    yield MetricSample(training_metrics.LEARNING_RATE, facts.learning_rate)
    yield MetricSample(training_metrics.GRAD_NORM, facts.grad_norm)
    yield MetricSample(training_metrics.ESTIMATED_ACCEPTANCE, facts.estimated_acceptance_length)
    for position, accuracy in enumerate(facts.position_accuracy, start=1):
        yield MetricSample(training_metrics.POSITION_ACCURACY, accuracy, (str(position),))


def evaluation_samples(newest: EvaluationLine | None) -> Iterator[MetricSample]:
    """For `/metrics`; all absent before the first evaluation."""
    if newest is None:
        return
    yield MetricSample(training_metrics.MEASURED_ACCEPTANCE, newest.measured_length)
    yield MetricSample(training_metrics.HELD_OUT_ACCEPTANCE, newest.held_out_estimated_length)
    yield MetricSample(training_metrics.EVALUATION_STEP, newest.step)
    for position, share in enumerate(newest.acceptance_by_position, start=1):
        yield MetricSample(training_metrics.MEASURED_POSITION, share, (str(position),))


def stage_samples(stages: list[StageStats]) -> Iterator[MetricSample]:
    """For `/metrics`. A stage that has not begun has spent no time yet; one that has ended is not waited for any more."""
    known = {stage.name: stage for stage in stages}
    for name in stage_metrics.STAGES:
        stage = known.get(name) or StageStats(name, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)
        seconds = (stage.busy_seconds, stage.waiting_input_seconds, stage.waiting_output_seconds)
        yield from (
            MetricSample(stage_metrics.STAGE_SECONDS, spent, (name, state))
            for state, spent in zip(stage_metrics.STAGE_STATES, seconds, strict=True)
        )
        yield MetricSample(stage_metrics.STAGE_THREADS, stage.threads, (name,))
        yield MetricSample(stage_metrics.STAGE_RUNNING, stage.running, (name,))
        yield MetricSample(stage_metrics.STAGE_ITEMS, stage.items, (name,))
        counts = stage.item_counts or (0,) * (len(stage_metrics.STAGE_ITEM_SECONDS.buckets) + 1)
        yield MetricSample(stage_metrics.STAGE_ITEM_SECONDS, Distribution(counts, stage.item_busy_seconds), (name,))
        ended = stage.threads > 0 and stage.running == 0
        yield MetricSample(stage_metrics.STAGE_IDLE, None if ended else stage.seconds_since_progress, (name,))


def queue_samples(queues: list[QueueStats]) -> Iterator[MetricSample]:
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


def verdict_samples(verdict: Verdict) -> Iterator[MetricSample]:
    """1 for the present verdict, 0 for every other there can be."""
    known, present = verdict_labels(), (verdict.state, verdict.stage or "")
    present = present if present in known else (verdict.state, "")
    for labels in known:
        yield MetricSample(VERDICT, float(labels == present), labels)
    yield MetricSample(HEADROOM, verdict.headroom_ratio)
