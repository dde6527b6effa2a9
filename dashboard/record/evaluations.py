"""Events in, evaluations out: each as a point of a chart, and the newest one whole (docs/record.md, `evaluated`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dashboard.record import parse
from dashboard.record.parse import Row

LENGTHS = ("measured_length", "held_out_estimated_length")
PLACE = ("attempt", "step", "time")


class Evaluations:
    """All of a run's, in the order of its events; those that a resume overtook stay, and are marked."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._asked: Row | None = None

    def take(self, events: Iterable[Row]) -> None:
        """Raises nothing: an evaluation without a step has no place in a chart, and is left out."""
        for row in events:
            if is_evaluation(row):
                clean, _ = parse.honest(row)
                self._rows.append({**clean, "overtaken": False})
            elif row.get("event") == "resumed":
                self._resumed(row)

    def _resumed(self, row: Row) -> None:
        config, after = row.get("config"), parse.number(row.get("step"))
        self._asked = evaluate_of(config) if config else self._asked
        for known in self._rows:
            known["overtaken"] = known["overtaken"] or known["step"] > after

    @property
    def newest(self) -> Row:
        """The newest one that no resume overtook, without its sentence; {} where there is none."""
        found = next((row for row in reversed(self._rows) if not row["overtaken"]), {})
        return {name: value for name, value in found.items() if name not in ("event", "message", "overtaken")}

    def asked(self, facts: Row) -> Row:
        """What the newest attempt's config says of evaluations, and how many prompts there are to ask, where that is known."""
        data = facts.get("data")
        held_out = data.get("held_out") if isinstance(data, dict) else None
        asked = evaluate_of(facts.get("config")) if self._asked is None else self._asked
        return {**asked, "held_out": held_out}

    def points(self) -> list[Row]:
        return [point(row) for row in self._rows]


def is_evaluation(row: Row) -> bool:
    return row.get("event") == "evaluated" and type(row.get("step")) is int


def points_of(events: Iterable[Row]) -> list[Row]:
    """Of events that have just come, which no resume can have overtaken yet."""
    return [point(row) for row in events if is_evaluation(row)]


def point(row: Row) -> Row:
    """What a chart needs of an evaluation; a length that is no finite number is None."""
    lengths = {name: row.get(name) if isinstance(row.get(name), int | float) else None for name in LENGTHS}
    return {**{name: row.get(name) or 0 for name in PLACE}, **lengths, "overtaken": bool(row.get("overtaken"))}


def evaluate_of(config: Any) -> Row:
    """The part of a config that is about evaluations; {} where it has none."""
    asked = config.get("evaluate") if isinstance(config, dict) else None
    return asked if isinstance(asked, dict) else {}
