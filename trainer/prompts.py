"""Prompts for the target to answer: `stdlib`, a text file, a JSONL file or a saved dataset in, lists of messages out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from trainer.config import ConfigError
from trainer.conversations import DEMO, LIST_COLUMNS, Rejected, to_messages
from trainer.stdlib_prompts import stdlib_prompts

ACCEPTED = (
    "give `stdlib`, a text file with a prompt on each line, a .jsonl file with `prompt` or `messages`, "
    "or a folder made by datasets.save_to_disk with such a column"
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages that ask for an answer, and the kind of question they are ("" where nobody said)."""

    messages: list[dict[str, str]]
    category: str = ""


def load_prompts(source: str, *, seed: int = 0, limit: int | None = None) -> list[Prompt]:
    """The first `limit` prompts of a source; `seed` only orders those of `stdlib`.

    Of a whole conversation its system prompt and first question are taken, so that no answer of another model is read.
    Raises `ConfigError` for a source that can't be read or holds none.
    """
    prompts = list(itertools.islice(_read(source, seed), limit))
    if not prompts:
        raise ConfigError(f"prompts {source!r} hold no prompt: {ACCEPTED}")
    return prompts


def _read(source: str, seed: int) -> Iterator[Prompt]:
    path = DEMO if source == "demo" else Path(source).expanduser()
    if source == "stdlib":
        return (_ask(text, category) for category, text in stdlib_prompts(seed))
    if path.is_dir():
        return _from_dataset(source, path)
    if path.is_file():
        return _from_jsonl(source, path) if path.suffix in (".jsonl", ".json") else _from_lines(source, path)
    raise ConfigError(f"prompts {source!r} are neither a file nor a folder: {ACCEPTED}")


def _from_lines(source: str, path: Path) -> Iterator[Prompt]:
    return (_ask(line) for _, line in _lines(source, path))


def _from_jsonl(source: str, path: Path) -> Iterator[Prompt]:
    for number, line in _lines(source, path):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"line {number} of prompts {source!r} is no JSON ({error}): {ACCEPTED}") from error
        yield _from_row(row, f"line {number} of prompts {source!r}")


def _from_dataset(source: str, path: Path) -> Iterator[Prompt]:
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever a broken folder makes of Arrow, JSON and the file system
        raise ConfigError(f"prompts {source!r} can't be read by datasets.load_from_disk: {ACCEPTED}") from error
    rows = loaded["train"] if isinstance(loaded, datasets.DatasetDict) and "train" in loaded else loaded
    if isinstance(rows, datasets.DatasetDict):
        raise ConfigError(f"prompts {source!r} have the splits {', '.join(rows)} but none called `train`: name one so")
    return (_from_row(row, f"row {number} of prompts {source!r}") for number, row in enumerate(rows))


def _lines(source: str, path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompts {source!r} can't be read ({error}): {ACCEPTED}") from error
    return ((number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip())


def _from_row(row: Any, where: str) -> Prompt:
    if isinstance(row, Mapping):
        category = str(row.get("category") or "")
        if isinstance(row.get("prompt"), str):
            return _ask(row["prompt"], category)
        if any(column in row for column in LIST_COLUMNS):
            messages = to_messages(row)
            if isinstance(messages, Rejected):
                raise ConfigError(f"{where} can't be used, since {messages.detail}: {ACCEPTED}")
            return Prompt(_first_question(messages, where), category)
    raise ConfigError(f"{where} has neither a string `prompt` nor `messages`: {ACCEPTED}")


def _first_question(messages: list[dict[str, str]], where: str) -> list[dict[str, str]]:
    for index, message in enumerate(messages):
        if message["role"] == "user":
            return messages[: index + 1]
        if message["role"] != "system":
            break
    raise ConfigError(f"{where} does not begin with a question by the user: {ACCEPTED}")


def _ask(text: str, category: str = "") -> Prompt:
    return Prompt([{"role": "user", "content": text}], category)
