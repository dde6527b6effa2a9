"""Starts a process per tracker with the run, supervises them on one thread, and ends them with the run.

The processes read the record's files. If one fails, that is a warning and `tracker_up` 0; training neither waits nor fails.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.metrics.catalogue.watching import TRACKER_DROPPED, TRACKER_UP, WATCH_SECONDS
from trainer.metrics.exporter import Exporter, MetricSample
from trainer.trackers.cursor import Cursor, cursor_path

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parent.parent.parent
# A process that reports nothing for so long hangs. Starting takes wandb up to its own network time-out, 20 s.
SILENT_SECONDS = 60.0
# How long the processes may take to send the rest once the run has ended.
FINISH_SECONDS = 10.0
# How long a process may take to exit after it has closed its output.
EXIT_SECONDS = 5.0
CHECK_SECONDS = 1.0


class Trackers:
    """The processes of one attempt. `warn` takes a sentence for people; `start` and `stop` never raise."""

    def __init__(self, folder: Path, names: Sequence[str], exporter: Exporter, warn: Callable[[str], None]) -> None:
        self._processes = [TrackerProcess(name, folder, exporter, warn) for name in dict.fromkeys(names)]
        self._exporter = exporter
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._supervise, name="trackers", daemon=True)
        exporter.register(self._samples)

    def start(self) -> None:
        if self._processes:
            for process in self._processes:
                process.start()
            self._thread.start()

    def stop(self) -> None:
        """The run has ended: give the processes `FINISH_SECONDS` in all to send the rest, then kill those that are not done."""
        if self._thread.is_alive():
            self._deadline = time.monotonic() + FINISH_SECONDS
            for process in self._processes:
                process.close_input()
            self._thread.join(FINISH_SECONDS + 2 * CHECK_SECONDS)

    def _supervise(self) -> None:
        spent = 0.0
        with selectors.DefaultSelector() as selector:
            for process in self._processes:
                if process.output is not None:
                    selector.register(process.output, selectors.EVENT_READ, process)
            while selector.get_map():
                for key, _ in selector.select(CHECK_SECONDS):
                    process = key.data
                    if not process.read_reports():
                        selector.unregister(key.fileobj)
                        process.reap()
                self._check([key.data for key in selector.get_map().values()])
                now = time.thread_time()
                self._exporter.add(WATCH_SECONDS, now - spent, "trackers")
                spent = now

    def _samples(self) -> Iterator[MetricSample]:
        for process in self._processes:
            yield MetricSample(TRACKER_UP, float(process.up), (process.name,))
            yield MetricSample(TRACKER_DROPPED, process.dropped, (process.name,))

    def _check(self, living: list[TrackerProcess]) -> None:
        late = self._deadline is not None and time.monotonic() > self._deadline
        for process in living:
            if late:
                process.kill()
            else:
                process.check_silence()


class TrackerProcess:
    """One tracker's process. `start` and `close_input` are called by `Trackers`, all else by its thread."""

    def __init__(self, name: str, folder: Path, exporter: Exporter, warn: Callable[[str], None]) -> None:
        self.name = name
        self.up = False
        """Whether it is taking the run's numbers."""
        self.dropped = 0
        """Lines of the record that it has not sent; known once it has ended."""
        self._folder, self._exporter, self._warn = folder, exporter, warn
        self._process: subprocess.Popen[bytes] | None = None
        self._last_report = time.monotonic()
        self._unread = b""
        self._cpu_seconds = 0.0
        self._done = self._killed = self._silent = False
        self._failure = ""

    @property
    def output(self) -> int | None:
        """File descriptor of its reports; None if it could not be started."""
        return self._process.stdout.fileno() if self._process and self._process.stdout else None

    def start(self) -> None:
        try:
            self._process = self._spawn()
        except OSError as error:
            self._fail(f"its process cannot be started: {error}")

    def close_input(self) -> None:
        if self._process and self._process.stdin:
            try:
                self._process.stdin.close()
            except OSError as error:
                log.debug("%s had gone already: %s", self.name, error)

    def read_reports(self) -> bool:
        """Read and handle what it has reported; False once it has closed its output."""
        assert self.output is not None
        block = os.read(self.output, 1 << 16)
        *lines, self._unread = (self._unread + block).split(b"\n")
        for line in lines:
            # Anything else was printed by a module that Python loads before ours.
            with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
                self._handle(json.loads(line))
        return bool(block)

    def reap(self) -> None:
        """It has closed its output: wait for its exit, and warn unless it is done."""
        assert self._process is not None
        try:
            code = self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:  # a library hangs in Python's exit
            self.kill()
            code = self._process.wait()
        self.up = False
        if not self._done:
            cause = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            slow = f"it did not finish within {FINISH_SECONDS:.0f} s"
            self._fail(slow if self._killed else self._failure or f"its process {cause}, see {self._log_path}")

    def check_silence(self) -> None:
        if not self._silent and time.monotonic() - self._last_report > SILENT_SECONDS:
            self._silent, self.up = True, False
            self._warn(
                f"The tracker {self.name} has taken nothing for {SILENT_SECONDS:.0f} s; training goes on without waiting for it."
            )

    def kill(self) -> None:
        """Kill it, with all processes that it has started."""
        assert self._process is not None
        self._killed = True
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except OSError as error:
            log.debug("%s had gone already: %s", self.name, error)

    @property
    def _log_path(self) -> Path:
        return cursor_path(self._folder, self.name).with_suffix(".log")

    def _spawn(self) -> subprocess.Popen[bytes]:
        """In a session of its own, so that Ctrl-C reaches only the trainer; -P keeps the working folder out of its imports."""
        self._log_path.parent.mkdir(exist_ok=True)
        paths = (str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-P", "-m", "trainer.trackers", str(self._folder.resolve()), self.name, "--follow"]
        with self._log_path.open("ab") as errors:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )

    def _handle(self, report: dict[str, Any]) -> None:
        self._last_report, self._silent = time.monotonic(), False
        self._failure = report.get("failed", self._failure)
        self._done = self._done or report.get("done", False)
        self.up = not self._failure
        self._exporter.add(WATCH_SECONDS, max(0.0, report["cpu_seconds"] - self._cpu_seconds), "trackers")
        self._cpu_seconds = max(self._cpu_seconds, report["cpu_seconds"])
        if report.get("notice"):
            self._warn(f"{report['notice']}.")

    def _fail(self, reason: str) -> None:
        with contextlib.suppress(OSError):
            self.dropped = sum(1 for _ in Cursor(self._folder, self.name).new_lines())
        later = shlex.join([sys.executable, "-m", "trainer.trackers", str(self._folder), self.name])
        self._warn(
            f"The tracker {self.name} is off, training goes on without it: {reason}. What it missed can be sent later: {later}"
        )
