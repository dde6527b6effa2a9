"""Places to write to, and folders that appear whole or not at all, for what can be made again.

What must survive a power cut is `checkpoint`'s.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from trainer.errors import ConfigError


def free_place(output: str, kind: Literal["file", "folder"]) -> Path:
    """Where `--output` is to be made. Raises `ConfigError` where something stands there already."""
    place = Path(output).expanduser()
    if place.exists() or place.is_symlink():
        raise ConfigError(f"output {output!r} exists already: name a {kind} that does not, or remove it")
    return place


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `folder` when the block ends well and vanishes when it does not. Raises `OSError`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield unfinished
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[list[str]]:
    """Keep every other process from training in the same run. Raises `ConfigError` where one does already.

    Yields what there is to warn of.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(descriptor, folder)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> list[str]:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return []
    except BlockingIOError:
        raise ConfigError(f"run {folder.name!r} is being trained by another process: stop that one first") from None
    except OSError as error:  # some network file systems have no locks
        return [f"{folder} cannot be locked ({error.strerror}): take care that no other process trains in it."]
