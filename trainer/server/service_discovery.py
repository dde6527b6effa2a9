"""Tells Prometheus where this trainer answers: an address in, a file in a folder that Prometheus reads (`file_sd`) out.

A file is whole or not there: it is written under a name that no `*.json` matches, flushed and renamed. It is taken away at an
orderly end; after a crash it stays, so that Prometheus goes on asking, sees the trainer down and says so. What a crash leaves is
overwritten by the resumed run, and removed by whoever answers at the same address next.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit


def reachable(address: str) -> str:
    """The host and port by which others reach a server at `address`: `http://0.0.0.0:9400` → `gpu-7:9400`.

    One that listens on every interface is known by the machine's name, which other machines have to be able to look up.
    """
    parts = urlsplit(address)
    host = parts.hostname or ""
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"[{host}]:{parts.port}" if ":" in host else f"{host}:{parts.port}"


class Announcement:
    """The file in `folder` of a trainer that serves at `address`, as in `http://127.0.0.1:9400`; None where it serves nothing.

    Neither `publish` nor `withdraw` raises: each returns a sentence where it failed, else None. `rank` becomes the label of that
    name, which tells the processes of one distributed run apart; see `rank_of`.
    """

    def __init__(self, folder: Path, run_id: str, address: str | None, rank: str | None = None) -> None:
        self.target = reachable(address) if address else None
        """As in `gpu-7:9400`."""
        self._path = folder / f"draftscope-{run_id}{f'-rank{rank}' if rank else ''}.json"
        self._text = json.dumps([{"targets": [self.target], "labels": {"rank": rank} if rank else {}}]) + "\n"

    def publish(self) -> str | None:
        if self.target is None:
            return "Prometheus is not told of this trainer: --watch.port -1 serves nothing that it could ask."
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(self._path, self._text)
            self._remove_predecessors()
        except OSError as error:
            return f"Prometheus is not told of this trainer: {self._path} cannot be written ({error.strerror}); training goes on."
        return None

    def withdraw(self) -> str | None:
        try:
            # Another process may have resumed the run on a file system without locks; then the file is its own.
            if self._path.read_text(encoding="utf-8") == self._text:
                self._path.unlink()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            return f"{self._path} stays behind: {error}. Remove it, or Prometheus goes on asking for this trainer."
        return None

    def _remove_predecessors(self) -> None:
        """Files of other runs that name our address: this process holds the port, so theirs have ended without an orderly end."""
        for path in self._path.parent.glob("draftscope-*.json"):
            if path != self._path and _targets(path) == [self.target]:
                path.unlink(missing_ok=True)


def rank_of(environment: dict[str, str] | os._Environ[str]) -> str | None:
    """The process's rank as torchrun gives it; None where it is no number or there is none."""
    rank = environment.get("RANK", "")
    return rank if rank.isascii() and rank.isdecimal() else None


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.tmp.{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)  # Prometheus runs as another user
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def _targets(path: Path) -> list[str]:
    """The addresses in a file of ours; none where it is not one."""
    try:
        (group,) = json.loads(path.read_text(encoding="utf-8"))
        return list(group["targets"])
    except (OSError, ValueError, TypeError, LookupError):
        return []
