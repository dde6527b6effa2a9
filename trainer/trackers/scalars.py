"""What a tracker is sent, named numbers from the run record, and what it has to offer.

A number has its name in the catalogue, without the prefix, and its label after a slash: `queue_items/features`. What is not in the
catalogue, such as a rate over the last minute, keeps its name in the record: `rates/steps_per_second`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from trainer.metrics.catalogue.index import CATALOGUE, step_columns
from trainer.metrics.catalogue.run import CHECKPOINT_BYTES, CHECKPOINT_SECONDS, HEADROOM, REMAINING
from trainer.metrics.catalogue.training import EVALUATION_SECONDS, HELD_OUT_ACCEPTANCE, MEASURED_ACCEPTANCE, MEASURED_POSITION
from trainer.metrics.catalogue.watching import PROCESS_MEMORY
from trainer.record.format import EVENTS, NOT_FINITE, STEPS, TELEMETRY

INSTALL = "pip install -r requirements/trackers.txt"

Named = tuple[str, float]

_NAMES = frozenset(metric.name for metric in CATALOGUE)
# Columns of steps.jsonl that say which step it is and when it was; a tracker is sent all others.
_STAMP_COLUMNS = ("attempt", "time", "step", "seq", "elapsed")
# By list in telemetry.jsonl: the prefix of its names in the catalogue, and the field that becomes the label.
_LISTS = {"stages": ("stage", "name"), "queues": ("queue", "name"), "devices": ("gpu", "index")}
# Where the name in the catalogue does not follow from the one in the record.
_RENAMED = {
    "eta_seconds": REMAINING.name,
    "process/memory_bytes": PROCESS_MEMORY.name,
    "verdict/headroom_ratio": HEADROOM.name,
}
_EVENT_NAMES: Mapping[str, Mapping[str, str]] = {
    "evaluated": {
        "measured_length": MEASURED_ACCEPTANCE.name,
        "acceptance_by_position": MEASURED_POSITION.name,
        "held_out_estimated_length": HELD_OUT_ACCEPTANCE.name,
        "seconds": EVALUATION_SECONDS.name,
    },
    "checkpoint": {"seconds": CHECKPOINT_SECONDS.name, "bytes": CHECKPOINT_BYTES.name},
}


class Point(NamedTuple):
    """Numbers of one moment, at least one; `time` is Unix time."""

    step: int
    time: float
    attempt: int
    values: dict[str, float]


class Tracker(Protocol):
    """Takes points in the order in which they happened. Whatever it raises ends its process, and nothing else."""

    notice: str
    """What a person should know about its start; usually empty."""

    def send(self, point: Point) -> None: ...

    def restart(self, step: int) -> None:
        """The run was resumed from a checkpoint: `step` and later ones that were sent are superseded."""

    def flush(self) -> None:
        """Make sure that what was sent survives this process."""

    def close(self) -> None: ...


class TrackerError(Exception):
    """A tracker cannot work; the message says why, and the way out."""


def import_failure(library: str, error: ImportError) -> TrackerError:
    """Why `library` cannot be imported: it is not installed, or it is broken."""
    if isinstance(error, ModuleNotFoundError) and error.name == library:
        return TrackerError(f"{library} is not installed ({INSTALL})")
    return TrackerError(f"{library} cannot be imported: {error} ({INSTALL})")


def point_of(kind: str, line: Mapping[str, Any]) -> Point | None:
    """The numbers in a record line of `kind` (STEPS, TELEMETRY or EVENTS); None if it has none for a tracker."""
    step, time, attempt = line.get("step"), line.get("time"), line.get("attempt")
    if not isinstance(step, int) or not isinstance(time, int | float) or not isinstance(attempt, int):
        return None
    values = dict({STEPS: _step, TELEMETRY: _tick, EVENTS: _event}[kind](line))
    return Point(step, float(time), attempt, values) if values else None


def _step(line: Mapping[str, Any]) -> Iterator[Named]:
    names = {column: metric.name for column, metric in step_columns()}
    for column, value in line.items():
        if column not in _STAMP_COLUMNS:
            yield from _named(names.get(column, column), value)


def _tick(line: Mapping[str, Any]) -> Iterator[Named]:
    if line.get("state") == "starting":  # its step is not known yet
        return
    for field in ("progress_ratio", "eta_seconds"):
        yield from _named(_RENAMED.get(field, field), line.get(field))
    for group in ("rates", "process", "verdict"):
        for field, value in _fields(line.get(group)):
            name = f"{group}/{field}"
            if not isinstance(value, str) and field != "since":
                yield from _named(_RENAMED.get(name, name), value)
    for group, (prefix, key) in _LISTS.items():
        for item in _items(line.get(group)):
            for field, value in _fields(item):
                if field != key:
                    yield from _named(*_labelled(group, prefix, field, str(item.get(key))), value)


def _event(line: Mapping[str, Any]) -> Iterator[Named]:
    for field, name in _EVENT_NAMES.get(str(line.get("event")), {}).items():
        yield from _named(name, line.get(field))


def _labelled(group: str, prefix: str, field: str, label: str) -> tuple[str, str]:
    """The name and the label of a field of one of several items."""
    for name in (f"{prefix}_{field}", f"{prefix}_{field}_total"):
        if name in _NAMES:
            return name, label
    return f"{group}/{label}/{field}", ""


def _named(name: str, *label_and_value: Any) -> Iterator[Named]:
    """`value` as named numbers: one per position of a list, from 1, and none for what is not a number."""
    *label, value = label_and_value
    name = "/".join((name, *filter(None, label)))
    match value:
        case bool() | int() | float():
            yield name, float(value)
        case str() if value in NOT_FINITE:
            yield name, NOT_FINITE[value]
        case list():
            for position, inner in enumerate(value, start=1):
                yield from _named(f"{name}/{position}", inner)
        case dict():
            for key, inner in value.items():
                yield from _named(f"{name}/{key}", inner)


def _fields(value: Any) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, dict) else ()


def _items(value: Any) -> Iterator[Mapping[str, Any]]:
    return (item for item in (value if isinstance(value, list) else ()) if isinstance(item, dict))
