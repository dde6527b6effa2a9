"""How much of a run a tracker was sent: a cursor in a file beside the record, from which it continues, even a week later."""

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
        """Read the cursor; a missing or broken one is at the beginning."""
        self._folder = folder
        self._path = cursor_path(folder, tracker)
        kept = _read(self._path)
        offsets = kept.get("offsets", kept.get("ends"))  # its name up to version 0.1
        offsets = offsets if isinstance(offsets, dict) else {}
        self.offsets = {file: offsets[file] if isinstance(offsets.get(file), int) else 0 for file in FILES}
        self.sent = kept["sent"] if isinstance(kept.get("sent"), int) else 0

    def new_lines(self) -> Iterator[Line]:
        """The lines after the cursor, in the order of attempt and time. It stays where it is until `passed`."""
        return new_lines(self._folder, self.offsets)

    def passed(self, line: Line) -> None:
        """Move the cursor behind `line`."""
        self.offsets[line.file] = line.end

    def save(self) -> None:
        """Write the file, whole or not at all. Raises `OSError`."""
        write_atomic(self._path, json.dumps({"offsets": self.offsets, "sent": self.sent}) + "\n", durable=False)


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}
