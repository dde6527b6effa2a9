"""Answers of the JSON routes about one run."""

from __future__ import annotations

from typing import Any

from dashboard import live
from dashboard.record.run import EVENTS_KEPT, Run
from dashboard.record.series import Request, choose_width, rows_between, series


def summary(run: Run) -> dict[str, Any]:
    """run.json, the latest step and telemetry tick, the last events, and the run's state."""
    with run.lock:
        return {
            "id": run.folder.name,
            "facts": run.facts,
            "head": run.head(),
            "events": run.events,
            "evaluations": run.evaluations.points(),
            "events_seen": run.events_seen,
            "events_kept": EVENTS_KEPT,
        }


def range_series(run: Run, metric: str, x: str, low: float | None, high: float | None) -> dict[str, Any]:
    """One or more columns between two values of the x axis, in at most 2000 buckets.

    `metric` is `steps` or `telemetry` for every column of that file. Raises KeyError with a sentence for a column in neither file.
    """
    if metric in ("steps", "telemetry") and low is None and high is None:
        return live.whole(run, metric)
    with run.lock:
        source, names = _columns(run, metric)
        table = run.table(source)
        begin, end = rows_between(table, _axis(run, source, x), low, high)
        width = choose_width(table, begin, end)
        request = live.drawn(run, source, width) if names is None else Request(names, width, run.tokens_of(), names)
        found = series(table, request, begin, end)
        return {**found, "x": x, "loading": run.loading()}


def _columns(run: Run, metric: str) -> tuple[str, list[str] | None]:
    """The file that holds the columns, and their names; None for every column that the page draws."""
    if metric in ("steps", "telemetry"):
        return metric, None
    names = metric.split(",")
    for source in ("steps", "telemetry"):
        if all(name in run.table(source).column_names for name in names):
            return source, names
    missing = [name for name in names if not any(name in run.table(source).column_names for source in ("steps", "telemetry"))]
    if not missing:
        raise KeyError(f"The columns {metric!r} are in different files; ask for steps.jsonl and telemetry.jsonl separately.")
    raise KeyError(f"The run {run.folder.name!r} has no column {missing[0]!r} yet.")


def _axis(run: Run, source: str, x: str) -> Any:
    table = run.table(source)
    if x != "tokens":
        return table.axis(x)
    if source == "steps":
        return table.axis("context_tokens")
    tokens_of, axis = run.tokens_of(), table.axis("step").copy()
    for segment in table.segments:
        part = slice(segment.first, segment.end)
        axis[part] = tokens_of(segment.attempt, axis[part])
    return axis
