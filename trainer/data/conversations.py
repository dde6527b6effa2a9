"""Reads saved conversations, in all the forms in which people save them, as lists of messages.

A message is `{"role", "content"}` with role system, user, assistant or tool, and `reasoning_content` where an answer has thoughts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from trainer.errors import ConfigError

Message = Mapping[str, str]

DEMO = Path(__file__).parents[1] / "demo" / "conversations"
ACCEPTED = (
    "accepted are `messages` or `conversations` (lists of role/content or from/value), or the strings `prompt` and `response`"
)
LIST_COLUMNS = ("messages", "conversations")
HELD_OUT_SPLITS = ("held_out", "validation", "test")
FINGERPRINT_ROWS = 20_000
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}


@dataclass(frozen=True, slots=True)
class Rejected:
    """A conversation that cannot be used. `reason` is one of `DROP_REASONS`; `detail` is a sentence about it, for people."""

    reason: str
    detail: str


def load_conversations(path: str) -> datasets.Dataset:
    """The conversations to train on: a folder's only dataset or its split `train`; `demo` is the committed dataset.

    Raises `ConfigError` where there is no such folder, or it cannot be read, is empty or has other columns.
    """
    loaded = _load(path)
    if isinstance(loaded, datasets.DatasetDict):
        if "train" not in loaded:
            raise ConfigError(f"data {path!r} has the splits {', '.join(loaded)} but none called `train`: name one so")
        loaded = loaded["train"]
    if len(loaded) == 0:
        raise ConfigError(f"data {path!r} holds no conversation: give a folder with at least one")
    conversation_columns(loaded, path)
    return loaded


def load_held_out(path: str) -> datasets.Dataset | None:
    """The conversations held out from training: the split `held_out`, `validation` or `test`; None where there is none."""
    loaded = _load(path)
    names = [name for name in HELD_OUT_SPLITS if isinstance(loaded, datasets.DatasetDict) and len(loaded.get(name, ()))]
    return loaded[names[0]] if names else None


def _load(path: str) -> Any:
    datasets.disable_progress_bars()
    folder = DEMO if path == "demo" else Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"data {path!r} is no folder: give one made by datasets.save_to_disk, or `demo`")
    try:
        return datasets.load_from_disk(str(folder))
    except Exception as error:  # a broken folder raises errors of Arrow, JSON and the file system
        reason = " ".join(str(error).split())[:200]
        way = "give a folder made by datasets.save_to_disk that holds at least one conversation"
        raise ConfigError(f"data {path!r} cannot be read by datasets.load_from_disk ({reason}): {way}") from error


def conversation_columns(dataset: datasets.Dataset, path: str) -> tuple[str, ...]:
    """The columns that hold the conversations. Raises `ConfigError` with the columns found if there are none."""
    found = dataset.column_names
    for column in LIST_COLUMNS:
        if column in found:
            _check_fields(dataset, column, path)
            return (column,)
    if "prompt" in found and "response" in found:
        return ("prompt", "response")
    raise ConfigError(f"data {path!r} has the columns {', '.join(found)}: {ACCEPTED}")


def _check_fields(dataset: datasets.Dataset, column: str, path: str) -> None:
    feature = dataset.features[column]
    fields = getattr(feature, "feature", feature)
    names = list(fields) if isinstance(fields, Mapping) else []
    if not ({"role", "content"} <= set(names) or {"from", "value"} <= set(names)):
        raise ConfigError(f"column `{column}` of data {path!r} holds {', '.join(names) or 'no messages'}: {ACCEPTED}")


def to_messages(row: Mapping[str, Any]) -> list[dict[str, str]] | Rejected:
    """The messages of one row, whichever format it has, or why it cannot be used."""
    for column in LIST_COLUMNS:
        if column in row:
            return _normalise(row[column])
    return _normalise([{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["response"]}])


def _normalise(listed: Any) -> list[dict[str, str]] | Rejected:
    if isinstance(listed, Mapping):  # older versions of `datasets` save a list of messages as one list per field
        listed = [dict(zip(listed, values, strict=True)) for values in zip(*listed.values(), strict=True)]
    messages: list[dict[str, str]] = []
    for raw in listed or ():
        message = _message(raw)
        if isinstance(message, Rejected):
            return message
        messages.append(message)
    return messages or Rejected("no_answer", "it has no messages")


def _message(raw: Mapping[str, Any]) -> dict[str, str] | Rejected:
    name = raw.get("role") or raw.get("from")
    role = ROLES.get(str(name).lower())
    if role is None:
        return Rejected("malformed", f"it has a message by {name!r}; known are {', '.join(ROLES)}")
    if raw.get("tool_calls"):
        return Rejected("malformed", "it has an answer that calls tools, which is not supported")
    content = _text(raw["content"] if raw.get("content") is not None else raw.get("value"))
    if content is None:
        return Rejected("malformed", f"its {role} message has no text")
    message = {"role": role, "content": content}
    if role == "assistant" and raw.get("reasoning_content"):
        message["reasoning_content"] = str(raw["reasoning_content"])
    return message


def _text(content: Any) -> str | None:
    """The text of a message, which some datasets save as a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        return "".join(part.get("text") or "" for part in content)
    return None


def fingerprint(dataset: datasets.Dataset) -> str:
    """A hash of the conversations in their order, the same on every machine and after every reload.

    Reads at most 20,000 rows, evenly spread, so that it takes seconds for data of any size. The price: a change in a longer dataset
    that alters neither its length nor one of those rows goes unnoticed.
    """
    columns = conversation_columns(dataset, "in memory")
    size = len(dataset)
    count = min(size, FINGERPRINT_ROWS)
    rows = dataset.select_columns(list(columns)).select([index * size // count for index in range(count)])
    digest = hashlib.blake2b(json.dumps([size, columns]).encode(), digest_size=16)
    for row in rows:
        digest.update(json.dumps(row, ensure_ascii=False, sort_keys=True, default=str).encode())
    return digest.hexdigest()
