"""Reads a growing record: whole lines of JSON, each once, from a byte offset on; also the ends of long files. Only reads.

Used by the trainer, the trackers and the dashboard. Standard library only.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainer.record.format import EVENTS, FILES_BEFORE, STEPS, TELEMETRY

CHUNK_BYTES = 4 << 20
LONGEST_LINE_BYTES = 64 << 20
TAIL_BYTES = 1 << 16
EVENTS_BYTES = 1 << 20

Row = dict[str, Any]


class Tail:
    """Follows one append-only file from a byte offset.

    The file may not exist yet. `replaced` turns True when it is another file than the one that was read, or has become shorter:
    whoever follows it has to start anew. `endless` turns True at a line that no record has; nothing is read from there on.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        """Bytes that were read."""
        self.size = 0
        """Bytes in the file, when it was last looked at."""
        self.replaced = False
        self.endless = False
        self._inode: int | None = None

    @property
    def behind(self) -> int:
        """Bytes that were seen in the file and not yet read."""
        return 0 if self.endless else max(0, self.size - self.offset)

    def read(self, limit: int = CHUNK_BYTES) -> bytes:
        """New whole lines, as one block of about `limit` bytes at most; empty where there is nothing new.

        A line without its end is still being written, or was torn by a crash and will be ended by the next attempt: it waits.
        """
        try:
            self._look(self.path.stat())
            if self.replaced or not self.behind:
                return b""
            block = self._block(limit)
        except OSError:  # not there yet, or a network file system that is away for a moment: the next look may succeed
            return b""
        whole = block[: block.rfind(b"\n") + 1]
        self.offset += len(whole)
        return whole

    def _look(self, found: os.stat_result) -> None:
        self._inode = self._inode or found.st_ino
        self.size = found.st_size
        self.replaced = self.replaced or self.size < self.offset or self._inode != found.st_ino

    def _block(self, limit: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            block = file.read(limit)
            while b"\n" not in block and (more := file.read(limit)):  # one line longer than the limit
                block += more
                if len(block) > LONGEST_LINE_BYTES:
                    self.endless = True
                    return b""
        return block


class Line(NamedTuple):
    """One line of the record: the `kind` of file it is of, the file that holds it, the byte behind it, and its fields."""

    kind: str
    file: str
    end: int
    fields: Row


def files_of(kind: str) -> tuple[str, ...]:
    """The files that may hold lines of a kind (STEPS, TELEMETRY or EVENTS), those of the older format first."""
    return (FILES_BEFORE[kind], kind) if kind in FILES_BEFORE else (kind,)


FILES = {file: kind for kind in (STEPS, TELEMETRY, EVENTS) for file in files_of(kind)}
"""Every file of JSON lines that a record may have, with the kind of its lines."""


def new_lines(folder: Path, offsets: Mapping[str, int]) -> Iterator[Line]:
    """The lines behind `offsets` (bytes read of each of FILES), of all files together, in the order of attempt and time.

    Lines that cannot be read, or do not say when they were written, are left out.
    """
    files = [_stamped_lines(folder, file, kind, offsets.get(file, 0)) for file, kind in FILES.items()]
    return heapq.merge(*files, key=lambda line: (line.fields["attempt"], line.fields["time"]))


def _stamped_lines(folder: Path, file: str, kind: str, offset: int) -> Iterator[Line]:
    tail = Tail(folder / file, offset)
    while block := tail.read():
        for content in block.split(b"\n")[:-1]:
            offset += len(content) + 1
            row = parse(content)
            if row is not None and isinstance(row.get("attempt"), int) and isinstance(row.get("time"), int | float):
                yield Line(kind, file, offset, row)


def parse(line: bytes) -> Row | None:
    """The JSON object in a line; None where there is none, as where a crash tore the line and a resumed run went on behind it."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def split(block: bytes) -> list[bytes]:
    """The lines of a block without their ends, empty ones left out."""
    return [line for line in block.split(b"\n") if line.strip()]


def last_lines(path: Path, limit: int | None = TAIL_BYTES) -> list[bytes]:
    """The whole lines in the last `limit` bytes of a file, None for all of it; [] where it does not exist or holds none there."""
    try:
        block = _end(path, limit)
    except OSError:
        return []
    return split(block[: block.rfind(b"\n") + 1])


def _end(path: Path, limit: int | None) -> bytes:
    """The last `limit` bytes of a file, without the line whose beginning is cut off. Raises `OSError`."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = 0 if limit is None else max(0, size - limit)
        file.seek(start)
        block = file.read(size - start)
    return block.partition(b"\n")[2] if start else block


def scattered_lines(path: Path, places: int, place_bytes: int = 4096) -> list[bytes]:
    """Whole lines from `places` evenly spaced places of a file, in file order: a first look at a file too long to read at once.

    All lines of a file that is no longer than those places together.
    """
    size = size_of(path)
    if size <= places * place_bytes:
        return last_lines(path, None)
    lines: list[bytes] = []
    try:
        with path.open("rb") as file:
            for place in range(places):
                file.seek((size - place_bytes) * place // max(1, places - 1))
                lines += split(b"\n".join(file.read(place_bytes).split(b"\n")[1:-1]))
    except OSError:
        return []
    return lines


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def newest_events(folder: Path, name: str, limit: int | None = EVENTS_BYTES) -> Iterator[Row]:
    """The events called `name`, the newest first; only those in the last `limit` bytes of the file, None for all of it."""
    word = json.dumps(name).encode()
    for line in reversed(last_lines(folder / EVENTS, limit)):
        if word in line and (row := parse(line)) is not None and row.get("event") == name:
            yield row


def next_attempt(folder: Path) -> int:
    """1 more than the highest attempt that left a line; 0 for a new run. Reads only the ends of the files. Raises `OSError`."""
    return max((attempt + 1 for file in (EVENTS, STEPS) for attempt in _last_attempts(folder / file)), default=0)


def _last_attempts(path: Path) -> list[int]:
    """Attempts of the newest lines: they only rise within a file. A line longer than the tail makes the file be read whole."""
    for limit in (TAIL_BYTES, None):
        try:
            block = _end(path, limit)
        except FileNotFoundError:
            return []
        rows = filter(None, map(parse, split(block)))
        if attempts := [attempt for row in rows if isinstance(attempt := row.get("attempt"), int)]:
            return attempts
    return []
