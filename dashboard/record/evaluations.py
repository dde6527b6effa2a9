"""Evaluations of a run, from its events: each as a point of a chart, the newest one whole (docs/record.md, `evaluated`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dashboard.record import parse
from dashboard.record.parse import Row

LENGTHS = ("measured_length", "held_out_estimated_length")
POINT_AXES = ("attempt", "step", "time")


class Evaluations:
    """All evaluations of a run, in the order of its events; those that a resume overtook stay, marked as overtaken."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._config: Row | None = None

    def take(self, events: Iterable[Row]) -> None:
        """Add the evaluations among `events`. An evaluation without a step has no place in a chart and is left out."""
        for row in events:
            if is_evaluation(row):
                clean, _ = parse.json_safe(row)
                self._rows.append({**clean, "overtaken": False})
            elif row.get("event") == "resumed":
                self._resumed(row)

    def _resumed(self, row: Row) -> None:
        config, after = row.get("config"), parse.number(row.get("step"))
        self._config = evaluate_config(config) if config else self._config
        for known in self._rows:
            known["overtaken"] = known["overtaken"] or known["step"] > after

    @property
    def newest(self) -> Row:
        """The newest evaluation that no resume overtook, without its sentence; {} where there is none."""
        found = next((row for row in reversed(self._rows) if not row["overtaken"]), {})
        return {name: value for name, value in found.items() if name not in ("event", "message", "overtaken")}

    def config(self, facts: Row) -> Row:
        """The newest attempt's `evaluate` config, with `held_out`: how many prompts there are to decode, where that is known."""
        data = facts.get("data")
        held_out = data.get("held_out") if isinstance(data, dict) else None
        config = evaluate_config(facts.get("config")) if self._config is None else self._config
        return {**config, "held_out": held_out}

    def points(self) -> list[Row]:
        return [point(row) for row in self._rows]


def is_evaluation(row: Row) -> bool:
    return row.get("event") == "evaluated" and type(row.get("step")) is int


def points_of(events: Iterable[Row]) -> list[Row]:
    """The evaluations among the newest events, which no resume can have overtaken yet."""
    return [point(row) for row in events if is_evaluation(row)]


def point(row: Row) -> Row:
    """An evaluation as a chart needs it; a length that is not a finite number is None."""
    lengths = {name: row.get(name) if isinstance(row.get(name), int | float) else None for name in LENGTHS}
    return {**{name: row.get(name) or 0 for name in POINT_AXES}, **lengths, "overtaken": bool(row.get("overtaken"))}


def evaluate_config(config: Any) -> Row:
    """The `evaluate` part of a run's config; {} where it has none."""
    found = config.get("evaluate") if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}
