"""How far a tracker has come with a run: a cursor in a file beside the record, so that it can go on there a week later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.files import write_atomic
from trainer.record.reader import FILES, Line, new_lines


def cursor_path(folder: Path, tracker: str) -> Path:
    """The file that keeps a tracker's cursor."""
    return folder / "trackers" / f"{tracker}.json"


class Cursor:
    """Bytes read of each file of a run's record (`offsets`), and how many points the tracker was sent (`sent`)."""

    def __init__(self, folder: Path, tracker: str) -> None:
        """Where the tracker has come to; the beginning where no cursor is kept, or one that cannot be read."""
        self._folder = folder
        self._path = cursor_path(folder, tracker)
        kept = _read(self._path)
        offsets = kept.get("offsets", kept.get("ends"))  # as it was called up to version 0.1
        offsets = offsets if isinstance(offsets, dict) else {}
        self.offsets = {file: offsets[file] if isinstance(offsets.get(file), int) else 0 for file in FILES}
        self.sent = kept["sent"] if isinstance(kept.get("sent"), int) else 0

    def new_lines(self) -> Iterator[Line]:
        """The lines behind it, in the order of attempt and time; it stays where it is until it is told that one has `passed`."""
        return new_lines(self._folder, self.offsets)

    def passed(self, line: Line) -> None:
        self.offsets[line.file] = line.end

    def keep(self) -> None:
        """Write it, whole or not at all. Raises `OSError`."""
        write_atomic(self._path, json.dumps({"offsets": self.offsets, "sent": self.sent}) + "\n", durable=False)


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}
