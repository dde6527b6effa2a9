"""A growing file in, its new whole lines out: nothing is read twice, a torn last line waits until it is whole."""

from __future__ import annotations

from pathlib import Path

CHUNK_BYTES = 4 << 20


class Tail:
    """Follows one append-only file by byte offset.

    The file may not exist yet. `shrunk` turns True when the file has become shorter than what was read: it is then another file,
    and whoever follows it has to start anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.size = 0
        self.shrunk = False

    @property
    def behind(self) -> int:
        """Bytes that were seen in the file and not yet read."""
        return max(0, self.size - self.offset)

    def read(self, limit: int = CHUNK_BYTES) -> list[bytes]:
        """New whole lines without their ends, empty ones left out; about `limit` bytes at most, [] where there is nothing new."""
        try:
            self.size = self.path.stat().st_size
            if self.size <= self.offset:
                self.shrunk = self.shrunk or self.size < self.offset
                return []
            with self.path.open("rb") as file:
                file.seek(self.offset)
                block = file.read(limit)
                end = block.rfind(b"\n") + 1
                while not end and (more := file.read(limit)):  # one line longer than the limit
                    block += more
                    end = block.rfind(b"\n") + 1
        except OSError:  # not there yet, or a network file system that is away for a moment: the next look may succeed
            return []
        self.offset += end
        return [line for line in block[:end].split(b"\n") if line.strip()]


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
    """Whole lines from `places` evenly spaced places of a file, in file order: a quick look at a file too long to read at once."""
    lines: list[bytes] = []
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            for place in range(places):
                file.seek(max(0, (size - place_bytes) * place // max(1, places - 1)))
                cut = file.read(place_bytes).split(b"\n")
                lines += [line for line in cut[1:-1] if line.strip()]
    except OSError:
        return []
    return lines
