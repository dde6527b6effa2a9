"""What the files of a run are called and hold: one type for each kind of line, field by field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
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
class EvaluationLine:
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


def step_line(facts: StepLine, elapsed: float) -> dict[str, Any]:
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


def evaluated_fields(facts: EvaluationLine) -> dict[str, Any]:
    """The event's own fields in `events.jsonl`."""
    told = asdict(facts)
    del told["step"]
    return {**told, "seconds": round(facts.seconds, 3)}


def evaluation_of(event: Mapping[str, Any]) -> EvaluationLine | None:
    """What `evaluated_fields` made of an evaluation, read back; None for an event that is not whole."""
    known = {field.name: event[field.name] for field in fields(EvaluationLine) if field.name in event}
    step, length, by_position = (known.get(name) for name in ("step", "measured_length", "acceptance_by_position"))
    if not (isinstance(step, int) and isinstance(length, int | float) and isinstance(by_position, list)):
        return None
    try:
        return EvaluationLine(**known | {"acceptance_by_position": tuple(by_position)})
    except TypeError:
        return None


LOSS_UNITS: Final[Mapping[str, str]] = {
    "cross_entropy": "nats per draft token",
    "dpace": "nats per block",
    "distillation": "nats per draft token",
}
"""What the loss of each `loss.objective` is divided by. Losses of different units cannot be compared."""


STEPS: Final = "steps.jsonl"


SAMPLES: Final = "samples.jsonl"


EVENTS: Final = "events.jsonl"


LOG: Final = "log.txt"


def strict(value: Any) -> Any:
    """`value` as JSON can hold it: NaN and infinities as "NaN", "Infinity", "-Infinity"; what is unknown to JSON as its text."""
    match value:
        case float():
            return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case None | bool() | int() | str():
            return value
        case Mapping():
            return {str(key): strict(inner) for key, inner in value.items()}
        case list() | tuple():
            return [strict(inner) for inner in value]
        case _:
            return str(value)
