"""The news of a run since a cursor, small enough for one message to a browser.

A cursor is the number of rows of each file that the browser has, `steps:telemetry:events`. A message holds every bucket that has
gained a row since; the browser replaces its own buckets from the first new `start` on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dashboard import charts
from dashboard.record.evaluations import points_of
from dashboard.record.run import Run
from dashboard.record.series import Request, choose_width, series

BUCKETS_PER_TICK = 40  # about 25 columns each: keeps a message under 50 KB
EVENTS_PER_TICK = 20
GIVE_UP_AFTER = 400  # buckets behind: reloading the chart is cheaper than catching up


@dataclass(frozen=True)
class Cursor:
    steps: int = 0
    telemetry: int = 0
    events: int = 0

    def __str__(self) -> str:
        return f"{self.steps}:{self.telemetry}:{self.events}"

    @classmethod
    def parse(cls, text: str | None) -> Cursor | None:
        """None if the text is not a cursor."""
        parts = (text or "").split(":")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 16 for part in parts):
            return None
        return cls(*map(int, parts))


@dataclass(frozen=True)
class Tick:
    message: dict[str, Any]
    cursor: Cursor
    more: bool  # there was more than fits into one message


def tick(run: Run, cursor: Cursor, widths: dict[str, int]) -> Tick:
    """What is new since `cursor`, in buckets of the widths that the browser draws (`steps`, `telemetry`)."""
    with run.lock:
        message: dict[str, Any] = {"head": run.head()}
        reached = {}
        for source in ("steps", "telemetry"):
            message[source], reached[source] = _new_buckets(run, source, cursor, widths[source])
        waiting = run.events_from(cursor.events)
        message["events"] = waiting[:EVENTS_PER_TICK]
        message["evaluations"] = points_of(message["events"])
        after = Cursor(reached["steps"], reached["telemetry"], run.events_seen - len(waiting[EVENTS_PER_TICK:]))
        more = not run.first_look and after != Cursor(len(run.steps), len(run.telemetry), run.events_seen)
    return Tick(message, after, more and after != cursor)


def _new_buckets(run: Run, source: str, cursor: Cursor, width: int) -> tuple[dict[str, Any] | None, int]:
    table, begin = run.table(source), int(getattr(cursor, source))
    if run.first_look:
        return None, begin
    foreign = begin > len(table) or cursor.events > run.events_seen  # the cursor is of another run, or of a longer record
    if foreign or len(table) - begin > GIVE_UP_AFTER * width or choose_width(table, 0, len(table)) > width:
        return {"resync": True}, len(table)
    end = min(len(table), begin + BUCKETS_PER_TICK * width)
    if begin >= end:
        return None, begin
    return series(table, drawn(run, source, width), begin, end), end


def drawn(run: Run, source: str, width: int) -> Request:
    """Everything that the page draws from a file."""
    return Request(charts.names_of(source, run.table(source).column_names), width, run.tokens_of(), charts.BANDED)


def whole(run: Run, source: str) -> dict[str, Any]:
    """All numbers of a chart, with the cursor from which ticks continue."""
    with run.lock:
        table = run.table(source)
        width = choose_width(table, 0, len(table))
        found = series(table, drawn(run, source, width), 0, len(table))
        return {**found, "cursor": 0 if run.first_look else len(table), "loading": run.loading()}
