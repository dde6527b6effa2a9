"""trainer/trackers/cursor.py: a kept cursor is found again, also one of an older version; a broken one is the beginning."""

import json
from pathlib import Path

import pytest

from tests.support.recorded import go_on, make_folder
from trainer.record.format import STEPS
from trainer.record.reader import FILES
from trainer.trackers.cursor import Cursor, cursor_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = make_folder(tmp_path / "a")
    cursor_path(folder, "wandb").parent.mkdir()
    return folder


def steps(cursor: Cursor) -> list[int]:
    """Pass all that is new; returns the steps in it."""
    found = []
    for line in cursor.new_lines():
        cursor.passed(line)
        found += [line.fields["step"]] if line.kind == STEPS else []
    return found


def test_a_kept_cursor_is_found_again(folder: Path) -> None:
    go_on(folder, range(1, 4))
    cursor = Cursor(folder, "wandb")
    assert steps(cursor) == [1, 2, 3]
    cursor.sent = 3
    cursor.save()
    again = Cursor(folder, "wandb")
    assert (again.offsets, again.sent) == (cursor.offsets, 3)
    go_on(folder, range(4, 6), attempt=1)
    assert steps(again) == [4, 5]


def test_a_cursor_of_an_older_version_goes_on_where_it_was(folder: Path) -> None:
    go_on(folder, range(1, 4))
    size = (folder / STEPS).stat().st_size
    (folder / "telemetry.jsonl").rename(folder / "samples.jsonl")
    kept = {"ends": {STEPS: size, "samples.jsonl": 0, "events.jsonl": 0}, "sent": 3}
    cursor_path(folder, "wandb").write_text(json.dumps(kept))
    cursor = Cursor(folder, "wandb")
    assert cursor.sent == 3
    assert [line.file for line in cursor.new_lines()] == ["events.jsonl", "samples.jsonl", "events.jsonl"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"offsets": 3, "sent": "x"}'])
def test_a_broken_cursor_is_the_beginning(folder: Path, content: str) -> None:
    cursor_path(folder, "wandb").write_text(content)
    cursor = Cursor(folder, "wandb")
    assert (cursor.offsets, cursor.sent) == (dict.fromkeys(FILES, 0), 0)
