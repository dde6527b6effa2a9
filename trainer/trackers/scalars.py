"""Lines of the run record in, named numbers out: what other trackers are sent.

A number has its name of the catalogue, without the prefix, with its labels behind slashes: `queue_items/features`. What the
catalogue does not have, such as a rate over the last minute, has the name that it has in the record: `rates/steps_per_second`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trainer.metrics.catalogue.index import CATALOGUE, step_columns
from trainer.metrics.catalogue.run import CHECKPOINT_BYTES, CHECKPOINT_SECONDS, HEADROOM, REMAINING
from trainer.metrics.catalogue.training import EVALUATION_SECONDS, HELD_OUT_ACCEPTANCE, MEASURED_ACCEPTANCE, MEASURED_POSITION
from trainer.metrics.catalogue.watching import PROCESS_MEMORY
from trainer.record.format import EVENTS, NOT_FINITE, STEPS, TELEMETRY

Named = tuple[str, float]

_NAMES = frozenset(metric.name for metric in CATALOGUE)
# What a line of steps.jsonl says of which step it is and when it was; the rest are numbers for a tracker.
_OF_WHEN = ("attempt", "time", "step", "seq", "elapsed")
# A list in telemetry.jsonl → how the catalogue's names of it begin, and which field tells one from the other.
_LISTS = {"stages": ("stage", "name"), "queues": ("queue", "name"), "devices": ("gpu", "index")}
_UNLIKE = {
    "eta_seconds": REMAINING.name,
    "process/memory_bytes": PROCESS_MEMORY.name,
    "verdict/headroom_ratio": HEADROOM.name,
}
_OF_AN_EVENT: Mapping[str, Mapping[str, str]] = {
    "evaluated": {
        "measured_length": MEASURED_ACCEPTANCE.name,
        "acceptance_by_position": MEASURED_POSITION.name,
        "held_out_estimated_length": HELD_OUT_ACCEPTANCE.name,
        "seconds": EVALUATION_SECONDS.name,
    },
    "checkpoint": {"seconds": CHECKPOINT_SECONDS.name, "bytes": CHECKPOINT_BYTES.name},
}


class Point(NamedTuple):
    """Numbers of one moment; `time` is Unix time. Never empty."""

    step: int
    time: float
    attempt: int
    values: dict[str, float]


def point_of(kind: str, line: Mapping[str, Any]) -> Point | None:
    """The numbers in a line of a kind (STEPS, TELEMETRY or EVENTS); None where it has none for a tracker."""
    step, time, attempt = line.get("step"), line.get("time"), line.get("attempt")
    if not isinstance(step, int) or not isinstance(time, int | float) or not isinstance(attempt, int):
        return None
    values = dict({STEPS: _step, TELEMETRY: _tick, EVENTS: _event}[kind](line))
    return Point(step, float(time), attempt, values) if values else None


def _step(line: Mapping[str, Any]) -> Iterator[Named]:
    names = {column: metric.name for column, metric in step_columns()}
    for column, value in line.items():
        if column not in _OF_WHEN:
            yield from _named(names.get(column, column), value)


def _tick(line: Mapping[str, Any]) -> Iterator[Named]:
    if line.get("state") == "starting":  # its step is not known yet
        return
    for field in ("progress_ratio", "eta_seconds"):
        yield from _named(_UNLIKE.get(field, field), line.get(field))
    for group in ("rates", "process", "verdict"):
        for field, value in _fields(line.get(group)):
            name = f"{group}/{field}"
            if not isinstance(value, str) and field != "since":
                yield from _named(_UNLIKE.get(name, name), value)
    for group, (beginning, key) in _LISTS.items():
        for item in _items(line.get(group)):
            for field, value in _fields(item):
                if field != key:
                    yield from _named(*_labelled(group, beginning, field, str(item.get(key))), value)


def _event(line: Mapping[str, Any]) -> Iterator[Named]:
    for field, name in _OF_AN_EVENT.get(str(line.get("event")), {}).items():
        yield from _named(name, line.get(field))


def _labelled(group: str, beginning: str, field: str, label: str) -> tuple[str, str]:
    """The name of a field of one of several, and its label."""
    for name in (f"{beginning}_{field}", f"{beginning}_{field}_total"):
        if name in _NAMES:
            return name, label
    return f"{group}/{label}/{field}", ""


def _named(name: str, *label_and_value: Any) -> Iterator[Named]:
    """`value` as numbers with names: a list has one for each position, from 1; what is no number has none."""
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
