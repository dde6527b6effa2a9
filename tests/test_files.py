"""trainer/files.py: nothing is overwritten unasked, everything is there whole or not at all, and a lock keeps others out."""

import contextlib
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer import files
from trainer.errors import ConfigError
from trainer.files import free_place, lock, make_folder, write_atomic

HOLD = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
sys.stdin.read()
"""


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_place_is_free_or_it_is_told_what_stands_there(tmp_path: Path) -> None:
    assert free_place(str(tmp_path / "new"), "folder") == tmp_path / "new"
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(ConfigError, match=f"{name}' exists already: name a file that does not, or remove it"):
            free_place(str(tmp_path / name), "file")


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_whole(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "file"
    write_atomic(path, "before → x\n", durable=durable)
    assert path.read_text(encoding="utf-8") == "before → x\n"
    with path.open("rb") as reader:  # keeps what it has opened
        write_atomic(path, b"after", durable=durable)
        assert reader.read() == "before → x\n".encode()
    assert path.read_bytes() == b"after"
    assert names(tmp_path) == ["file"]


def test_only_what_is_durable_is_flushed_and_the_file_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[bool] = []
    real = os.fsync
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: (flushed.append((tmp_path / "file").exists()), real(descriptor)))
    write_atomic(tmp_path / "file", "x", durable=False)
    (tmp_path / "file").unlink()
    assert flushed == []
    write_atomic(tmp_path / "file", "x")
    assert flushed == [False, True], "the file, then the folder with its name"


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exclusive: bool) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    if not exclusive:
        (tmp_path / "file").write_text("before")
    before = names(tmp_path)
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(tmp_path / "file", "after", exclusive=exclusive)
    assert names(tmp_path) == before
    assert exclusive or (tmp_path / "file").read_text() == "before"


def test_an_exclusive_file_never_replaces_another(tmp_path: Path) -> None:
    path, refused = tmp_path / "file", []

    def write(content: str) -> None:
        try:
            write_atomic(path, content, exclusive=True)
        except FileExistsError:
            refused.append(content)

    threads = [threading.Thread(target=write, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted([*refused, path.read_text()]) == [str(number) for number in range(8)]
    assert names(tmp_path) == ["file"]


def test_where_there_are_no_hard_links_an_exclusive_file_is_still_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(files.os, "link", no_links)
    write_atomic(tmp_path / "file", "first", exclusive=True)
    with pytest.raises(FileExistsError):
        write_atomic(tmp_path / "file", "second", exclusive=True)
    assert (tmp_path / "file").read_text() == "first"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(("mode", "umask", "expected"), [(None, 0o027, 0o640), (0o600, 0o000, 0o600), (0o644, 0o077, 0o644)])
def test_permissions_are_those_of_the_umask_or_those_asked_for(tmp_path: Path, mode: int | None, umask: int, expected: int) -> None:
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "file", "x", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == expected


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    with make_folder(tmp_path / "a" / "b") as folder:
        (folder / "file").touch()
        assert not (tmp_path / "a" / "b").exists()
    assert names(tmp_path / "a") == ["b"]
    assert (tmp_path / "a" / "b" / "file").exists()
    with pytest.raises(ZeroDivisionError), make_folder(tmp_path / "a" / "c"):
        raise ZeroDivisionError
    assert names(tmp_path / "a") == ["b"]


@contextlib.contextmanager
def held_elsewhere(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process has the lock, until its standard input ends."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        yield other


def test_a_lock_that_is_held_raises_what_was_given_and_is_free_once_its_process_is_gone(tmp_path: Path) -> None:
    busy = ConfigError("somebody works here")
    with held_elsewhere(tmp_path), pytest.raises(ConfigError) as refused, lock(tmp_path, busy=busy):
        pytest.fail("two processes hold one lock")
    assert refused.value is busy
    with lock(tmp_path, busy=busy) as obstacle:
        assert obstacle == ""


def test_without_a_sentence_it_waits(tmp_path: Path) -> None:
    path, order = tmp_path / "a.lock", []
    path.touch()
    with held_elsewhere(path) as other:
        assert other.stdin is not None

        def let_go() -> None:
            order.append("freed")
            other.stdin.close()

        timer = threading.Timer(0.3, let_go)
        timer.start()
        with lock(path):
            order.append("locked")
    assert order == ["freed", "locked"]


def test_a_file_to_lock_is_made(tmp_path: Path) -> None:
    with lock(tmp_path / "a.lock") as obstacle:
        assert (obstacle, names(tmp_path)) == ("", ["a.lock"])


def test_a_file_system_without_locks_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    with lock(tmp_path, busy=ConfigError("busy")) as obstacle:
        assert obstacle == "No locks available"
