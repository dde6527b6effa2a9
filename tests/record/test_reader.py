"""trainer/record/reader.py: whole lines, each once, in the order of writing; files that are late, cut or replaced."""

import json
from pathlib import Path

import pytest

from tests.support.recorded import go_on, make_folder
from trainer.record import reader
from trainer.record.format import EVENTS, STEPS, TELEMETRY
from trainer.record.reader import Tail, last_lines, new_lines, newest_events, next_attempt, scattered_lines, split

OLD_TELEMETRY = "samples.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "a")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / STEPS


def read(folder: Path, offsets: dict[str, int]) -> list[tuple[str, int, int]]:
    """Take all that is new: (kind, attempt, step)."""
    rows = []
    for line in new_lines(folder, offsets):
        rows.append((line.kind, line.fields["attempt"], line.fields["step"]))
        offsets[line.file] = line.end
    return rows


def lines(tail: Tail, limit: int = 1 << 20) -> list[bytes]:
    return split(tail.read(limit))


def test_a_torn_line_waits_until_it_is_whole(path: Path) -> None:
    path.write_bytes(b'{"step":1}\n{"st')
    tail = Tail(path)
    assert lines(tail) == [b'{"step":1}']
    assert lines(tail) == []
    with path.open("ab") as file:
        file.write(b'ep":2}\n')
    assert lines(tail) == [b'{"step":2}']
    assert tail.behind == 0


def test_a_file_may_come_later(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "run" / STEPS)
    assert lines(tail) == []
    tail.path.parent.mkdir()
    tail.path.write_bytes(b"1\n\n2\n")
    assert lines(tail) == [b"1", b"2"]


def test_reads_in_pieces_and_never_twice(path: Path) -> None:
    wanted = [f"{number:05}".encode() for number in range(1000)]
    path.write_bytes(b"\n".join(wanted) + b"\n")
    tail, found = Tail(path), []
    while piece := lines(tail, limit=64):
        assert len(piece) <= 11
        found += piece
    assert found == wanted


def test_a_line_longer_than_the_limit_is_read_whole(path: Path) -> None:
    path.write_bytes(b"x" * 1000 + b"\nshort\n")
    tail = Tail(path)
    assert [*lines(tail, limit=64), *lines(tail, limit=64)] == [b"x" * 1000, b"short"]


def test_a_tail_begins_where_it_is_told(path: Path) -> None:
    path.write_bytes(b"1\n2\n3\n")
    assert lines(Tail(path, offset=2)) == [b"2", b"3"]


def test_notices_that_the_file_became_shorter(path: Path) -> None:
    path.write_bytes(b"1\n2\n3\n")
    tail = Tail(path)
    tail.read()
    path.write_bytes(b"1\n")
    assert lines(tail) == []
    assert tail.replaced


def test_notices_another_file_even_if_it_is_longer(tmp_path: Path, path: Path) -> None:
    path.write_bytes(b"1\n")
    tail = Tail(path)
    tail.read()
    (tmp_path / "other").write_bytes(b"1\n2\n3\n")
    (tmp_path / "other").replace(path)
    assert lines(tail) == []
    assert tail.replaced


def test_a_file_without_an_end_of_line_is_not_read_into_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LONGEST_LINE_BYTES", 1000)
    path.write_bytes(b"x" * 5000)
    tail = Tail(path)
    assert lines(tail, limit=100) == []
    assert tail.endless
    assert tail.behind == 0


def test_a_run_that_has_not_begun_has_no_lines(folder: Path) -> None:
    assert read(folder, {}) == []


def test_files_come_in_the_order_of_attempt_and_time(folder: Path) -> None:
    go_on(folder, range(1, 4))
    go_on(folder, range(3, 5), attempt=1)
    rows = read(folder, {})
    assert rows[:2] == [(EVENTS, 0, 0), (STEPS, 0, 1)]
    assert [attempt for _, attempt, _ in rows] == sorted(attempt for _, attempt, _ in rows)
    assert rows.index((EVENTS, 1, 2)) < rows.index((STEPS, 1, 3)), "it says that it was resumed before its first step"


def test_lines_behind_an_offset_are_new_and_no_other(folder: Path) -> None:
    go_on(folder, range(1, 4))
    offsets: dict[str, int] = {}
    assert len(read(folder, offsets)) == 6
    assert read(folder, offsets) == []
    go_on(folder, range(4, 6), attempt=1)
    assert [step for kind, _, step in read(folder, offsets) if kind == STEPS] == [4, 5]


def test_many_small_pieces_are_the_same_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on(folder, range(1, 40))
    wanted, ends = read(folder, {}), {name: (folder / name).stat().st_size for name in (STEPS, EVENTS, TELEMETRY)}
    monkeypatch.setattr(Tail.read, "__defaults__", (100,))
    offsets: dict[str, int] = {}
    assert read(folder, offsets) == wanted
    assert offsets == ends


def test_the_telemetry_of_an_older_record_is_read_before_the_new(folder: Path) -> None:
    go_on(folder, range(1, 4))
    (folder / TELEMETRY).rename(folder / OLD_TELEMETRY)
    go_on(folder, range(3, 6), attempt=1)
    offsets: dict[str, int] = {}
    assert [row for row in read(folder, offsets) if row[0] == TELEMETRY] == [(TELEMETRY, 0, 3), (TELEMETRY, 1, 5)]
    assert read(folder, offsets) == []


def test_unreadable_lines_are_passed_over(folder: Path) -> None:
    whole = json.dumps({"attempt": 0, "time": 1.0, "step": 1}).encode() + b"\n"
    (folder / STEPS).write_bytes(b"\xff{\n" + b"[1]\n" + b'{"attempt": "x", "time": 1}\n' + whole)
    assert read(folder, {}) == [(STEPS, 0, 1)]


@pytest.mark.parametrize("places", [10, 1000])
def test_scattered_lines_of_a_short_file_are_all_of_them_once(path: Path, places: int) -> None:
    path.write_bytes(b"".join(b"%03d\n" % number for number in range(200)))
    assert [int(line) for line in scattered_lines(path, places, place_bytes=100)] == list(range(200))


def test_scattered_lines_are_whole_and_in_order(path: Path) -> None:
    path.write_bytes(b"".join(b"%06d\n" % number for number in range(20_000)))
    found = scattered_lines(path, places=50, place_bytes=100)
    numbers = [int(line) for line in found]
    assert all(len(line) == 6 for line in found)
    assert numbers == sorted(set(numbers))
    assert numbers[0] < 50
    assert numbers[-1] > 19_900
    assert len(numbers) >= 500


def test_last_lines_leaves_out_what_is_cut_at_either_end(path: Path) -> None:
    path.write_bytes(b"aaaaaaaa\nbbbb\ncccc\ndd")
    assert last_lines(path, limit=14) == [b"bbbb", b"cccc"]
    assert last_lines(path) == last_lines(path, None) == [b"aaaaaaaa", b"bbbb", b"cccc"]
    assert last_lines(path.with_name("none")) == []


def events(folder: Path, *found: tuple[str, int], torn: str = "") -> None:
    rows = ({"attempt": 0, "time": 1.0, "event": name, "step": step, "message": "x" * 100_000} for name, step in found)
    (folder / EVENTS).write_text("".join(json.dumps(row) + "\n" for row in rows) + torn)


def test_events_are_found_the_newest_first(folder: Path) -> None:
    assert list(newest_events(folder, "evaluated")) == []
    found = [(name, step) for step in range(3) for name in ("evaluated", "checkpoint")]
    events(folder, *found, torn='{"attempt": 0, "event": "evaluated", "step": 9')
    assert [event["step"] for event in newest_events(folder, "evaluated")] == [2, 1, 0]


def test_only_the_end_of_a_long_file_is_searched_unless_all_of_it_is_asked_for(folder: Path) -> None:
    events(folder, ("evaluated", 1), *(("checkpoint", step) for step in range(12)))
    assert list(newest_events(folder, "evaluated")) == []
    assert [event["step"] for event in newest_events(folder, "evaluated", limit=None)] == [1]


def test_next_attempt(folder: Path) -> None:
    assert next_attempt(folder) == 0
    (folder / EVENTS).write_text('{"attempt": 0}\n{"attempt": 3}\n{"attempt": 9')
    assert next_attempt(folder) == 4
    (folder / STEPS).write_text('{"attempt": 5, "step": 1}\n')
    assert next_attempt(folder) == 6, "events.jsonl may have missed an attempt"


def test_next_attempt_of_a_long_record(folder: Path) -> None:
    long_line = json.dumps({"attempt": 1, "event": "failed", "traceback": "x" * 200_000})
    (folder / EVENTS).write_text('{"attempt": 0}\n' * 9000 + long_line + "\n")
    assert next_attempt(folder) == 2
