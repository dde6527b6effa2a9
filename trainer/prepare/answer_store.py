"""Keeps answers on disk as they are made, so that `prepare` can continue after an interruption.

Each answer is a line of JSON, appended to a file in a working folder. A line torn by a crash is cut off when the folder is opened
again.
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

SETTINGS_FILE, ANSWERS_FILE = "made_with.json", "answers.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """The target's answer in one turn: text, token ids, and whether the target ended it or it was cut off."""

    text: str
    token_ids: list[int]
    finished: bool


class AnswerStore:
    """The answers in an open working folder, by prompt and turn. Memory only holds their offsets in the file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._offsets: dict[int, list[int]] = {}
        self._end = 0
        self._writer = (folder / ANSWERS_FILE).open("ab", buffering=0)
        self._reader = (folder / ANSWERS_FILE).open("rb")
        self._find()

    def __len__(self) -> int:
        return sum(map(len, self._offsets.values()))

    def turns(self, prompt: int) -> int:
        """Number of answered turns of a prompt."""
        return len(self._offsets.get(prompt, ()))

    def of(self, prompt: int) -> list[StoredAnswer]:
        """The answers to a prompt, turn by turn."""
        return [self._read(offset) for offset in self._offsets.get(prompt, ())]

    def add(self, prompt: int, answer: StoredAnswer) -> None:
        """Append the answer to the next turn of a prompt. Raises `ConfigError` where it cannot be written."""
        fields = {"prompt": prompt, "turn": self.turns(prompt), "finished": answer.finished, "text": answer.text}
        line = orjson.dumps({**fields, "token_ids": answer.token_ids}) + b"\n"
        try:
            if self._writer.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise ConfigError(
                f"an answer cannot be written to {self.folder} ({error.strerror}): fix that and give the same command again, "
                "which continues from the answers before this one"
            ) from error
        self._offsets.setdefault(prompt, []).append(self._end)
        self._end += len(line)

    def close(self) -> None:
        """Close the file; the answers stay."""
        self._writer.close()
        self._reader.close()

    def _find(self) -> None:
        """Find the offset of each answer. An unreadable line is skipped, so its question will be asked again."""
        for line in self._reader:
            if not line.endswith(b"\n"):
                break
            fields = _parse(line)
            if fields and fields["turn"] == self.turns(fields["prompt"]):
                self._offsets.setdefault(fields["prompt"], []).append(self._end)
            self._end += len(line)
        self._writer.truncate(self._end)

    def _read(self, offset: int) -> StoredAnswer:
        self._reader.seek(offset)
        fields = orjson.loads(self._reader.readline())
        return StoredAnswer(text=fields["text"], token_ids=fields["token_ids"], finished=fields["finished"])


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        fields = orjson.loads(line)
    except ValueError:
        return None
    types = {"prompt": int, "turn": int, "finished": bool, "text": str, "token_ids": list}
    whole = isinstance(fields, dict) and all(isinstance(fields.get(name), type_) for name, type_ in types.items())
    return fields if whole else None


def working_folder(output: Path) -> Path:
    """Where the answers are kept until `output` is made from them."""
    return output.with_name(f"{output.name}.partial")


@contextmanager
def open_store(folder: Path, made_with: Mapping[str, Any]) -> Iterator[tuple[AnswerStore, list[str]]]:
    """Open a working folder, new or left by an earlier process, and lock out other processes. Yields the answers and warnings.

    The caller removes the folder once `output` is made; without any answer it is removed here. Raises `ConfigError` where another
    process uses the folder, or where its answers were made with other settings than `made_with`.
    """
    way = "wait until it is done or stop it, or name another output"
    busy = ConfigError(f"another process is making answers in {folder}: {way}")
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            obstacle = stack.enter_context(lock(folder, busy=busy))
            _check(folder, dict(made_with))
            answers = AnswerStore(folder)
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
    """Write down the settings that the answers are made with, or compare them with those of an earlier process."""
    path = folder / SETTINGS_FILE
    try:
        before = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        if any(not path.name.startswith(f".{SETTINGS_FILE}") for path in folder.iterdir()):  # such a one was left by a crash
            raise ConfigError(f"{folder}, where the answers would be kept, holds other files: name another output") from None
        # Durable, or a power cut could leave answers of which nobody knows how they were made.
        write_atomic(path, orjson.dumps(made_with, option=orjson.OPT_INDENT_2))
        return
    except ValueError:
        before = None
    if not isinstance(before, dict):
        way = "name another output, and those answers stay where they are"
        raise ConfigError(f"{path}, which says how the answers beside it were made, cannot be read: {way}")
    now = orjson.loads(orjson.dumps(made_with))
    for name in [*now, *before]:
        if before.get(name) != now.get(name):
            raise ConfigError(
                f"the answers in {folder} were made with {name} {before.get(name)!r}, but now it is {now.get(name)!r}: "
                f"give the former command again to continue, remove {folder}, or name another output"
            )
