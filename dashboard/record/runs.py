"""The runs in a folder: the list for the chooser, and an opened `Run` for each one that a browser shows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dashboard.record import parse
from dashboard.record.evaluations import Evaluations
from dashboard.record.run import KINDS, Run, last_rows
from dashboard.record.state import ENDED, clock_ahead, current_state, last_transition, newest_time, read_facts
from trainer.record.format import RUN, RUN_ID
from trainer.record.reader import FILES, size_of

LOOK_EVERY_SECONDS = 0.25
IDLE_RUNS_KEPT = 4


class Runs:
    """Keeps opened runs up to date on one reader thread, which ends with the `with` block."""

    def __init__(self, root: Path, look_every: float = LOOK_EVERY_SECONDS) -> None:
        self.root = root
        self.look_every = look_every
        self.closing = threading.Event()
        self._open: dict[str, Run] = {}
        self._lock = threading.Lock()
        self._entries: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
        self._reader = threading.Thread(target=self._read, name="dashboard-reader", daemon=True)

    def __enter__(self) -> Runs:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._reader.join()

    def folder(self, run_id: str) -> Path | None:
        """The run's folder; None where the id is no run id, leads out of the root, or has no folder yet."""
        if not RUN_ID.fullmatch(run_id):
            return None
        folder = self.root / run_id
        return folder if folder.is_dir() and not self._leads_out(folder) else None

    def _leads_out(self, folder: Path) -> bool:
        return not folder.resolve().is_relative_to(self.root.resolve())

    def run(self, run_id: str) -> Run | None:
        """The opened run, read far enough for a first chart; None where there is no such run."""
        with self._lock:
            return self._opened(run_id)

    @contextmanager
    def watched(self, run_id: str) -> Iterator[Run | None]:
        """The opened run, kept up to date until the block ends, however many others are opened meanwhile."""
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
        """Names in the folder that lead out of it, as links do: those runs are not shown."""
        return sorted(folder.name for folder in self._folders() if RUN_ID.fullmatch(folder.name) and self._leads_out(folder))

    def misnamed(self) -> list[str]:
        """Names of folders that hold a record and are no run id, as copies and renamed folders are: those runs are not shown."""
        odd = [folder for folder in self._folders() if not RUN_ID.fullmatch(folder.name) and not folder.name.startswith(".")]
        return sorted(folder.name for folder in odd if any(size_of(folder / name) for name in (RUN, *FILES)))

    def _folders(self) -> list[Path]:
        try:
            return [*self.root.iterdir()]
        except OSError:
            return []

    def list(self) -> list[dict[str, Any]]:
        """What the chooser shows of every run, the most recently active first."""
        now = time.time()
        entries = [entry for folder in self._folders() if self.folder(folder.name) and (entry := self._entry(folder))]
        entries.sort(key=lambda entry: entry["last_line_time"], reverse=True)
        return [{**entry, "last_line_age_seconds": max(0.0, now - entry["last_line_time"])} for entry in entries]

    def _entry(self, folder: Path) -> dict[str, Any] | None:
        sizes = tuple(size_of(folder / name) for name in (RUN, *FILES))
        if not any(sizes):
            return None
        known = self._entries.get(folder.name)
        if known is None or known[0] != sizes:
            known = (sizes, list_entry(folder))
            self._entries[folder.name] = known
        return known[1]


def list_entry(folder: Path) -> dict[str, Any]:
    """A run in the list, from the last lines of its files: as fast for a long run as for a short one."""
    last = {name: last_rows(folder, kind) for name, kind in KINDS.items()}
    newest = {name: rows[-1] for name, rows in last.items() if rows}
    facts, evaluations = read_facts(folder), Evaluations()
    evaluations.take(last["events"])
    tick, state = current_state(newest.get("telemetry", {}), last_transition(last["events"]))
    step, flags = parse.json_safe(newest.get("steps", {}))
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
