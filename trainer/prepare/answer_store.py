"""Answers that outlive the process which makes them: a working folder in, the answers that it holds out.

Each answer is a line of JSON, appended as it is made. A line torn by a crash is cut off when the folder is opened again.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from trainer.errors import ConfigError
from trainer.files import lock, write_atomic

MADE_WITH, LINES = "made_with.json", "answers.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the target said in one turn: the text, the tokens it is made of, and whether the target ended it itself."""

    text: str
    token_ids: list[int]
    finished: bool


class Answers:
    """The answers in an open working folder, by prompt and turn. Only where each stands is kept in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[int, list[int]] = {}
        self._end = 0
        self._writer = (folder / LINES).open("ab", buffering=0)
        self._reader = (folder / LINES).open("rb")
        self._find()

    def __len__(self) -> int:
        return sum(map(len, self._places.values()))

    def turns(self, prompt: int) -> int:
        """Turns of a prompt that are answered."""
        return len(self._places.get(prompt, ()))

    def of(self, prompt: int) -> list[Said]:
        """The answers to a prompt, turn by turn."""
        return [self._read(place) for place in self._places.get(prompt, ())]

    def add(self, prompt: int, said: Said) -> None:
        """Keep the answer to the next turn of a prompt. Raises `ConfigError` where it cannot be written."""
        facts = {"prompt": prompt, "turn": self.turns(prompt), "finished": said.finished, "text": said.text}
        line = orjson.dumps({**facts, "token_ids": said.token_ids}) + b"\n"
        try:
            if self._writer.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise ConfigError(
                f"an answer cannot be written to {self.folder} ({error.strerror}): mend that and give the same command again, "
                "it goes on from the answers before this one"
            ) from error
        self._places.setdefault(prompt, []).append(self._end)
        self._end += len(line)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()

    def _find(self) -> None:
        """Learn where the answers stand. A line that cannot be read is passed over, so that its question is asked again."""
        for line in self._reader:
            if not line.endswith(b"\n"):
                break
            facts = _parse(line)
            if facts and facts["turn"] == self.turns(facts["prompt"]):
                self._places.setdefault(facts["prompt"], []).append(self._end)
            self._end += len(line)
        self._writer.truncate(self._end)

    def _read(self, place: int) -> Said:
        self._reader.seek(place)
        facts = orjson.loads(self._reader.readline())
        return Said(text=facts["text"], token_ids=facts["token_ids"], finished=facts["finished"])


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        facts = orjson.loads(line)
    except ValueError:
        return None
    kinds = {"prompt": int, "turn": int, "finished": bool, "text": str, "token_ids": list}
    whole = isinstance(facts, dict) and all(isinstance(facts.get(name), kind) for name, kind in kinds.items())
    return facts if whole else None


def working_folder(output: Path) -> Path:
    """Where the answers stand until `output` is made of them."""
    return output.with_name(f"{output.name}.partial")


@contextmanager
def open_answers(folder: Path, made_with: Mapping[str, Any]) -> Iterator[tuple[Answers, list[str]]]:
    """The answers in a working folder, new or found again, with what there is to warn of; no other process can open them meanwhile.

    Whoever needs them no longer removes the folder; one without any answer is removed here. Raises `ConfigError` where another
    process works in it, or where its answers were made with something else than `made_with`.
    """
    way = "wait until it is done or stop it, or name another output"
    busy = ConfigError(f"another process is making answers in {folder}: {way}")
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            obstacle = stack.enter_context(lock(folder, busy=busy))
            _check(folder, dict(made_with))
            answers = Answers(folder)
        except OSError as error:
            raise ConfigError(f"the working folder {folder} cannot be used: {error.strerror}; name another output") from error
        warning = f"{folder} cannot be locked: take care that no other process prepares the same output."
        try:
            yield answers, [warning] if obstacle else []
        finally:
            answers.close()
            if not len(answers):
                shutil.rmtree(folder, ignore_errors=True)


def _check(folder: Path, made_with: dict[str, Any]) -> None:
    """Leave word of what the answers are made with, or compare it with the word that is there."""
    path = folder / MADE_WITH
    try:
        before = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        if any(not path.name.startswith(f".{MADE_WITH}") for path in folder.iterdir()):  # such a one was left by a crash
            raise ConfigError(f"{folder}, where the answers would be kept, holds other files: name another output") from None
        # Durable, or a power cut could leave answers of which nobody knows how they were made.
        write_atomic(path, orjson.dumps(made_with, option=orjson.OPT_INDENT_2))
        return
    except ValueError:
        before = None
    if not isinstance(before, dict):
        way = "name another output, and those answers stay where they are"
        raise ConfigError(f"{path} cannot be read, which says how the answers beside it were made: {way}")
    now = orjson.loads(orjson.dumps(made_with))
    for name in [*now, *before]:
        if before.get(name) != now.get(name):
            raise ConfigError(
                f"the answers in {folder} were made with {name} {before.get(name)!r}, but now it is {now.get(name)!r}: "
                f"give the former command again to go on, remove {folder}, or name another output"
            )
