"""A growing file in, its new whole lines out: nothing is read twice, a torn last line waits until it is whole."""

from __future__ import annotations

import os
from pathlib import Path

CHUNK_BYTES = 4 << 20
LONGEST_LINE_BYTES = 64 << 20


class Tail:
    """Follows one append-only file by byte offset.

    The file may not exist yet. `replaced` turns True when it is another file than the one that was read, or has become shorter:
    whoever follows it has to start anew. `endless` turns True at a line that no record has; nothing is read from there on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.size = 0
        self.replaced = False
        self.endless = False
        self._inode: int | None = None

    @property
    def behind(self) -> int:
        """Bytes that were seen in the file and not yet read."""
        return 0 if self.endless else max(0, self.size - self.offset)

    def read(self, limit: int = CHUNK_BYTES) -> list[bytes]:
        """New whole lines without their ends, empty ones left out; about `limit` bytes at most, [] where there is nothing new."""
        try:
            self._look(self.path.stat())
            if self.replaced or not self.behind:
                return []
            block = self._block(limit)
        except OSError:  # not there yet, or a network file system that is away for a moment: the next look may succeed
            return []
        end = block.rfind(b"\n") + 1
        self.offset += end
        return [line for line in block[:end].split(b"\n") if line.strip()]

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


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def last_lines(path: Path, limit: int = 1 << 16) -> list[bytes]:
    """The whole lines in the last `limit` bytes of a file; [] where it does not exist or holds no whole line there."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit))
            block = file.read(limit)
    except OSError:
        return []
    lines = block[: block.rfind(b"\n") + 1].split(b"\n")
    if size > limit:
        lines = lines[1:]  # its beginning was cut off
    return [line for line in lines if line.strip()]


def scattered_lines(path: Path, places: int, place_bytes: int = 4096) -> list[bytes]:
    """Whole lines from `places` evenly spaced places of a file, in file order: a quick look at a file too long to read at once.

    All lines of a file that is no longer than those places together.
    """
    size = size_of(path)
    if size <= places * place_bytes:
        return last_lines(path, size)
    lines: list[bytes] = []
    try:
        with path.open("rb") as file:
            for place in range(places):
                file.seek((size - place_bytes) * place // max(1, places - 1))
                cut = file.read(place_bytes).split(b"\n")
                lines += [line for line in cut[1:-1] if line.strip()]
    except OSError:
        return []
    return lines
