"""Prometheus service discovery: publishes this trainer as a `file_sd` target.

The file appears whole or not at all: it is written under a name that `*.json` does not match, flushed and renamed. An orderly end
removes it. After a crash it stays, so that Prometheus keeps scraping, sees the trainer down and alerts; the resumed run
overwrites it, or the next trainer at the same address removes it.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from trainer.files import write_atomic


def reachable(address: str) -> str:
    """The host and port at which others reach a server at `address`: `http://0.0.0.0:9400` → `gpu-7:9400`.

    A server on every interface goes by the machine's name, which other machines must be able to resolve.
    """
    parts = urlsplit(address)
    host = parts.hostname or ""
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"[{host}]:{parts.port}" if ":" in host else f"{host}:{parts.port}"


class ServiceDiscoveryFile:
    """The file in `folder` for a trainer at `address`, such as `http://127.0.0.1:9400`; None if it serves nothing.

    `publish` and `remove` do not raise: each returns a sentence if it failed, else None. `rank` becomes the label `rank`, which
    tells the processes of one distributed run apart; see `rank_of`.
    """

    def __init__(self, folder: Path, run_id: str, address: str | None, rank: str | None = None) -> None:
        self.target = reachable(address) if address else None
        """Such as `gpu-7:9400`."""
        self._path = folder / f"draftscope-{run_id}{f'-rank{rank}' if rank else ''}.json"
        self._text = json.dumps([{"targets": [self.target], "labels": {"rank": rank} if rank else {}}]) + "\n"

    def publish(self) -> str | None:
        if self.target is None:
            return "Prometheus cannot find this trainer: --watch.port -1 serves nothing to scrape."
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, self._text, mode=0o644)  # Prometheus runs as another user
            self._remove_predecessors()
        except OSError as error:
            return f"Prometheus cannot find this trainer: {self._path} cannot be written ({error.strerror}); training goes on."
        return None

    def remove(self) -> str | None:
        try:
            # On a file system without locks another process may have resumed the run: then the file is that one's.
            if self._path.read_text(encoding="utf-8") == self._text:
                self._path.unlink()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            return f"{self._path} stays behind: {error}. Remove it, or Prometheus keeps scraping this trainer."
        return None

    def _remove_predecessors(self) -> None:
        """Files of other runs with our address: this process holds the port, so those runs crashed."""
        for path in self._path.parent.glob("draftscope-*.json"):
            if path != self._path and _targets(path) == [self.target]:
                path.unlink(missing_ok=True)


def rank_of(environment: dict[str, str] | os._Environ[str]) -> str | None:
    """The process's rank from torchrun; None if it is missing or not a number."""
    rank = environment.get("RANK", "")
    return rank if rank.isascii() and rank.isdecimal() else None


def _targets(path: Path) -> list[str]:
    """The addresses in a file of ours; none if it is not one."""
    try:
        (group,) = json.loads(path.read_text(encoding="utf-8"))
        return list(group["targets"])
    except (OSError, ValueError, TypeError, LookupError):
        return []
