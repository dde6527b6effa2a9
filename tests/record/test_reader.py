"""trainer/record/reader.py: whole lines, each once, in the order in which they were written."""

import json
from pathlib import Path

import pytest

from tests.support.recorded import go_on, make_folder
from trainer.record.format import EVENTS, STEPS
from trainer.record.reader import FILES, Place, lines_behind, new_lines, place_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "a")


def read(folder: Path, place: Place) -> list[tuple[str, int, int]]:
    """Take all that is new: (file, attempt, step)."""
    rows = []
    for line in new_lines(folder, place):
        rows.append((line.file, line.fields["attempt"], line.fields["step"]))
        place.passed(line)
    return rows


def a_place(folder: Path) -> Place:
    path = place_of(folder, "tensorboard")
    path.parent.mkdir(exist_ok=True)
    return Place(path)


def test_a_run_that_has_not_begun_has_no_lines(folder: Path) -> None:
    assert read(folder, a_place(folder)) == []
    assert lines_behind(folder, a_place(folder)) == 0


def test_files_come_in_the_order_of_attempt_and_time(folder: Path) -> None:
    go_on(folder, range(1, 4))
    go_on(folder, range(3, 5), attempt=1)
    rows = read(folder, a_place(folder))
    assert rows[:2] == [(EVENTS, 0, 0), (STEPS, 0, 1)]
    assert [attempt for _, attempt, _ in rows] == sorted(attempt for _, attempt, _ in rows)
    assert rows.index((EVENTS, 1, 2)) < rows.index((STEPS, 1, 3)), "it says that it was resumed before its first step"


def test_nothing_is_read_twice_and_a_kept_place_is_found_again(folder: Path) -> None:
    go_on(folder, range(1, 4))
    place = a_place(folder)
    first = read(folder, place)
    place.sent = 3
    place.keep()
    again = a_place(folder)
    assert (again.ends, again.sent) == (place.ends, 3)
    assert read(folder, again) == []
    go_on(folder, range(4, 6), attempt=1)
    assert lines_behind(folder, again) == 5
    assert [step for file, _, step in read(folder, again) if file == STEPS] == [4, 5]
    assert len(first) == 6


def test_a_torn_line_waits_until_it_is_whole(folder: Path) -> None:
    whole = json.dumps({"attempt": 0, "time": 1.0, "step": 1}).encode() + b"\n"
    (folder / STEPS).write_bytes(whole + whole[:10])
    place = a_place(folder)
    assert len(read(folder, place)) == 1
    (folder / STEPS).write_bytes(whole + whole)
    assert len(read(folder, place)) == 1


def test_unreadable_lines_are_passed_over(folder: Path) -> None:
    whole = json.dumps({"attempt": 0, "time": 1.0, "step": 1}).encode() + b"\n"
    (folder / STEPS).write_bytes(b"\xff{\n" + b"[1]\n" + b'{"attempt": "x", "time": 1}\n' + whole)
    assert read(folder, a_place(folder)) == [(STEPS, 0, 1)]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"ends": 3, "sent": "x"}'])
def test_a_broken_place_is_the_beginning(folder: Path, content: str) -> None:
    place_of(folder, "wandb").parent.mkdir()
    place_of(folder, "wandb").write_text(content)
    place = Place(place_of(folder, "wandb"))
    assert (place.ends, place.sent) == (dict.fromkeys(FILES, 0), 0)
