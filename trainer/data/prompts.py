"""Reads prompts for the target to answer from `stdlib`, a text file, a JSON file or a saved dataset."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from trainer.data.conversations import DEMO, HELD_OUT_SPLITS, LIST_COLUMNS, Rejected, to_messages
from trainer.data.stdlib_prompts import stdlib_prompts
from trainer.errors import ConfigError

ACCEPTED = (
    "give `stdlib`, a text file with a prompt on each line, a .jsonl file with `prompt` or `messages`, "
    "or a folder made by datasets.save_to_disk with such a column"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages that ask for an answer, and the category of the question ("" where the source names none).

    `later` are the user's further messages: each is asked after the answer to the one before.
    """

    messages: list[dict[str, str]]
    category: str = ""
    later: tuple[dict[str, str], ...] = ()


def load_prompts(source: str, *, seed: int = 0, limit: int | None = None, held_out: bool = False) -> list[Prompt]:
    """The first `limit` prompts of a source; `seed` only orders those of `stdlib`.

    Of a conversation, only the system prompt and the user's messages are used, never another model's answers. Of a saved dataset
    with splits, `train` is read, or with `held_out` the one held out from training. Conversations that do not begin with a question
    are left out with a warning. Raises `ConfigError` for a source that cannot be read or holds no prompt.
    """
    prompts, rejected = _take(source, seed, limit, held_out)
    if not prompts:
        raise ConfigError(f"{rejected[0]}: {ACCEPTED}" if rejected else f"prompts {source!r} hold no prompt: {ACCEPTED}")
    if rejected:
        log.warning("%d of the prompts are left out; the first: %s.", len(rejected), rejected[0])
    return prompts


def fingerprint_source(source: str, *, seed: int, limit: int | None) -> str:
    """The fingerprint of what `load_prompts` reads with `held_out`. Raises `ConfigError`."""
    return fingerprint_prompts(_take(source, seed, limit, held_out=True)[0])


def held_out_split(source: str) -> str | None:
    """The split that `load_prompts` reads with `held_out`; None for prompts without splits. Raises `ConfigError`."""
    path = _path(source)
    return _open_dataset(source, path, HELD_OUT_SPLITS)[1] if path.is_dir() else None


def fingerprint_prompts(prompts: Iterable[Prompt]) -> str:
    """A hash of the prompts in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for prompt in prompts:
        digest.update(json.dumps([prompt.messages, prompt.category, prompt.later], sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def _path(source: str) -> Path:
    return DEMO if source == "demo" else Path(source).expanduser()


def _take(source: str, seed: int, limit: int | None, held_out: bool) -> tuple[list[Prompt], list[str]]:
    """The first `limit` prompts, and for each conversation rejected on the way the reason."""
    prompts: list[Prompt] = []
    rejected: list[str] = []
    for prompt in _read(source, seed, held_out):
        if isinstance(prompt, Prompt):
            prompts.append(prompt)
            if len(prompts) == limit:
                break
        else:
            rejected.append(prompt.detail)
    return prompts, rejected


def _read(source: str, seed: int, held_out: bool) -> Iterator[Prompt | Rejected]:
    path = _path(source)
    if source == "stdlib":
        return (_from_text(text, category) for category, text in stdlib_prompts(seed))
    if path.is_dir():
        return _from_dataset(source, path, HELD_OUT_SPLITS if held_out else ("train",))
    if path.is_file():
        return _from_json(source, path) if path.suffix in (".jsonl", ".json") else _from_lines(source, path)
    raise ConfigError(f"prompts {source!r} are neither a file nor a folder: {ACCEPTED}")


def _from_lines(source: str, path: Path) -> Iterator[Prompt]:
    return (_from_text(line) for _, line in _lines(source, path))


def _from_json(source: str, path: Path) -> Iterator[Prompt | Rejected]:
    """The rows of a .json file that holds one list; else one row per line."""
    for number, line in _lines(source, path):
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == 1 and path.suffix == ".json" and line.startswith("["):
                yield from _from_list(source, path)
                return
            raise ConfigError(f"line {number} of prompts {source!r} is no JSON ({_reason(error)}): correct that line") from error
        for part in row if isinstance(row, list) and path.suffix == ".json" else [row]:
            yield _from_row(part, f"line {number} of prompts {source!r}")


def _from_list(source: str, path: Path) -> Iterator[Prompt | Rejected]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        where = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "a line"
        raise ConfigError(f"{where} of prompts {source!r} is no JSON ({_reason(error)}): correct that line") from error
    return (_from_row(row, f"prompt {number} of {source!r}") for number, row in enumerate(rows, start=1))


def _reason(error: ValueError) -> str:
    return f"{error.msg}, at character {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _from_dataset(source: str, path: Path, splits: Sequence[str]) -> Iterator[Prompt | Rejected]:
    rows, _ = _open_dataset(source, path, splits)
    return (_from_row(row, f"row {number} of prompts {source!r}") for number, row in enumerate(rows, start=1))


def _open_dataset(source: str, path: Path, splits: Sequence[str]) -> tuple[datasets.Dataset, str | None]:
    """The rows of a saved dataset; if it has splits, those of the first of `splits` that exists, and its name."""
    datasets.disable_progress_bars()
    try:
        rows = datasets.load_from_disk(str(path))
    except Exception as error:  # a broken folder raises errors of Arrow, JSON and the file system
        raise ConfigError(f"prompts {source!r} cannot be read by datasets.load_from_disk: {ACCEPTED}") from error
    if isinstance(rows, datasets.DatasetDict):
        named = [split for split in splits if split in rows]
        if not named:
            wanted = " or ".join(f"`{split}`" for split in splits)
            raise ConfigError(f"prompts {source!r} have the splits {', '.join(rows)} but none called {wanted}: name one so")
        return rows[named[0]], named[0]
    return rows, None


def _lines(source: str, path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"prompts {source!r} cannot be read as UTF-8 (byte {error.start:,}): save the file as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"prompts {source!r} cannot be read ({error.strerror}): check that you may read the file") from error
    # Not splitlines(): it also splits at characters that JSON strings may hold.
    return ((number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip())


def _from_row(row: Any, where: str) -> Prompt | Rejected:
    if isinstance(row, Mapping):
        category = str(row.get("category") or "")
        if isinstance(row.get("prompt"), str):
            return _from_text(row["prompt"], category)
        if any(column in row for column in LIST_COLUMNS):
            messages = to_messages(row)
            if isinstance(messages, Rejected):
                return Rejected(messages.reason, f"{where} can't be used, since {messages.detail}")
            return _questions(messages, category, where)
    raise ConfigError(f"{where} has neither a string `prompt` nor `messages`: {ACCEPTED}")


def _questions(messages: list[dict[str, str]], category: str, where: str) -> Prompt | Rejected:
    """The system prompt, the first question and the user's later ones up to the first message by a tool or the system."""
    questions = [index for index, message in enumerate(messages) if message["role"] == "user"]
    if not questions or any(message["role"] != "system" for message in messages[: questions[0]]):
        return Rejected("malformed", f"{where} does not begin with a question by the user")
    first = questions[0] + 1
    stop = next((index for index in range(first, len(messages)) if messages[index]["role"] in ("system", "tool")), len(messages))
    later = tuple(message for message in messages[first:stop] if message["role"] == "user")
    return Prompt(messages[:first], category, later)


def _from_text(text: str, category: str = "") -> Prompt:
    return Prompt([{"role": "user", "content": text}], category)
