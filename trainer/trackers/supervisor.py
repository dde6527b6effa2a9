"""Names of trackers in, a process for each out: started with the run, looked after by one thread, ended with the run.

They read the record's files. Whatever becomes of them is a warning, and `tracker_up` at 0; training neither waits nor fails.
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
# A process that says nothing for so long hangs; beginning takes wandb up to its own time-out for a network.
SILENT_SECONDS = 60.0
# What the processes have, once the run has ended, to send the rest and finish.
FINISH_SECONDS = 10.0
# From when it has closed its output until it must have ended.
END_SECONDS = 5.0
LOOK_SECONDS = 1.0


class Trackers:
    """The processes of one attempt. `warn` takes a sentence for people; `start` and `stop` never raise."""

    def __init__(self, folder: Path, names: Sequence[str], exporter: Exporter, warn: Callable[[str], None]) -> None:
        self._children = [Child(name, folder, exporter, warn) for name in dict.fromkeys(names)]
        self._exporter = exporter
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._mind, name="trackers", daemon=True)
        exporter.register(self._samples)

    def start(self) -> None:
        if self._children:
            for child in self._children:
                child.start()
            self._thread.start()

    def stop(self) -> None:
        """The run has ended: let each send the rest, for `FINISH_SECONDS` together, and end those that are not done by then."""
        if self._thread.is_alive():
            self._deadline = time.monotonic() + FINISH_SECONDS
            for child in self._children:
                child.tell_end()
            self._thread.join(FINISH_SECONDS + 2 * LOOK_SECONDS)

    def _mind(self) -> None:
        spent = 0.0
        with selectors.DefaultSelector() as selector:
            for child in self._children:
                if child.output is not None:
                    selector.register(child.output, selectors.EVENT_READ, child)
            while selector.get_map():
                for key, _ in selector.select(LOOK_SECONDS):
                    child = key.data
                    if not child.listen():
                        selector.unregister(key.fileobj)
                        child.ended()
                self._look_after([key.data for key in selector.get_map().values()])
                now = time.thread_time()
                self._exporter.add(WATCH_SECONDS, now - spent, "trackers")
                spent = now

    def _samples(self) -> Iterator[MetricSample]:
        for child in self._children:
            yield MetricSample(TRACKER_UP, float(child.up), (child.name,))
            yield MetricSample(TRACKER_DROPPED, child.dropped, (child.name,))

    def _look_after(self, living: list[Child]) -> None:
        late = self._deadline is not None and time.monotonic() > self._deadline
        for child in living:
            if late:
                child.kill()
            else:
                child.see_silence()


class Child:
    """One process. `start` and `tell_end` are called by whoever runs the trackers, the rest by their thread."""

    def __init__(self, name: str, folder: Path, exporter: Exporter, warn: Callable[[str], None]) -> None:
        self.name = name
        self.up = False
        """Whether it takes the run's numbers."""
        self.dropped = 0
        """Lines of the record that it did not take, known once it has ended."""
        self._folder, self._exporter, self._warn = folder, exporter, warn
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = time.monotonic()
        self._said = b""
        self._cpu_seconds = 0.0
        self._done = self._killed = self._silent = False
        self._failure = ""

    @property
    def output(self) -> int | None:
        """Descriptor of what it reports; None where it could not be started."""
        return self._process.stdout.fileno() if self._process and self._process.stdout else None

    def start(self) -> None:
        try:
            self._process = self._begin()
        except OSError as error:
            self._tell_off(f"its process cannot be started: {error}")

    def tell_end(self) -> None:
        if self._process and self._process.stdin:
            try:
                self._process.stdin.close()
            except OSError as error:
                log.debug("%s was gone before: %s", self.name, error)

    def listen(self) -> bool:
        """Take in what it reports; False once it has ended."""
        assert self.output is not None
        block = os.read(self.output, 1 << 16)
        *lines, self._said = (self._said + block).split(b"\n")
        for line in lines:
            # Anything else was printed by something that Python loads before us.
            with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
                self._take(json.loads(line))
        return bool(block)

    def ended(self) -> None:
        """It has closed its output, and so ends: tell why, unless all is well."""
        assert self._process is not None
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:  # a library hangs while Python ends
            self.kill()
            code = self._process.wait()
        self.up = False
        if not self._done:
            cause = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            slow = f"it did not finish within {FINISH_SECONDS:.0f} s"
            self._tell_off(slow if self._killed else self._failure or f"its process {cause}, see {self._log_path}")

    def see_silence(self) -> None:
        if not self._silent and time.monotonic() - self._heard > SILENT_SECONDS:
            self._silent, self.up = True, False
            self._warn(
                f"The tracker {self.name} has taken nothing for {SILENT_SECONDS:.0f} s; training goes on without waiting for it."
            )

    def kill(self) -> None:
        """It had its time."""
        assert self._process is not None
        self._killed = True
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except OSError as error:
            log.debug("%s was gone before: %s", self.name, error)

    @property
    def _log_path(self) -> Path:
        return cursor_path(self._folder, self.name).with_suffix(".log")

    def _begin(self) -> subprocess.Popen[bytes]:
        """In a session of its own, so that Ctrl-C reaches the trainer only; in no folder's reach but this repository's (-P)."""
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

    def _take(self, report: dict[str, Any]) -> None:
        self._heard, self._silent = time.monotonic(), False
        self._failure = report.get("failed", self._failure)
        self._done = self._done or report.get("done", False)
        self.up = not self._failure
        self._exporter.add(WATCH_SECONDS, max(0.0, report["cpu_seconds"] - self._cpu_seconds), "trackers")
        self._cpu_seconds = max(self._cpu_seconds, report["cpu_seconds"])
        if report.get("notice"):
            self._warn(f"{report['notice']}.")

    def _tell_off(self, reason: str) -> None:
        with contextlib.suppress(OSError):
            self.dropped = sum(1 for _ in Cursor(self._folder, self.name).new_lines())
        later = shlex.join([sys.executable, "-m", "trainer.trackers", str(self._folder), self.name])
        self._warn(
            f"The tracker {self.name} is off, training goes on without it: {reason}. What it missed can be sent later: {later}"
        )
