"""A folder of runs in: a list for the chooser, and an opened `Run` for each one that somebody looks at."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dashboard.record import parse
from dashboard.record.evaluations import Evaluations
from dashboard.record.run import ENDED, KINDS, Run, clock_ahead, last_rows, last_turn, newest_time, read_facts, standing
from trainer.record.format import RUN, RUN_ID
from trainer.record.reader import FILES, size_of

LOOK_EVERY_SECONDS = 0.25
IDLE_RUNS_KEPT = 4


class Runs:
    """Keeps the runs that are being looked at up to date, on one reader thread; leave the `with` block to end it."""

    def __init__(self, root: Path, look_every: float = LOOK_EVERY_SECONDS) -> None:
        self.root = root
        self.look_every = look_every
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
        if not RUN_ID.fullmatch(run_id):
            return None
        folder = self.root / run_id
        return folder if folder.is_dir() and not self._leads_out(folder) else None

    def _leads_out(self, folder: Path) -> bool:
        return not folder.resolve().is_relative_to(self.root.resolve())

    def run(self, run_id: str) -> Run | None:
        """The opened run, read as far as it takes for a first chart; None where there is no such run."""
        with self._lock:
            return self._opened(run_id)

    @contextmanager
    def watched(self, run_id: str) -> Iterator[Run | None]:
        """The opened run, which is kept up to date until the block ends, however many others are opened meanwhile."""
        with self._lock:
            run = self._opened(run_id)
            if run is not None:
                run.viewers += 1
        try:
            yield run
        finally:
            if run is not None:
                with self._lock:
                    run.viewers -= 1
                    run.looked_at = time.monotonic()

    def _opened(self, run_id: str) -> Run | None:
        folder = self.folder(run_id)
        if folder is None:
            return None
        run = self._open.get(run_id)
        if run is None or run.replaced:
            run = Run(folder)
            run.open()
            self._open[run_id] = run
        run.looked_at = time.monotonic()
        idle = sorted((run for run in self._open.values() if not run.viewers), key=lambda run: run.looked_at, reverse=True)
        for forgotten in idle[IDLE_RUNS_KEPT:]:
            del self._open[forgotten.folder.name]
        return run

    def _read(self) -> None:
        while not self.closing.is_set():
            more = [run.advance() for run in list(self._open.values()) if not run.replaced]
            self.closing.wait(0.001 if any(more) else self.look_every)

    def outside(self) -> list[str]:
        """Names in the folder that lead out of it: those runs are not shown."""
        return sorted(folder.name for folder in self._folders() if RUN_ID.fullmatch(folder.name) and self._leads_out(folder))

    def _folders(self) -> list[Path]:
        try:
            return [*self.root.iterdir()]
        except OSError:
            return []

    def list(self) -> list[dict[str, Any]]:
        """What the chooser shows of every run, the one that last wrote something first."""
        now = time.time()
        glances = [glance for folder in self._folders() if self.folder(folder.name) and (glance := self._glance(folder))]
        glances.sort(key=lambda glance: glance["last_line_time"], reverse=True)
        return [{**glance, "last_line_age_seconds": max(0.0, now - glance["last_line_time"])} for glance in glances]

    def _glance(self, folder: Path) -> dict[str, Any] | None:
        sizes = tuple(size_of(folder / name) for name in (RUN, *FILES))
        if not any(sizes):
            return None
        known = self._glances.get(folder.name)
        if known is None or known[0] != sizes:
            known = (sizes, glance(folder))
            self._glances[folder.name] = known
        return known[1]


def glance(folder: Path) -> dict[str, Any]:
    """A run as its last lines tell it, however long it is."""
    last = {name: last_rows(folder, kind) for name, kind in KINDS.items()}
    newest = {name: rows[-1] for name, rows in last.items() if rows}
    facts, evaluations = read_facts(folder), Evaluations()
    evaluations.take(last["events"])
    tick, state = standing(newest.get("telemetry", {}), last_turn(last["events"]))
    step, flags = parse.honest(newest.get("steps", {}))
    return {
        "id": folder.name,
        "name": facts.get("name") or folder.name,
        "state": state,
        "ended": state in ENDED,
        "step": step.get("step", 0),
        "max_steps": tick.get("max_steps", facts.get("max_steps")),
        "progress_ratio": tick.get("progress_ratio"),
        "loss": step.get("loss"),
        "loss_not_finite": flags.get("loss"),
        "measured_length": evaluations.newest.get("measured_length"),
        "last_line_time": newest_time(newest.values()) or changed_at(folder),
        "clock_ahead_seconds": clock_ahead(newest.values()),
    }


def changed_at(folder: Path) -> float:
    """When the folder last changed, Unix seconds; 0 where it has just been deleted."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
