"""A run's folder in, the new lines of its record out, in the order in which they were written; nothing is read twice.

What was read is kept in a file beside the record, so that a tracker goes on where it was: after a resume, or a week later.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trainer.record.format import EVENTS, SAMPLES, STEPS

FILES = (STEPS, SAMPLES, EVENTS)


def place_of(folder: Path, tracker: str) -> Path:
    """The file that says how far a tracker has come."""
    return folder / "trackers" / f"{tracker}.json"


class Line(NamedTuple):
    """Fields of one line of a file, and the byte behind it."""

    file: str
    end: int
    fields: dict[str, Any]


class Place:
    """How far a tracker has come with a run, in bytes of each file; `sent` counts the points it was given."""

    def __init__(self, path: Path) -> None:
        """Read it from `path`; where there is none, or one that cannot be read, it is the beginning."""
        self._path = path
        kept = _read(path)
        ends = kept.get("ends")
        ends = ends if isinstance(ends, dict) else {}
        self.ends = {name: ends[name] if isinstance(ends.get(name), int) else 0 for name in FILES}
        self.sent = kept["sent"] if isinstance(kept.get("sent"), int) else 0

    def passed(self, line: Line) -> None:
        self.ends[line.file] = line.end

    def keep(self) -> None:
        """Write it, whole or not at all. Raises `OSError`."""
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps({"ends": self.ends, "sent": self.sent}) + "\n", encoding="utf-8")
        draft.replace(self._path)


def new_lines(folder: Path, place: Place) -> Iterator[Line]:
    """Whole lines behind `place`, those of all files together in the order of attempt and time. Unreadable ones are left out."""
    files = [_lines(folder / name, name, place.ends[name]) for name in FILES]
    return heapq.merge(*files, key=lambda line: (line.fields["attempt"], line.fields["time"]))


def lines_behind(folder: Path, place: Place) -> int:
    """How many lines there are behind `place`."""
    return sum(1 for name in FILES for _ in _lines(folder / name, name, place.ends[name]))


def _lines(path: Path, name: str, start: int) -> Iterator[Line]:
    try:
        file = path.open("rb")
    except OSError:  # not there yet, or a network file system that is away for a moment
        return
    with file:
        end = file.seek(start, os.SEEK_SET)
        for content in file:
            if not content.endswith(b"\n"):  # still being written, or torn by a crash: the next attempt ends it
                return
            end += len(content)
            fields = _fields(content)
            if fields is not None:
                yield Line(name, end, fields)


def _fields(content: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(content)
    except ValueError:
        return None
    known = isinstance(fields, dict) and isinstance(fields.get("attempt"), int) and isinstance(fields.get("time"), int | float)
    return fields if known else None


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


_TAIL_BYTES = 65_536


_EVENTS_BYTES = 1 << 20


def next_attempt(folder: Path) -> int:
    """1 more than the highest attempt that left a line; 0 for a new run. Reads only the ends of the files."""
    return max((line["attempt"] + 1 for name in (EVENTS, STEPS) for line in _tail(folder / name)), default=0)


def events_before(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """The events of this name that earlier attempts left, the newest first; only those in the last MiB of the file."""
    try:
        with (folder / EVENTS).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _EVENTS_BYTES))
            lines = list(_attempt_lines(file.read()))
    except OSError:
        return
    yield from (line for line in reversed(lines) if line.get("event") == name)


def _tail(path: Path) -> list[dict[str, Any]]:
    """The newest lines of a file. Attempts only rise within it; a line longer than the tail makes it be read whole."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return list(_attempt_lines(file.read())) or list(_attempt_lines(path.read_bytes()))
    except FileNotFoundError:
        return []


def _attempt_lines(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.split(b"\n"):
        with contextlib.suppress(ValueError):
            fields = json.loads(line)
            if isinstance(fields, dict) and isinstance(fields.get("attempt"), int):
                yield fields
