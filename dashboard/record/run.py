"""One run, read from its folder: tables for the charts and its newest state. Never writes into the folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dashboard.record import parse, series
from dashboard.record.evaluations import Evaluations
from dashboard.record.parse import Row
from dashboard.record.state import (
    ENDED,
    attempt_of,
    clock_ahead,
    current_state,
    last_transition,
    loss_unit,
    newest_time,
    read_facts,
)
from dashboard.record.table import Table
from trainer.record.format import EVENTS, STEPS, TELEMETRY
from trainer.record.reader import Tail, files_of, last_lines, scattered_lines, size_of, split

PREVIEW_FROM_BYTES = 16 << 20  # shorter files are read whole before the first chart; longer ones are first looked at in places
PREVIEW_PLACES = 1200
EVENTS_KEPT = 500
KINDS = {"events": EVENTS, "steps": STEPS, "telemetry": TELEMETRY}
"""Kinds of lines, as the page calls them."""


class Run:
    """An opened run. One reader thread calls `advance`; any thread may call everything else, under `lock`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.steps = Table(parse.STEP_AXES)
        self.telemetry = Table(parse.TELEMETRY_AXES)
        self.events: list[Row] = []  # the newest EVENTS_KEPT of them
        self.events_seen = 0
        self.evaluations = Evaluations()
        self.newest: dict[str, Row] = {}  # the newest row of each file
        self.transition: Row = {}  # the newest event that began or ended an attempt
        self.resumed_config: Row = {}  # of the newest resume that says it
        self.unreadable = 0
        self.trouble = ""  # a sentence, where lines do not follow the contract
        self.version = 0  # rises with everything new
        self.first_look: dict[str, Table] = {}  # a few rows of each file, until a long record is read
        self.viewers = 0  # open streams; counted by `Runs`
        self.looked_at = time.monotonic()
        self._tails = {name: [Tail(folder / file) for file in files_of(kind)] for name, kind in KINDS.items()}
        self._last: dict[str, Row] = {}  # the last row taken in of each file; an old one while a long record is read
        self._whole_since: float | None = None  # monotonic
        self._arrived: dict[str, float] = {}  # monotonic, when a row last came that was not there before
        self._facts: dict[str, Any] = {}

    def open(self) -> None:
        """Read a short record whole, and a long one in places, so that its first chart need not wait."""
        if any(size_of(tail.path) > PREVIEW_FROM_BYTES for tail in self._every_tail()):
            self._look_first()
            return
        while self.advance():
            pass

    def _look_first(self) -> None:
        for name, table, append in (
            ("steps", Table(parse.STEP_AXES), append_steps),
            ("telemetry", Table(parse.TELEMETRY_AXES), append_telemetry),
        ):
            rows, _ = parse.rows_of([line for tail in self._tails[name] for line in scattered_lines(tail.path, PREVIEW_PLACES)])
            append_valid(rows, partial(append, table))
            self.first_look[name] = table
        last = {name: last_rows(self.folder, kind) for name, kind in KINDS.items()}
        self.newest = {name: rows[-1] for name, rows in last.items() if rows}
        self.transition = last_transition(last["events"])

    @property
    def replaced(self) -> bool:
        """Whether the files are no longer those that were read: the folder now holds another run."""
        return any(tail.replaced for tail in self._every_tail())

    def _every_tail(self) -> list[Tail]:
        return [tail for tails in self._tails.values() for tail in tails]

    @property
    def facts(self) -> dict[str, Any]:
        """`run.json`; {} until it can be read."""
        if not self._facts:
            self._facts = read_facts(self.folder)
        return self._facts

    def advance(self) -> bool:
        """Read what is new, one chunk of each kind; True where there is more to read. Never raises: see `trouble`."""
        try:
            fresh = {name: parse.rows_of(split(read_on(tails))) for name, tails in self._tails.items()}
            with self.lock:
                return self._take(fresh)
        except Exception as error:  # only this run suffers: the reader thread serves the others too
            self._report(f"A part of this record could not be read ({type(error).__name__}: {error}).")
            return False

    def _take(self, fresh: dict[str, tuple[list[Row], int]]) -> bool:
        self.unreadable += sum(bad for _, bad in fresh.values())
        for name, (rows, _) in fresh.items():
            if rows and self._whole_since is not None:
                self._arrived[name] = time.monotonic()
            self._take_rows(name, rows)
        for tail in self._every_tail():
            if tail.endless:
                self._report(f"{tail.path.name} holds a line that does not end; nothing is read beyond it.")
        came = any(rows or bad for rows, bad in fresh.values())
        more = came and any(tail.behind for tail in self._every_tail())
        if came or self.first_look:
            self.version += 1
        if not more:
            self.first_look = {}
            self._whole_since = self._whole_since or time.monotonic()
        if not self.first_look:
            self.newest = {**self._last}
        return more

    def _take_rows(self, name: str, rows: list[Row]) -> None:
        tables = {"steps": self.steps, "telemetry": self.telemetry}
        last, wrong = append_valid(rows, partial(APPENDS[name], tables[name]) if name in tables else self._take_events)
        if last is not None:
            self._last[name] = last
        if wrong:
            self._report(f"Some lines of this record are not as docs/record.md says ({wrong}); they are left out.")

    def _report(self, trouble: str) -> None:
        """Only a new sentence raises `version`: one that is found at every read would keep the streams busy."""
        if trouble != self.trouble:
            self.trouble = trouble
            self.version += 1

    def _take_events(self, rows: list[Row]) -> None:
        self.events = (self.events + rows)[-EVENTS_KEPT:]
        self.events_seen += len(rows)
        self.evaluations.take(rows)
        self.transition = last_transition(rows) or self.transition
        configs = [row.get("config") for row in rows if row.get("event") == "resumed"]
        self.resumed_config = next((config for config in reversed(configs) if isinstance(config, dict)), self.resumed_config)

    def table(self, source: str) -> Table:
        return self.first_look.get(source, self.telemetry if source == "telemetry" else self.steps)

    def tokens_of(self) -> series.TokensOf:
        return series.tokens_from(self.table("steps"))

    def loading(self) -> dict[str, Any] | None:
        """How much of a long record is read; None once all of it is."""
        if not self.first_look:
            return None
        total = sum(max(tail.size, 1) for tail in self._every_tail())
        done = sum(tail.offset for tail in self._every_tail())
        return {"ratio": round(done / total, 4), "bytes": total}

    def events_from(self, seen: int) -> list[Row]:
        """The events after the first `seen`, as far as they are kept."""
        return self.events[max(0, seen - (self.events_seen - len(self.events))) :]

    def head(self) -> dict[str, Any]:
        """The state of the run in single numbers and sentences; small enough to go with every message of a stream."""
        step, flags = parse.json_safe(self.newest.get("steps", {}))
        speaking, state = current_state(self.newest.get("telemetry", {}), self.transition)
        tick, _ = parse.json_safe(speaking)
        resumed = attempt_of(self.transition) > attempt_of(step)
        ended = state in ENDED
        return {
            "started_at": self.facts.get("started_at"),
            "state": state,
            "ended": ended,
            "ending": self.transition.get("message") if ended and self.transition.get("event") == state else None,
            "step": (self.transition if resumed else step).get("step") or tick.get("step") or 0,
            "max_steps": tick.get("max_steps", self.facts.get("max_steps")),
            "progress_ratio": tick.get("progress_ratio"),
            "eta_seconds": None if ended else tick.get("eta_seconds"),
            "newest_step": step or None,
            "not_finite": flags,
            "newest_tick": tick or None,
            "newest_evaluation": self.evaluations.newest or None,
            "evaluate": self.evaluations.config(self.facts),
            "loss_unit": loss_unit(self.facts, self.resumed_config),
            "last_line_age_seconds": self._age(*KINDS),
            "last_tick_age_seconds": self._age("telemetry") if tick else None,
            "clock_ahead_seconds": None if self._arrived else clock_ahead(self.newest.values()),
            "loading": self.loading(),
            "unreadable_lines": self.unreadable,
            "trouble": self.trouble,
        }

    def _age(self, *names: str) -> float | None:
        """Seconds since the newest line of some files.

        By this machine's clock alone, once a line has arrived since the run was opened. Until then by the time in that line, which
        is the trainer's clock and may differ; but at least the time for which nothing has arrived.
        """
        now = time.monotonic()
        if arrived := [self._arrived[name] for name in names if name in self._arrived]:
            return now - max(arrived)
        newest = newest_time(self.newest[name] for name in names if name in self.newest)
        watched = now - (self._whole_since or now)
        return None if newest is None else max(time.time() - newest, watched)


def read_on(tails: Iterable[Tail]) -> bytes:
    """New whole lines of files that follow one another: those of the next once the one before is read as far as it is whole."""
    block = b""
    for tail in tails:
        fresh = tail.read()
        block += fresh
        if fresh and tail.behind:
            break
    return block


def last_rows(folder: Path, kind: str) -> list[Row]:
    """The newest rows of a kind, however long its files are; [] where there is none."""
    newest = (last_lines(folder / file) for file in reversed(files_of(kind)))
    return parse.rows_of(next(filter(None, newest), []))[0]


def append_steps(table: Table, rows: list[Row]) -> None:
    attempts, axes, names, values = parse.step_numbers(rows)
    table.extend(attempts, axes[:, 0].astype(np.int64), axes, names, values)


def append_telemetry(table: Table, rows: list[Row]) -> None:
    attempts, axes, names, values = parse.telemetry_numbers(rows)
    table.extend(attempts, np.arange(len(table), len(table) + len(rows), dtype=np.int64), axes, names, values)


APPENDS = {"steps": append_steps, "telemetry": append_telemetry}


def append_valid(rows: list[Row], append: Callable[[list[Row]], None]) -> tuple[Row | None, str]:
    """Append all rows but those that raise, which are found by halving; returns the last row appended, and what was raised."""
    if not rows:
        return None, ""
    try:
        append(rows)
    except Exception as error:  # whatever a strange line makes numpy raise
        if len(rows) == 1:
            return None, f"{type(error).__name__}: {error}"
        half = len(rows) // 2
        (first, wrong), (second, also) = append_valid(rows[:half], append), append_valid(rows[half:], append)
        return second or first, also or wrong
    return rows[-1], ""
