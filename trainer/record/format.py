"""The format of a run's files: what they are called, the fields of each kind of line, how JSON writes NaN, what a run id may be.

The only place that knows it: the writer, the readers, `/metrics`, `/status`, the trackers, the dashboard and docs/record.md go by
the types below. *A field of a line is a column of its file is an attribute of its type.* Standard library only.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

RUN: Final = "run.json"
STEPS: Final = "steps.jsonl"
TELEMETRY: Final = "telemetry.jsonl"
EVENTS: Final = "events.jsonl"
LOG: Final = "log.txt"
FILES_BEFORE: Final[Mapping[str, str]] = {TELEMETRY: "samples.jsonl"}
"""What a file was called up to version 0.1. Such a record is still read; once resumed, it has both files, the old lines first."""

RUN_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
"""A run id is the name of a folder, a label in Prometheus and a part of a URL."""
RUN_ID_RULE: Final = "1 to 64 letters, digits, '.', '_' or '-', not starting with '.'"

NOT_FINITE: Final[Mapping[str, float]] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The words for the floats that JSON lacks."""

LOSS_UNITS: Final[Mapping[str, str]] = {
    "cross_entropy": "nats per draft token",
    "dpace": "nats per block",
    "distillation": "nats per draft token",
}
"""What the loss of each `loss.objective` is divided by. Losses of different units cannot be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """One optimizer step: a line of `steps.jsonl`."""

    step: int
    """Optimizer step, from 1."""
    seq: int
    """Number of the newest batch in it, from 0."""
    elapsed: float | None = None
    """Seconds since the attempt began; not known until the line is written."""
    epoch: float
    """Visits of the data, as a fraction: 1.5 is half-way through the second."""
    loss: float
    """In the unit that `run.json` names as `loss_unit`."""
    learning_rate: float
    """Of the optimizer, at the middle of the step; 0 where its update was left out."""
    grad_norm: float
    """Norm of the gradient before clipping."""
    position_accuracy: tuple[float | None, ...]
    """Share of draft tokens that equal the data's, for position 1 … block_size - 1; null where the step had none there."""
    estimated_acceptance_length: float
    """Tokens kept per round, the bonus token included, as estimated from accuracy."""
    context_tokens: int
    """Read by the target, counted over the run, resumes included."""
    draft_tokens: int
    """Drafted (anchors x block size), counted over the run."""
    samples: int
    """Conversations, counted over the run, once per visit."""
    step_seconds: float
    """Wall time since the step before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationLine:
    """Real speculative decoding of held-out prompts by the drafter of `step`: the fields of an `evaluated` event."""

    step: int
    """The step whose drafter was measured. Training went on meanwhile: later steps may come before this line."""
    measured_length: float
    """Tokens kept per draft-and-verify round, the bonus token included."""
    acceptance_by_position: tuple[float | None, ...]
    """Share of rounds that kept draft token 1 … block_size - 1; null where no round drafted that far."""
    held_out_estimated_length: float | None = None
    """Acceptance length estimated from accuracy on the same conversations with the same weights; null where they hold no answer."""
    training_estimated_length: float | None = None
    """Mean of `estimated_acceptance_length` over the 20 steps up to `step`; null where this attempt took none of them."""
    prompts: int
    """Prompts decoded."""
    rounds: int
    """Draft-and-verify rounds, of all prompts together."""
    tokens: int
    """Tokens decoded, of all prompts together."""
    seconds: float
    """Duration of the whole evaluation, which runs beside training."""
    tokens_per_second: float
    """While decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryLine:
    """One telemetry tick: a line of `telemetry.jsonl`. Rates and ratios are over the last 60 s."""

    step: int
    """The newest step; 0 before the first."""
    max_steps: int | None
    """Where the run is to end; null where the data's end decides."""
    progress_ratio: float | None
    """Share of the run that is done, 0 to 1."""
    eta_seconds: float | None
    """Time left at the present pace."""
    state: str
    """As in `/status`: starting, running, paused, stalled, finishing, finished or failed."""
    rates: Mapping[str, Any]
    """`context_tokens_per_second`, `draft_tokens_per_second`, `steps_per_second`."""
    stages: Sequence[Mapping[str, Any]]
    """One for each stage, in the order of the pipeline."""
    queues: Sequence[Mapping[str, Any]]
    """One for each queue, in the order of the pipeline."""
    devices: Sequence[Mapping[str, Any]]
    """One for each GPU that the run may use."""
    process: Mapping[str, Any]
    """The trainer's own process: `cpu_cores` in use, `memory_bytes` resident."""
    verdict: Mapping[str, Any]
    """What holds the run back."""


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event: a line of `events.jsonl` has its `name` as `event`, `step`, `message`, and the event's own `fields`."""

    name: str
    meaning: str
    fields: tuple[str, ...] = ()


Line = StepLine | EvaluationLine | TelemetryLine
AnyLine = TypeVar("AnyLine", StepLine, EvaluationLine, TelemetryLine)


def field_names(kind: type[Line]) -> tuple[str, ...]:
    """The fields of a kind of line, in the order in which they are written."""
    return tuple(field.name for field in fields(kind))


def fields_of(line: Line) -> dict[str, Any]:
    """The fields of a line with their values, as they go into its file."""
    return {name: getattr(line, name) for name in field_names(type(line))}


def read_line(kind: type[AnyLine], row: Mapping[str, Any]) -> AnyLine | None:
    """A line read back; None where a field is missing or of another type than in `kind`. Fields unknown to `kind` are left out."""
    known: dict[str, Any] = {name: _as_tuple(row[name]) for name in field_names(kind) if name in row}
    hints = typing.get_type_hints(kind)
    if not all(_fits(value, hints[name]) for name, value in known.items()):
        return None
    try:
        return kind(**known)
    except TypeError:  # one is missing
        return None


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _fits(value: Any, hint: Any) -> bool:
    """Whether `value`, read from JSON, is of the type `hint`: 3 is a float, True is no int, and "NaN" is neither."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return any(_fits(value, option) for option in inner)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    kind = int | float if hint is float else origin or hint
    return isinstance(value, kind) and (hint is bool or not isinstance(value, bool))


EVENT_KINDS: Final = (
    EventKind("started", "The run began."),
    EventKind("resumed", "A new attempt went on from a checkpoint.", ("command", "git_commit", "versions", "config")),
    EventKind("checkpoint", "A checkpoint was written.", ("path", "bytes", "seconds")),
    EventKind("checkpoint_failed", "A checkpoint could not be written; training went on."),
    EventKind(
        "evaluated",
        "Acceptance was measured by decoding held-out prompts; see below.",
        tuple(name for name in field_names(EvaluationLine) if name != "step"),
    ),
    EventKind("evaluation_failed", "An evaluation failed; training went on."),
    EventKind(
        "dropped", "Conversations were left out: an event for the first, then for each ten times as many.", ("reason", "count")
    ),
    EventKind("skipped", "The update of a step was left out.", ("reason",)),
    EventKind("warning", "Something that a person should know."),
    EventKind("stalled", "A stage, or the run as a whole, has made no progress for too long.", ("stage", "seconds")),
    EventKind("checkpoint_requested", "A checkpoint was requested over HTTP.", ("reason",)),
    EventKind("pause_requested", "A pause was requested over HTTP.", ("reason",)),
    EventKind("resume_requested", "The end of a pause was requested over HTTP.", ("reason",)),
    EventKind("stop_requested", "The run's end was requested over HTTP.", ("reason",)),
    EventKind("paused", "A pause began.", ("reason",)),
    EventKind("unpaused", "A pause ended, after so many seconds.", ("reason", "seconds")),
    EventKind("finished", "The run came to its end, or was stopped."),
    EventKind("failed", "The run failed.", ("stage", "error", "traceback")),
)


def strict(value: Any) -> Any:
    """`value` as strict JSON can hold it: floats that are not finite as words, tuples as lists, anything unknown as its text."""
    match value:
        case float():
            return value if math.isfinite(value) else _word(value)
        case None | bool() | int() | str():
            return value
        case Mapping():
            return {str(key): strict(inner) for key, inner in value.items()}
        case list() | tuple():
            return [strict(inner) for inner in value]
        case _:
            return str(value)


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
