"""What a step and a sampling tick tell, as plain immutable values, and how each is shown: in `/status`, the record, `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from trainer import metrics
from trainer.gpus.device import NO_FIGURES, GpuReading
from trainer.queues import QueueReading
from trainer.recorder import Distribution, Reading
from trainer.stages import StageReading
from trainer.verdict import StageShare, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """One optimizer step. Tokens and samples are counted over the run, resumes included; `step_seconds` since the step before."""

    step: int
    epoch: float
    progress_ratio: float | None = None
    """How much of the run is done, 0 to 1; by default the step's share of `max_steps`."""
    loss: float
    learning_rate: float
    grad_norm: float
    position_accuracy: tuple[float | None, ...]
    estimated_acceptance_length: float
    context_tokens: int
    draft_tokens: int
    samples: int
    step_seconds: float
    seq: int
    """Of the newest batch in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFacts:
    """Real speculative decoding of held-out prompts by the drafter that `step` optimizer steps made."""

    step: int
    measured_length: float
    """Tokens kept per draft-and-verify round, the bonus token included."""
    acceptance_by_position: tuple[float | None, ...]
    """For draft token 1 … block_size - 1: the share of rounds that kept it; None where no round drafted that far."""
    held_out_estimated_length: float | None = None
    """What accuracy promises on the same conversations with the same weights; None where they hold no answer to compare with."""
    training_estimated_length: float | None = None
    """Mean of what the last training steps up to `step` promised; by default `Live` fills it in."""
    prompts: int
    rounds: int
    tokens: int
    """Decoded, by all prompts together."""
    seconds: float
    """That the evaluation took, all of it."""
    tokens_per_second: float
    """While decoding."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step, why its update was left out if it was, and when: on the clock that never goes back, and as Unix time."""

    facts: StepFacts
    skipped: str
    at: float
    time: float


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
    queues: tuple[QueueReading, ...] = ()
    gpus: GpuReading = NO_FIGURES
    cpu_cores: float | None = None
    """Cores that this process kept busy, over the last 60 s."""
    memory_bytes: int | None = None
    """Resident memory of this process."""
    lost_device_seconds: float = 0.0

    def shown(self) -> dict[str, Any]:
        """The objects that `/status` and `samples.jsonl` have in common."""
        return {
            "rates": self.rates.shown(),
            "stages": [share.shown() for share in self.stages],
            "queues": [show_queue(queue) for queue in self.queues],
            "devices": [device.shown() for device in self.gpus.devices],
            "process": {"cpu_cores": self.cpu_cores, "memory_bytes": self.memory_bytes},
            "verdict": self.verdict.shown(),
        }


def show_queue(queue: QueueReading) -> dict[str, Any]:
    return {**asdict(queue), "fill_ratio": round(queue.fill_ratio, 4)}


def step_line(facts: StepFacts, elapsed: float) -> dict[str, Any]:
    """A line of `steps.jsonl`."""
    return {
        "step": facts.step,
        "seq": facts.seq,
        "elapsed": round(elapsed, 4),
        "epoch": facts.epoch,
        "loss": facts.loss,
        "learning_rate": facts.learning_rate,
        "grad_norm": facts.grad_norm,
        "position_accuracy": facts.position_accuracy,
        "estimated_acceptance_length": facts.estimated_acceptance_length,
        "context_tokens": facts.context_tokens,
        "draft_tokens": facts.draft_tokens,
        "samples": facts.samples,
        "step_seconds": facts.step_seconds,
    }


def step_readings(newest: Stepped | None, base: Base) -> Iterator[Reading]:
    """For `/metrics`. What only a step can tell is absent before the first."""
    facts = newest.facts if newest else None
    yield Reading(metrics.STEPS, facts.step - base.step if facts else 0)
    yield Reading(metrics.SAMPLES, facts.samples - base.samples if facts else 0)
    yield Reading(metrics.TOKENS, facts.context_tokens - base.context_tokens if facts else 0, ("context",))
    yield Reading(metrics.TOKENS, facts.draft_tokens - base.draft_tokens if facts else 0, ("draft",))
    yield Reading(metrics.LAST_STEP_TIME, newest.time if newest else 0)
    if facts is None:
        return
    yield Reading(metrics.LOSS, facts.loss)
    yield Reading(metrics.LEARNING_RATE, facts.learning_rate)
    yield Reading(metrics.GRAD_NORM, facts.grad_norm)
    yield Reading(metrics.ESTIMATED_ACCEPTANCE, facts.estimated_acceptance_length)
    for position, accuracy in enumerate(facts.position_accuracy, start=1):
        yield Reading(metrics.POSITION_ACCURACY, accuracy, (str(position),))


def evaluated_fields(facts: EvaluationFacts) -> dict[str, Any]:
    """The event's own fields in `events.jsonl`."""
    told = asdict(facts)
    del told["step"]
    return {**told, "seconds": round(facts.seconds, 3)}


def evaluation_of(event: Mapping[str, Any]) -> EvaluationFacts | None:
    """What `evaluated_fields` made of an evaluation, read back; None for an event that is not whole."""
    known = {field.name: event[field.name] for field in fields(EvaluationFacts) if field.name in event}
    step, length, by_position = (known.get(name) for name in ("step", "measured_length", "acceptance_by_position"))
    if not (isinstance(step, int) and isinstance(length, int | float) and isinstance(by_position, list)):
        return None
    try:
        return EvaluationFacts(**known | {"acceptance_by_position": tuple(by_position)})
    except TypeError:
        return None


def evaluation_readings(newest: EvaluationFacts | None) -> Iterator[Reading]:
    """For `/metrics`; all absent before the first evaluation."""
    if newest is None:
        return
    yield Reading(metrics.MEASURED_ACCEPTANCE, newest.measured_length)
    yield Reading(metrics.HELD_OUT_ACCEPTANCE, newest.held_out_estimated_length)
    yield Reading(metrics.EVALUATION_STEP, newest.step)
    for position, share in enumerate(newest.acceptance_by_position, start=1):
        yield Reading(metrics.MEASURED_POSITION, share, (str(position),))


def stage_readings(stages: list[StageReading]) -> Iterator[Reading]:
    """For `/metrics`. A stage that has not begun has spent no time yet; one that has ended is not waited for any more."""
    known = {stage.name: stage for stage in stages}
    for name in metrics.STAGES:
        stage = known.get(name) or StageReading(name, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)
        seconds = (stage.busy_seconds, stage.waiting_input_seconds, stage.waiting_output_seconds)
        yield from (
            Reading(metrics.STAGE_SECONDS, spent, (name, state)) for state, spent in zip(metrics.STAGE_STATES, seconds, strict=True)
        )
        yield Reading(metrics.STAGE_THREADS, stage.threads, (name,))
        yield Reading(metrics.STAGE_RUNNING, stage.running, (name,))
        yield Reading(metrics.STAGE_ITEMS, stage.items, (name,))
        counts = stage.item_counts or (0,) * (len(metrics.STAGE_ITEM_SECONDS.buckets) + 1)
        yield Reading(metrics.STAGE_ITEM_SECONDS, Distribution(counts, stage.item_busy_seconds), (name,))
        ended = stage.threads > 0 and stage.running == 0
        yield Reading(metrics.STAGE_IDLE, None if ended else stage.seconds_since_progress, (name,))


def queue_readings(queues: list[QueueReading]) -> Iterator[Reading]:
    known = {queue.name: queue for queue in queues}
    for name in metrics.QUEUES:
        queue = known.get(name) or QueueReading(name, 0, 0, 0, 0)
        yield Reading(metrics.QUEUE_ITEMS, queue.items, (name,))
        yield Reading(metrics.QUEUE_CAPACITY_ITEMS, queue.capacity_items, (name,))
        yield Reading(metrics.QUEUE_BYTES, queue.bytes, (name,))
        yield Reading(metrics.QUEUE_CAPACITY_BYTES, queue.capacity_bytes, (name,))


def log_readings(warnings: int, errors: int) -> Iterator[Reading]:
    yield Reading(metrics.LOG_MESSAGES, warnings, ("warning",))
    yield Reading(metrics.LOG_MESSAGES, errors, ("error",))


def verdict_readings(verdict: Verdict) -> Iterator[Reading]:
    """1 for the present verdict, 0 for every other there can be."""
    known, present = metrics.verdict_labels(), (verdict.state, verdict.stage or "")
    present = present if present in known else (verdict.state, "")
    for labels in known:
        yield Reading(metrics.VERDICT, float(labels == present), labels)
    yield Reading(metrics.HEADROOM, verdict.headroom_ratio)
