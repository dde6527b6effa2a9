import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainer.files
from trainer.errors import ConfigError
from trainer.prepare.answer_store import ANSWERS_FILE, SETTINGS_FILE, StoredAnswer, open_store, working_folder

WITH = {"target": "tiny", "temperature": 0.5, "template_args": {"a": "b"}, "limit": None}
ONE, TWO = (StoredAnswer(text=text, token_ids=[n, n + 1], finished=n == 1) for n, text in enumerate(("Ja, ü\n", "Nein"), start=1))


def fill(folder: Path) -> None:
    with open_store(folder, WITH) as (answers, _):
        for prompt, said in ((3, ONE), (0, TWO), (3, TWO)):
            answers.add(prompt, said)


def test_answers_are_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "d.partial"
    fill(folder)
    with open_store(folder, WITH) as (answers, warnings):
        assert warnings == []
        assert (len(answers), answers.turns(3), answers.turns(0), answers.turns(1)) == (3, 2, 1, 0)
        assert (answers.of(3), answers.of(0), answers.of(1)) == ([ONE, TWO], [TWO], [])
        answers.add(1, ONE)
        assert answers.of(1) == [ONE]
        assert answers.of(3) == [ONE, TWO]


def test_every_answer_is_on_disk_at_once(tmp_path: Path) -> None:
    with open_store(tmp_path / "d", WITH) as (answers, _):
        answers.add(7, ONE)
        assert json.loads((tmp_path / "d" / ANSWERS_FILE).read_text()) == {
            "prompt": 7,
            "turn": 0,
            "finished": True,
            "text": ONE.text,
            "token_ids": ONE.token_ids,
        }


@pytest.mark.parametrize(
    "torn", [b'{"prompt":0,"tur', b'{"prompt":0,"turn":1,"finished":true,"text":"x","token_ids":[1]}', b"\0" * 9]
)
def test_a_torn_last_line_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    fill(tmp_path / "d")
    whole = (tmp_path / "d" / ANSWERS_FILE).read_bytes()
    (tmp_path / "d" / ANSWERS_FILE).write_bytes(whole + torn)
    with open_store(tmp_path / "d", WITH) as (answers, _):
        assert len(answers) == 3
        answers.add(0, ONE)
        assert answers.of(0) == [TWO, ONE]
    with open_store(tmp_path / "d", WITH) as (answers, _):
        assert answers.of(0) == [TWO, ONE]
    assert (tmp_path / "d" / ANSWERS_FILE).read_bytes().startswith(whole + b'{"prompt":0,"turn":1')


@pytest.mark.parametrize("damage", [b"not JSON\n", b"[1]\n", b'{"prompt": 3, "turn": 0}\n', b'{"prompt": "3", "turn": 0}\n'])
def test_a_damaged_line_is_passed_over_and_what_hangs_on_it_is_asked_again(tmp_path: Path, damage: bytes) -> None:
    fill(tmp_path / "d")
    _, second, third = (tmp_path / "d" / ANSWERS_FILE).read_bytes().splitlines(keepends=True)
    (tmp_path / "d" / ANSWERS_FILE).write_bytes(damage + second + third)
    with open_store(tmp_path / "d", WITH) as (answers, _):
        assert (answers.of(0), answers.of(3)) == ([TWO], []), "the second turn of prompt 3 followed an answer that is lost"


@pytest.mark.parametrize(
    ("name", "now", "told"),
    [
        ("temperature", 0.7, "temperature 0.5, but now it is 0.7"),
        ("template_args", {"a": "c"}, "template_args {'a': 'b'}, but now it is {'a': 'c'}"),
        ("limit", 5, "limit None, but now it is 5"),
        ("new", "x", "new None, but now it is 'x'"),
    ],
)
def test_answers_made_in_another_way_are_not_gone_on_with(tmp_path: Path, name: str, now: object, told: str) -> None:
    fill(tmp_path / "d")
    before = (tmp_path / "d" / ANSWERS_FILE).read_bytes()
    with (
        pytest.raises(ConfigError, match=f"were made with {told}: give the former command .* remove .* or name another output"),
        open_store(tmp_path / "d", {**WITH, name: now}),
    ):
        pass
    assert (tmp_path / "d" / ANSWERS_FILE).read_bytes() == before


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="holds other files: name another output"), open_store(tmp_path / "d", WITH):
        pass
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["thesis.txt"]
    (tmp_path / "f").touch()
    with pytest.raises(ConfigError, match=r"cannot be used: .*name another output"), open_store(tmp_path / "f", WITH):
        pass


def test_a_damaged_word_of_how_they_were_made_is_told(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    (tmp_path / "d" / SETTINGS_FILE).write_text("{")
    with (
        pytest.raises(ConfigError, match=r"made_with\.json, which .* cannot be read: name another output"),
        open_store(tmp_path / "d", WITH),
    ):
        pass
    assert (tmp_path / "d" / ANSWERS_FILE).exists()


def test_how_they_were_made_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(_: int) -> None:
        seen.append(
            [(path.name == SETTINGS_FILE, json.loads(path.read_text())) for path in (tmp_path / "d").glob(f"*{SETTINGS_FILE}*")]
        )

    seen: list[Any] = []
    monkeypatch.setattr(os, "fsync", look)
    fill(tmp_path / "d")
    assert seen == [[(False, WITH)], [(True, WITH)]], "what it says, then its name"


def test_a_folder_without_an_answer_is_removed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), open_store(tmp_path / "d", WITH):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


LOCKER = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_two_processes_do_not_work_in_one_folder(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    command = [sys.executable, "-c", LOCKER, str(tmp_path / "d")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigError, match="another process is making answers in"), open_store(tmp_path / "d", WITH):
            pass
        other.communicate()
    with open_store(tmp_path / "d", WITH) as (answers, _):
        assert len(answers) == 3


def test_where_folders_cannot_be_locked_a_warning_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(trainer.files.fcntl, "flock", refuse)
    with open_store(tmp_path / "d", WITH) as (_, warnings):
        assert "take care that no other process prepares the same output" in warnings[0]


class FullDisk:
    """A file of which the disk takes the first `room` bytes of a line."""

    def __init__(self, file: Any, room: int) -> None:
        self._file = file
        self._room = room

    def write(self, line: bytes) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self._file.write(line[: self._room]))

    def close(self) -> None:
        self._file.close()


@pytest.mark.parametrize("room", [0, 11])
def test_a_full_disk_loses_nothing_but_the_answer_that_it_met(tmp_path: Path, room: int) -> None:
    fill(tmp_path / "d")
    told = r"cannot be written to .* \(No space left on device\): fix that and give the same command"
    with open_store(tmp_path / "d", WITH) as (answers, _):
        answers._writer = FullDisk(answers._writer, room)  # type: ignore[assignment]
        with pytest.raises(ConfigError, match=told):
            answers.add(5, ONE)
    with open_store(tmp_path / "d", WITH) as (answers, _):
        assert (len(answers), answers.turns(5)) == (3, 0)


def test_a_process_killed_before_it_left_word_does_not_block_the_folder(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / f".{SETTINGS_FILE}").write_text('{"targ')
    fill(tmp_path / "d")
    assert json.loads((tmp_path / "d" / SETTINGS_FILE).read_text()) == WITH


def test_the_working_folder_stands_beside_the_output() -> None:
    assert working_folder(Path("data/mine.v2")) == Path("data/mine.v2.partial")
