"""Writes the run record: any thread hands over lines, one thread writes them to the files that docs/record.md describes.

Handing over a line only appends to a list in memory. Whatever happens to the files (disk full, folder gone, read-only) is counted,
and the write is tried again, within bounds; no error ever reaches the caller.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainer.files import write_atomic
from trainer.record.format import EVENTS, LOG, RUN, STEPS, TELEMETRY, StepLine, TelemetryLine, fields_of, strict

Fields = Mapping[str, Any]
Waiting = str | Callable[[], Fields]

FLUSH_SECONDS = 0.5
CLOSE_SECONDS = 5.0
# At most that many lines of a file wait in memory, about 30 MB of steps; beyond that the oldest are dropped and counted.
WAITING_LINES = 20_000
# A flush encodes that many at a time, so that a long backlog neither holds the interpreter lock nor doubles the memory.
_CHUNK_LINES = 1_000
_DISK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk that holds the run: bytes that this user may still write, and its size."""

    free_bytes: int
    size_bytes: int


class RunRecord:
    """Writes one attempt's lines below `folder`, which must exist. Every method may be called from any thread."""

    def __init__(
        self,
        folder: Path,
        attempt: int,
        clock: Callable[[], float] = time.time,
        *,
        flush_seconds: float = FLUSH_SECONDS,
        waiting_lines: int = WAITING_LINES,
    ) -> None:
        self.folder = folder
        self.attempt = attempt
        self._clock = clock
        self._flush_seconds = flush_seconds
        self._files = {name: _File(folder / name, waiting_lines) for name in (STEPS, TELEMETRY, EVENTS, LOG)}
        self._steps, self._telemetry, self._events, self._log = self._files.values()
        self._closing = threading.Event()
        self.cpu_seconds = 0.0
        """CPU time that the writer has spent."""
        self.disk: Disk | None = None
        """As of the last few seconds; None while the disk does not answer."""
        self._writer = threading.Thread(target=self._write, name="record-writer", daemon=True)
        self._writer.start()

    def step(self, line: StepLine, elapsed: float) -> None:
        """`elapsed` counts seconds since the attempt began."""
        self._steps.add(partial(self._step, self._clock(), line, elapsed))

    def telemetry(self, line: TelemetryLine) -> None:
        self._telemetry.add(partial(self._stamped, self._clock(), fields_of(line)))

    def event(self, name: str, message: str, step: int, **fields: Any) -> None:
        """`message` is one sentence; `fields` are the event's own."""
        self._events.add(partial(self._stamped, self._clock(), {"event": name, "step": step, "message": message, **fields}))

    def log(self, line: str) -> None:
        self._log.add(line)

    @property
    def errors(self) -> int:
        """Writes that failed; each is tried again."""
        return sum(file.errors for file in self._files.values())

    @property
    def dropped(self) -> int:
        """Lines given up because too many waited, or because they could not be encoded."""
        return sum(file.dropped for file in self._files.values())

    @property
    def trouble(self) -> str | None:
        """Why lines cannot be written at present; None while all is well."""
        return next((file.trouble for file in self._files.values() if file.trouble), None)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write what waits and end the writer; gives up after `timeout` seconds."""
        self._closing.set()
        self._writer.join(timeout)

    def _stamped(self, time: float, fields: Fields) -> Fields:
        return {"attempt": self.attempt, "time": time, **fields}

    def _step(self, time: float, line: StepLine, elapsed: float) -> Fields:
        """Runs on the writer's thread: the caller only hands over a line, which is immutable."""
        return self._stamped(time, {**fields_of(line), "elapsed": round(elapsed, 4)})

    def _write(self) -> None:
        last = False
        # The disk is queried on this thread only: a network disk that hangs blocks the thread that queries it.
        checked_at, self.disk = time.monotonic(), _disk(self.folder)
        while not last:
            last = self._closing.wait(self._flush_seconds)
            began = time.thread_time()
            for file in self._files.values():
                file.flush()
            if time.monotonic() - checked_at >= _DISK_SECONDS:
                checked_at, self.disk = time.monotonic(), _disk(self.folder)
            self.cpu_seconds += time.thread_time() - began


def _disk(folder: Path) -> Disk | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return Disk(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


class _File:
    """The lines that wait for one file. Any thread may add; only the writer flushes."""

    def __init__(self, path: Path, waiting_lines: int) -> None:
        self._path = path
        self._waiting: deque[Waiting] = deque(maxlen=waiting_lines)
        self._chunk: list[bytes] = []
        self._whole = False  # whether the file is known to end in a newline
        self.errors = 0
        self.dropped = 0
        self.trouble: str | None = None

    def add(self, line: Waiting) -> None:
        self.dropped += len(self._waiting) == self._waiting.maxlen
        self._waiting.append(line)

    def flush(self) -> None:
        """Write all that waits, or as much as possible."""
        try:
            while self._chunk or self._waiting:
                self._chunk = self._chunk or self._take()
                self._append()
            self.trouble = None
        except OSError as error:
            self._whole = False
            self.errors += 1
            self.trouble = f"{self._path.name} cannot be written: {error.strerror or error}"

    def _take(self) -> list[bytes]:
        lines = []
        with contextlib.suppress(IndexError):
            for _ in range(_CHUNK_LINES):
                line = self._waiting.popleft()
                try:
                    lines.append(encode(line))
                except Exception:
                    self.dropped += 1
        return lines

    def _append(self) -> None:
        """Write the chunk and forget the lines that were written whole. Raises `OSError`.

        The file is opened anew each time: a folder that was moved away then shows as an error, and readers on a network file
        system see the lines once it is closed. A line that was torn is written again whole, on a line of its own.
        """
        with self._path.open("a+b", buffering=0) as file:
            if not self._whole and not _ends_whole(file.fileno()):
                os.write(file.fileno(), b"\n")
            block = b"".join(self._chunk)
            written = os.write(file.fileno(), block)
            arrived = itertools.accumulate(len(line) for line in self._chunk)
            del self._chunk[: sum(1 for end in arrived if end <= written)]
            if written < len(block):
                raise OSError(f"only {written} of {len(block)} bytes were written")
            self._whole = True


def _ends_whole(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"


def encode(line: Waiting) -> bytes:
    """One line of a file: strict JSON, or text as it is. Characters that UTF-8 cannot hold become `?`."""
    text = line if isinstance(line, str) else json.dumps(strict(line()), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


class RecordLogHandler(logging.Handler):
    """Sends log records to `log.txt`, and counts them by level; only memory is touched."""

    def __init__(self, record: RunRecord) -> None:
        super().__init__()
        # Plain numbers under the handler's own lock: the thread that logs may hold the lock of a Prometheus counter.
        self.warnings = 0
        """Messages of level WARNING."""
        self.errors = 0
        """Messages of level ERROR and above."""
        self._record = record
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.errors += record.levelno >= logging.ERROR
        self.warnings += logging.WARNING <= record.levelno < logging.ERROR
        try:
            self._record.log(self.format(record))
        except Exception:
            self.handleError(record)


def write_run_json(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write `run.json`, whole or not at all, and only once: raises `FileExistsError` if there is one. Raises `OSError`."""
    text = json.dumps(strict(facts), allow_nan=False, ensure_ascii=False, indent=2) + "\n"
    write_atomic(folder / RUN, text.encode("utf-8", "replace"), exclusive=True)
