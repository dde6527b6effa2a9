"""Station 9. A folder of runs in: a list for the chooser, and an opened `Run` for each one that somebody looks at."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

from dashboard import parse
from dashboard.run import Run, read_facts, state_of
from dashboard.tail import last_lines

RUN_ID = re.compile(r"[A-Za-z0-9._-]+")
LOOK_EVERY_SECONDS = 0.25
RUNS_KEPT = 4
FILES = ("steps.jsonl", "samples.jsonl", "events.jsonl")


class Runs:
    """Keeps the runs that are being looked at up to date, on one reader thread; leave the `with` block to end it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.closing = threading.Event()
        self._open: dict[str, Run] = {}
        self._lock = threading.Lock()
        self._glances: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
        self._reader = threading.Thread(target=self._read, name="dashboard-reader", daemon=True)

    def __enter__(self) -> Runs:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._reader.join()

    def folder(self, run_id: str) -> Path | None:
        """The run's folder; None for an id that is not one, leads out of the root or has no folder yet."""
        if not RUN_ID.fullmatch(run_id) or run_id in (".", ".."):
            return None
        folder = self.root / run_id
        inside = folder.resolve().is_relative_to(self.root.resolve())
        return folder if inside and folder.is_dir() else None

    def run(self, run_id: str) -> Run | None:
        """The opened run, read as far as it takes for a first chart; None where there is no such run."""
        folder = self.folder(run_id)
        if folder is None:
            return None
        with self._lock:
            run = self._open.get(run_id)
            if run is None or run.replaced:
                run = Run(folder)
                run.open()
                self._open[run_id] = run
                self._forget_oldest()
            run.looked_at = time.monotonic()
            return run

    def _forget_oldest(self) -> None:
        for run_id, _ in sorted(self._open.items(), key=lambda item: item[1].looked_at, reverse=True)[RUNS_KEPT:]:
            del self._open[run_id]

    def _read(self) -> None:
        while not self.closing.is_set():
            more = [run.advance() for run in list(self._open.values()) if not run.replaced]
            self.closing.wait(0.001 if any(more) else LOOK_EVERY_SECONDS)

    def list(self) -> list[dict[str, Any]]:
        """What the chooser shows of every run, the one that last wrote something first."""
        now = time.time()
        try:
            folders = [folder for folder in self.root.iterdir() if self.folder(folder.name)]
        except OSError:
            return []
        glances = [glance for folder in folders if (glance := self._glance(folder))]
        glances.sort(key=lambda glance: glance["last_line_time"], reverse=True)
        return [{**glance, "last_line_age_seconds": max(0.0, now - glance["last_line_time"])} for glance in glances]

    def _glance(self, folder: Path) -> dict[str, Any] | None:
        sizes = tuple(_size(folder / name) for name in ("run.json", *FILES))
        if not any(sizes):
            return None
        known = self._glances.get(folder.name)
        if known is None or known[0] != sizes:
            known = (sizes, glance(folder))
            self._glances[folder.name] = known
        return known[1]


def glance(folder: Path) -> dict[str, Any]:
    """A run as its last lines tell it, however long it is."""
    steps, samples, events = (parse.rows_of(last_lines(folder / name))[0] for name in FILES)
    facts, step = read_facts(folder), steps[-1] if steps else {}
    times = [row["time"] for row in (step, *samples[-1:], *events[-1:]) if isinstance(row.get("time"), int | float)]
    clean, flags = parse.honest(step)
    return {
        "id": folder.name,
        "name": facts.get("name") or folder.name,
        "state": state_of(samples[-1] if samples else {}, events),
        "step": step.get("step", 0),
        "max_steps": facts.get("max_steps"),
        "loss": clean.get("loss"),
        "loss_not_finite": flags.get("loss"),
        "last_line_time": max(times, default=folder.stat().st_mtime),
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
