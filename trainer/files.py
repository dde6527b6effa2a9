"""Files and folders that appear whole or not at all, and locks that keep other processes out."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from trainer.errors import ConfigError


def expanded(path: str) -> str:
    """`path` with the home folder for a leading `~`; unchanged where nobody is of that name, so that it is said not to exist."""
    try:
        return str(Path(path).expanduser()) if path.startswith("~") else path
    except RuntimeError:
        return path


def expand_home(config: object, *fields: str) -> None:
    """Replace a leading `~` in these fields of a frozen dataclass by the home folder: no shell does it in a file, or after `=`."""
    for field in fields:
        if isinstance(value := getattr(config, field), str):
            object.__setattr__(config, field, expanded(value))


def free_place(output: str, kind: Literal["file", "folder"]) -> Path:
    """Where `--output` is to be made. Raises `ConfigError` where something exists there already."""
    place = Path(expanded(output))
    if place.exists() or place.is_symlink():
        raise ConfigError(f"output {output!r} exists already: name a {kind} that does not, or remove it")
    return place


def write_atomic(
    path: Path, content: str | bytes, *, durable: bool = True, exclusive: bool = False, mode: int | None = None
) -> None:
    """Write a file whole or not at all: whoever reads `path` finds what was there before, or all of `content`.

    `durable` content survives a power cut once this returns, at the cost of two flushes to the disk. `exclusive` never replaces a
    file. `mode` sets the permissions whatever the umask is; nobody else can open the file before they are set. Raises
    `FileExistsError` where there is a file and `exclusive` is set, and `OSError`; then nothing is left behind.
    """
    # Hidden and no `*.json`: readers of the folder pass over it. The process's id tells what a crash left from work in hand.
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp.{os.getpid()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            if durable:
                os.fsync(descriptor)
        if exclusive:
            _rename_exclusively(unfinished, path)
        else:
            unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if durable:
        flush_to_disk(path.parent)


def _rename_exclusively(unfinished: Path, path: Path) -> None:
    """Renaming would replace a file that another process made a moment ago; a link never does."""
    if path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    try:
        os.link(unfinished, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links; there the moment stays
        unfinished.rename(path)
    else:
        unfinished.unlink()


def flush_to_disk(path: Path) -> None:
    """Have the system write a file's content, or a folder's list of names, to the disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def make_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `folder` when the block ends well and vanishes when it does not. Raises `OSError`.

    For what can be made again: nothing is flushed to the disk.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield unfinished
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def lock(path: Path, *, busy: Exception | None = None) -> Iterator[str]:
    """Keep other processes out of a folder, or of what a file stands for, which is then made if it is missing.

    Where another process holds the lock, raises `busy`, or waits if that is None. Yields an empty string, or why nothing can be
    locked: some network file systems have no locks, and the caller goes on without. The lock ends with the process, however it
    ends. Raises `OSError` where `path` cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield _lock(descriptor, busy)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, busy: Exception | None) -> str:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
    except OSError as error:
        if busy is not None and isinstance(error, BlockingIOError):
            raise busy from None
        return error.strerror or str(error)
    return ""
