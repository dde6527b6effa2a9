"""Removes secrets from texts and commands: credentials in URLs, values of secret flags, tokens of well-known forms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

HIDDEN = "***"

# `https://user:password@host`; git and pip write a token alone before the @.
_USERINFO = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{0,20}://)[^/\s@'\"]{1,500}@")
# A name that ends so holds a secret; `--watch.token-file` and `--batches.token-budget` do not.
_SECRET_NAME = re.compile(
    r"(?:^|[-_.?&])(?:token|secret|password|passwd|passphrase|credentials?|(?:api|access|secret|private|auth)[-_.]?key)$",
    re.IGNORECASE,
)
_QUERY = re.compile(
    r"([?&](?:[\w.-]*[-_.])?(?:token|secret|password|signature|sig|(?:api|access)[-_]?key)=)[^&#\s'\"]+", re.IGNORECASE
)
_WELL_KNOWN = re.compile(r"\b(hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[abp]-|AKIA)[A-Za-z0-9_-]{12,}")


def redact(text: str) -> str:
    """`text` without credentials in URLs, and without tokens that are known by their first letters."""
    if "://" in text:
        text = _QUERY.sub(rf"\g<1>{HIDDEN}", _USERINFO.sub(r"\1", text))
    return _WELL_KNOWN.sub(rf"\g<1>{HIDDEN}", text)


def redact_words(words: Sequence[str]) -> list[str]:
    """The words of a command, without the values of flags and variables whose names say that they are secret."""
    shown: list[str] = []
    secret_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        if secret_next and not word.startswith("--"):
            shown.append(HIDDEN)
        elif equals and _SECRET_NAME.search(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(redact(word))
        secret_next = word.startswith("-") and not equals and _SECRET_NAME.search(word) is not None
    return shown


def redact_all(value: Any) -> Any:
    """A tree of dicts and lists with every text redacted; lists of words under `command` are treated as commands."""
    match value:
        case str():
            return redact(value)
        case dict():
            return {key: redact_words(inner) if _is_command(key, inner) else redact_all(inner) for key, inner in value.items()}
        case list() | tuple():
            return [redact_all(inner) for inner in value]
        case _:
            return value


def _is_command(key: object, value: object) -> bool:
    return key == "command" and isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)
