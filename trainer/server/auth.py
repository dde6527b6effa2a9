"""The token that may control a run: a file in, its token out, made where there is none; an Authorization header in, yes or no out.

The token itself is in no message, no log and no file but its own.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import stat
from pathlib import Path

from trainer.errors import ConfigError

log = logging.getLogger(__name__)

SHORTEST, LONGEST = 16, 512
_OTHERS = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP


def read_token(file: str) -> bytes:
    """The token that `file` holds, alone; a file that is missing is made with a random one, for its owner only.

    Raises `ConfigError` where it cannot be read or made, or holds no token of 16 to 512 printable ASCII characters.
    """
    path = Path(file)
    try:
        try:
            return _read(path)
        except FileNotFoundError:
            _make(path)
        return _read(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"the token file {file} cannot be used: {reason}; choose another with --watch.token-file") from None


def is_bearer(header: bytes, token: bytes) -> bool:
    """Whether an Authorization header brings the token; how long it looks says nothing of how much of it is right."""
    scheme, _, given = header.partition(b" ")
    return hmac.compare_digest(given.strip(), token) and scheme.lower() == b"bearer"


def _read(path: Path) -> bytes:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"the token file {path} is no file: give one that holds the token with --watch.token-file")
    with path.open("rb") as file:
        lines = file.read(2 * LONGEST).strip().split(b"\n")
    token = lines[0]
    printable = all(0x21 <= sign <= 0x7E for sign in token)
    if len(lines) > 1 or not printable or not SHORTEST <= len(token) <= LONGEST:
        wanted = f"one line of {SHORTEST} to {LONGEST} printable ASCII characters without a blank"
        raise ConfigError(f"the token file {path} must hold a token, {wanted}: write one, or remove the file and it is made anew")
    if status.st_mode & _OTHERS:
        log.warning("Others than its owner can get at the token in %s: chmod 600 %s", path, path)
    return token


def _make(path: Path) -> None:
    """A file that is there whole or not at all, and never in place of another's. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # somebody else was faster; theirs it is
            os.link(draft, path)
    finally:
        draft.unlink()
    log.info("Made a token to control runs with, in %s.", path)
