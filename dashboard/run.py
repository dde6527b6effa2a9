"""One run's folder in, its tables and newest state out (docs/record.md). Only reads; never writes into the folder."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from dashboard import parse, series
from dashboard.parse import Row
from dashboard.table import Table
from dashboard.tail import CHUNK_BYTES, Tail, last_lines, scattered_lines

PREVIEW_FROM_BYTES = 16 << 20  # a smaller file is read whole before the first chart; a larger one is first looked at in places
PREVIEW_PLACES = 1200
EVENTS_KEPT = 5000
ENDED = ("finished", "failed")


class Run:
    """A run that somebody looks at. `advance` is called by one reader thread; everything else by any thread, under `lock`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.steps = Table(parse.STEP_AXES)
        self.samples = Table(parse.SAMPLE_AXES)
        self.events: list[Row] = []  # the newest EVENTS_KEPT of them
        self.events_seen = 0
        self.newest_step: Row | None = None
        self.newest_sample: Row | None = None
        self.unreadable = 0
        self.trouble = ""  # a sentence, where rows do not follow the contract
        self.version = 0  # rises with everything new
        self.preview: Table | None = None
        self.looked_at = time.monotonic()
        self._tails = {name: Tail(folder / f"{name}.jsonl") for name in ("events", "steps", "samples")}
        self._facts: dict[str, Any] = {}

    def open(self) -> None:
        """Reads a short record whole; looks at a long one in places, so that its first chart need not wait."""
        steps = self._tails["steps"].path
        if steps.exists() and steps.stat().st_size > PREVIEW_FROM_BYTES:
            self.newest_step = _newest(steps)
            self.newest_sample = _newest(self._tails["samples"].path)
            preview = Table(parse.STEP_AXES)
            _append_steps(preview, parse.rows_of(scattered_lines(steps, PREVIEW_PLACES))[0])
            self.preview = preview
            return
        while self.advance() and self.behind < PREVIEW_FROM_BYTES:
            pass

    @property
    def behind(self) -> int:
        return sum(tail.behind for tail in self._tails.values())

    @property
    def replaced(self) -> bool:
        """Whether the files are no longer those that were read: another run has taken the folder."""
        return any(tail.shrunk for tail in self._tails.values())

    @property
    def facts(self) -> dict[str, Any]:
        """run.json; {} until it is there and whole."""
        if not self._facts:
            self._facts = read_facts(self.folder)
        return self._facts

    def advance(self) -> bool:
        """Takes in what is new, one chunk of each file; True where more is waiting."""
        fresh = {name: parse.rows_of(tail.read(CHUNK_BYTES)) for name, tail in self._tails.items()}
        if any(rows or bad for rows, bad in fresh.values()):
            with self.lock:
                self.unreadable += sum(bad for _, bad in fresh.values())
                try:
                    self._take(**{name: rows for name, (rows, _) in fresh.items()})
                except (AttributeError, TypeError, ValueError) as error:
                    self.trouble = f"Some lines of this record are not as docs/record.md says ({error}); they are left out."
                self.version += 1
        more = any(tail.behind for tail in self._tails.values()) and any(rows for rows, _ in fresh.values())
        if not more and self.preview is not None:
            self.preview = None
            self.version += 1
        return more

    def _take(self, events: list[Row], steps: list[Row], samples: list[Row]) -> None:
        self.events = (self.events + events)[-EVENTS_KEPT:]
        self.events_seen += len(events)
        _append_steps(self.steps, steps)
        if samples:
            attempts, axes, names, values = parse.sample_numbers(samples)
            keys = np.arange(len(self.samples), len(self.samples) + len(samples), dtype=np.int64)
            self.samples.extend(attempts, keys, axes, names, values)
        if self.preview is None:
            self.newest_step = steps[-1] if steps else self.newest_step
            self.newest_sample = samples[-1] if samples else self.newest_sample

    def table(self, source: str) -> Table:
        if source == "samples":
            return self.samples
        return self.preview or self.steps

    def tokens_of(self) -> series.TokensOf:
        return series.tokens_from(self.table("steps"))

    def loading(self) -> dict[str, Any] | None:
        """How far a long record is read; None once it is."""
        if self.preview is None:
            return None
        total = sum(max(tail.size, 1) for tail in self._tails.values())
        done = sum(tail.offset for tail in self._tails.values())
        return {"ratio": round(done / total, 4), "bytes": total}

    def events_from(self, seen: int) -> list[Row]:
        """The events after the first `seen` ones, as far as they are kept."""
        return self.events[max(0, seen - (self.events_seen - len(self.events))) :]

    def head(self, now: float) -> dict[str, Any]:
        """Everything about the run that is one number or one sentence; small enough to go with every tick."""
        step, flags = parse.honest(self.newest_step or {})
        sample = self.newest_sample or {}
        newest = max((row["time"] for row in (step, sample, *self.events[-1:]) if _is_time(row.get("time"))), default=None)
        state = state_of(sample, self.events)
        done, most = step.get("step") or sample.get("step") or 0, self.facts.get("max_steps")
        return {
            "state": state,
            "step": done,
            "max_steps": most,
            "progress_ratio": min(1.0, done / most) if most else None,
            "eta_seconds": _eta(state, done, most, sample),
            "newest_step": step or None,
            "not_finite": flags,
            "newest_sample": parse.honest(sample)[0] or None,
            "last_line_age_seconds": _age(now, newest),
            "last_sample_age_seconds": _age(now, sample.get("time")),
            "loading": self.loading(),
            "unreadable_lines": self.unreadable,
            "trouble": self.trouble,
        }


def _append_steps(table: Table, rows: list[Row]) -> None:
    rows = [row for row in rows if type(row.get("step")) is int]  # a call for each row would cost a second per million
    if rows:
        attempts, axes, names, values = parse.step_numbers(rows)
        table.extend(attempts, axes[:, 0].astype(np.int64), axes, names, values)


def read_facts(folder: Path) -> dict[str, Any]:
    """run.json as it is; {} where it is missing or not yet whole."""
    try:
        facts = orjson.loads((folder / "run.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _newest(path: Path) -> Row | None:
    rows, _ = parse.rows_of(last_lines(path))
    return rows[-1] if rows else None


def state_of(sample: Row, events: list[Row]) -> str:
    """The run's state: as its newest sample says, unless an event that ends it came after."""
    last = next((row for row in reversed(events) if row.get("event") in (*ENDED, "started", "resumed")), {})
    if last.get("event") in ENDED and last.get("attempt", 0) >= sample.get("attempt", 0):
        return str(last["event"])
    return str(sample.get("state") or "starting")


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float)


def _age(now: float, value: Any) -> float | None:
    """Seconds since a time of the record, as this machine's clock tells them; 0 where the trainer's clock is ahead."""
    return max(0.0, now - value) if _is_time(value) else None


def _eta(state: str, step: int, most: int | None, sample: Row) -> float | None:
    speed = parse.number((sample.get("rates") or {}).get("steps_per_second"))
    if state in ENDED or not most or not 0 < speed < float("inf"):
        return None
    return max(0.0, (most - step) / speed)
