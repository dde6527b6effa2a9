"""The token that controls a run: reads it from its file, or makes that file, and checks Authorization headers against it.

The token appears in no message, no log and no file but its own.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import stat
from pathlib import Path

from trainer.errors import ConfigError
from trainer.files import write_atomic

log = logging.getLogger(__name__)

MIN_LENGTH, MAX_LENGTH = 16, 512
_OTHERS = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP


def read_token(file: str) -> bytes:
    """The token in `file`; a missing file is made with a random token, readable by its owner only.

    Raises `ConfigError` if the file cannot be read or made, or holds anything but a token of 16 to 512 printable ASCII characters.
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


def is_authorized(header: bytes, token: bytes) -> bool:
    """Whether an Authorization header is `Bearer` and the token; compared in constant time."""
    scheme, _, given = header.partition(b" ")
    return hmac.compare_digest(given.strip(), token) and scheme.lower() == b"bearer"


def _read(path: Path) -> bytes:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"the token file {path} is not a regular file: name one with --watch.token-file")
    with path.open("rb") as file:
        lines = file.read(2 * MAX_LENGTH).strip().split(b"\n")
    token = lines[0]
    printable = all(0x21 <= byte <= 0x7E for byte in token)
    if len(lines) > 1 or not printable or not MIN_LENGTH <= len(token) <= MAX_LENGTH:
        wanted = f"one line of {MIN_LENGTH} to {MAX_LENGTH} printable ASCII characters without blanks"
        raise ConfigError(f"the token file {path} must hold a token, {wanted}: write one, or remove the file to have one made")
    if status.st_mode & _OTHERS:
        log.warning("Users other than its owner can read or replace the token in %s: chmod 600 %s", path, path)
    return token


def _make(path: Path) -> None:
    """Make the file, whole or not at all; a file that is there by then stays. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):  # another process was faster: use its token
        write_atomic(path, secrets.token_urlsafe(32) + "\n", exclusive=True, mode=0o600)
    log.info("Made a token for controlling runs, in %s.", path)
