"""Tailing: only whole lines, nothing twice, files that are late or cut short."""

from pathlib import Path

import pytest

from dashboard.record import tail as tail_module
from dashboard.record.tail import Tail, last_lines, scattered_lines


def test_a_torn_line_waits_until_it_is_whole(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b'{"step":1}\n{"st')
    tail = Tail(path)
    assert tail.read() == [b'{"step":1}']
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b'ep":2}\n')
    assert tail.read() == [b'{"step":2}']
    assert tail.behind == 0


def test_a_file_may_come_later(tmp_path):
    tail = Tail(tmp_path / "run" / "steps.jsonl")
    assert tail.read() == []
    tail.path.parent.mkdir()
    tail.path.write_bytes(b"1\n\n2\n")
    assert tail.read() == [b"1", b"2"]


def test_reads_in_pieces_and_never_twice(tmp_path):
    path = tmp_path / "steps.jsonl"
    lines = [f"{number:05}".encode() for number in range(1000)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    tail, found = Tail(path), []
    while piece := tail.read(limit=64):
        assert len(piece) <= 11
        found += piece
    assert found == lines


def test_a_line_longer_than_the_limit_is_read_whole(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"x" * 1000 + b"\nshort\n")
    tail = Tail(path)
    assert [*tail.read(limit=64), *tail.read(limit=64)] == [b"x" * 1000, b"short"]


def test_notices_that_the_file_was_replaced(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"1\n2\n3\n")
    tail = Tail(path)
    tail.read()
    path.write_bytes(b"1\n")
    assert tail.read() == []
    assert tail.replaced


def test_notices_another_file_even_if_it_is_longer(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"1\n")
    tail = Tail(path)
    tail.read()
    (tmp_path / "other").write_bytes(b"1\n2\n3\n")
    (tmp_path / "other").replace(path)
    assert tail.read() == []
    assert tail.replaced


def test_a_file_without_an_end_of_line_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(tail_module, "LONGEST_LINE_BYTES", 1000)
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"x" * 5000)
    tail = Tail(path)
    assert tail.read(limit=100) == []
    assert tail.endless
    assert tail.behind == 0


@pytest.mark.parametrize("places", [10, 1000])
def test_scattered_lines_of_a_short_file_are_all_of_them_once(tmp_path, places):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"".join(b"%03d\n" % number for number in range(200)))
    assert [int(line) for line in scattered_lines(path, places, place_bytes=100)] == list(range(200))


def test_last_lines_leaves_out_what_is_cut_at_either_end(tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"aaaaaaaa\nbbbb\ncccc\ndd")
    assert last_lines(path, limit=14) == [b"bbbb", b"cccc"]
    assert last_lines(path) == [b"aaaaaaaa", b"bbbb", b"cccc"]
    assert last_lines(tmp_path / "none") == []


def test_scattered_lines_are_whole_and_in_order(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"".join(b"%06d\n" % number for number in range(20_000)))
    found = scattered_lines(path, places=50, place_bytes=100)
    numbers = [int(line) for line in found]
    assert all(len(line) == 6 for line in found)
    assert numbers == sorted(set(numbers))
    assert numbers[0] < 50
    assert numbers[-1] > 19_900
    assert len(numbers) >= 500
