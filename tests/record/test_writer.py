"""The record takes lines from memory to files, whatever the files do, and never hurts who gives them."""

import contextlib
import errno
import json
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.lines import lines_of, step_of, tick_of
from trainer.record import writer as record_module
from trainer.record.format import StepLine, field_names, fields_of, strict
from trainer.record.writer import RecordLogHandler, RunRecord, write_run_json


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@contextlib.contextmanager
def recording(folder: Path, attempt: int = 0, **options: object) -> Iterator[RunRecord]:
    record = RunRecord(folder, attempt, clock=lambda: 1764497000.25, flush_seconds=0.01, **options)
    try:
        yield record
    finally:
        record.close()


def rows(path: Path) -> list[dict[str, object]]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def test_each_kind_of_line_reaches_its_file_with_attempt_and_time(run: Path) -> None:
    with recording(run, attempt=2) as record:
        record.step(step_of(1), 0.123456)
        record.telemetry(tick_of(1))
        record.event("checkpoint", "Written.", 1, path="here", bytes=3)
        record.log("a line →")
    stamp = {"attempt": 2, "time": 1764497000.25}
    assert rows(run / "steps.jsonl") == [stamp | strict(fields_of(step_of(1, elapsed=0.1235)))]
    assert list(rows(run / "steps.jsonl")[0]) == ["attempt", "time", *field_names(StepLine)]
    assert rows(run / "telemetry.jsonl") == [stamp | fields_of(tick_of(1))]
    event = {"event": "checkpoint", "step": 1, "message": "Written.", "path": "here", "bytes": 3}
    assert rows(run / "events.jsonl") == [stamp | event]
    assert (run / "log.txt").read_text() == "a line →\n"
    assert (record.errors, record.dropped, record.trouble) == (0, 0, None)


def test_lines_are_written_while_the_run_goes_on(run: Path) -> None:
    with recording(run) as record:
        record.step(step_of(1), 0.0)
        wait_for((run / "steps.jsonl").exists)
        record.step(step_of(2), 0.0)
        wait_for(lambda: (run / "steps.jsonl").read_bytes().count(b"\n") == 2)
        assert record.cpu_seconds > 0


def test_numbers_that_json_lacks_are_words(run: Path) -> None:
    with recording(run) as record:
        record.step(step_of(1, loss=math.nan, position_accuracy=(math.inf, -math.inf)), 0.0)
    assert rows(run / "steps.jsonl")[0]["loss"] == "NaN"
    assert rows(run / "steps.jsonl")[0]["position_accuracy"] == ["Infinity", "-Infinity"]


def test_a_line_that_cannot_be_encoded_is_dropped_and_counted(run: Path) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no words")

    with recording(run) as record:
        record.event("warning", "Broken.", 1, odd=Broken())
        record.event("warning", "\udc80", 2)
    assert [(row["step"], row["message"]) for row in rows(run / "events.jsonl")] == [(2, "?")]
    assert record.dropped == 1


def test_a_folder_that_is_gone_costs_no_line_once_it_is_back(run: Path) -> None:
    with recording(run) as record:
        shutil.rmtree(run)
        record.step(step_of(1), 0.0)
        wait_for(lambda: record.errors > 0)
        assert record.trouble is not None
        assert record.trouble.startswith("steps.jsonl cannot be written: No such file")
        run.mkdir()
        wait_for(lambda: record.trouble is None)
    assert [row["step"] for row in rows(run / "steps.jsonl")] == [1]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A disk with so many bytes left for steps.jsonl."""
    left = {"bytes": 1 << 30}
    write = os.write

    def limited(descriptor: int, data: bytes) -> int:
        if not left["bytes"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[: left["bytes"]])
        left["bytes"] -= written
        return written

    monkeypatch.setattr(record_module.os, "write", limited)
    return left


def test_a_line_torn_by_a_full_disk_is_written_again_on_its_own(run: Path, disk: dict[str, int]) -> None:
    disk["bytes"] = 70
    with recording(run) as record:
        for step in (1, 2, 3):
            record.step(step_of(step), 0.0)
        wait_for(lambda: record.errors > 0)
        assert len((run / "steps.jsonl").read_bytes()) == 70, "the first line and half of the second"
        disk["bytes"] = 1 << 30
        wait_for(lambda: record.trouble is None)
    lines = (run / "steps.jsonl").read_text().splitlines()
    torn = [line for line in lines if not line.endswith("}")]
    assert len(torn) == 1
    assert [json.loads(line)["step"] for line in lines if line not in torn] == [1, 2, 3]


def test_the_oldest_lines_go_when_too_many_wait(run: Path, disk: dict[str, int]) -> None:
    disk["bytes"] = 0
    with recording(run, waiting_lines=10) as record:
        record.step(step_of(0), 0.0)
        wait_for(lambda: record.errors > 0)  # the writer holds step 0 in its hand
        for step in range(1, 31):
            record.step(step_of(step), 0.0)
        assert record.dropped == 20
        disk["bytes"] = 1 << 30
    assert [row["step"] for row in rows(run / "steps.jsonl")] == [0, *range(21, 31)]


def test_a_backlog_goes_in_order_and_whole(run: Path) -> None:
    with recording(run) as record:
        for step in range(2500):
            record.step(step_of(step), 0.0)
    assert [row["step"] for row in rows(run / "steps.jsonl")] == list(range(2500))


def test_a_new_attempt_begins_on_a_line_of_its_own(run: Path) -> None:
    (run / "events.jsonl").write_text('{"attempt":0,"event":"started"}\n{"attempt":0,"eve')
    with recording(run, attempt=1) as record:
        record.event("resumed", "Again.", 0)
    assert [event["event"] for event in lines_of(run / "events.jsonl")] == ["started", "resumed"]


def test_many_threads_lose_nothing(run: Path) -> None:
    with recording(run) as record:
        threads = [threading.Thread(target=lambda: [record.event("warning", "w", n) for n in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(lines_of(run / "events.jsonl")) == 800


def test_close_does_not_wait_for_ever(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = threading.Event()
    monkeypatch.setattr(record_module.os, "write", lambda *_: stuck.wait(20) and 0)
    with recording(run) as record:
        record.step(step_of(1), 0.0)
        began = time.monotonic()
        record.close(timeout=0.1)
        assert time.monotonic() - began < 1
        stuck.set()


def test_log_records_reach_the_log(run: Path) -> None:
    logger = logging.getLogger("test_record")
    with recording(run) as record:
        handler = RecordLogHandler(record)
        logger.addHandler(handler)
        logger.warning("it is %s", "so")
        logger.removeHandler(handler)
    assert (run / "log.txt").read_text().endswith(" WARNING it is so\n")


def test_log_records_are_counted_by_level(run: Path) -> None:
    with recording(run) as record:
        handler = RecordLogHandler(record)
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.WARNING, logging.ERROR, logging.CRITICAL):
            handler.handle(logging.makeLogRecord({"levelno": level, "msg": "x"}))
        assert (handler.warnings, handler.errors) == (2, 2)


def test_the_disk_is_asked_by_the_writer_alone(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = os.statvfs

    def statvfs(path: Path) -> os.statvfs_result:
        asked.append(threading.current_thread().name)
        return real(path)

    monkeypatch.setattr("os.statvfs", statvfs)
    with recording(run) as record:
        wait_for(lambda: record.disk is not None)
        assert record.disk is not None
        assert 0 < record.disk.free_bytes <= record.disk.size_bytes
    assert asked == ["record-writer"], "not at each flush"


def test_a_disk_that_does_not_answer_is_unknown_and_comes_back(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, gone = os.statvfs, [True]

    def statvfs(path: Path) -> os.statvfs_result:
        if gone[0]:
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr("os.statvfs", statvfs)
    monkeypatch.setattr("trainer.record.writer._DISK_SECONDS", 0.0)
    with recording(run) as record:
        record.log("a line")
        wait_for(lambda: (run / "log.txt").is_file())
        assert record.disk is None
        gone[0] = False
        wait_for(lambda: record.disk is not None)


def test_run_json_is_written_once(run: Path) -> None:
    write_run_json(run, {"id": "a", "ratio": math.inf})
    assert json.loads((run / "run.json").read_text()) == {"id": "a", "ratio": "Infinity"}
    with pytest.raises(FileExistsError, match=r"run\.json"):
        write_run_json(run, {"id": "b"})
    assert [path.name for path in run.iterdir()] == ["run.json"]


def test_run_json_leaves_nothing_behind_when_it_fails(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(record_module.os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_run_json(run, {"id": "a"})
    assert list(run.iterdir()) == []
