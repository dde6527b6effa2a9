"""Sends a run's record to one tracker: `python -m trainer.trackers runs/<run_id> tensorboard`.

Training starts one such process per tracker, with `--follow`: it sends new lines until its standard input ends, and reporter on its
standard output. It reads only files, so no stage ever waits for a tracker. It never loads torch.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import select
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import psutil

from trainer.files import lock
from trainer.metrics.catalogue.watching import TRACKERS
from trainer.record.format import EVENTS
from trainer.trackers.cursor import Cursor, cursor_path
from trainer.trackers.scalars import Tracker, TrackerError, point_of
from trainer.trackers.tensorboard import TensorBoard
from trainer.trackers.wandb import Wandb

POLL_SECONDS = 1.0
# After the run has ended: time for the record's last lines to reach their files, and until a library that hangs is killed.
SETTLE_SECONDS = 1.0
GIVE_UP_SECONDS = 60.0
CURSOR_EVERY_POINTS = 5_000
NICENESS = 5  # the stages come first, but on a busy machine this must still finish in time


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 if everything was sent, 1 if the tracker cannot work."""
    parser = argparse.ArgumentParser(prog="python -m trainer.trackers", description="Send a run's record to another tracker.")
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("tracker", choices=TRACKERS)
    parser.add_argument("--follow", action="store_true", help="keep sending until standard input ends; report in JSON lines")
    options = parser.parse_args(arguments)
    folder: Path = options.run.resolve()
    if not (folder / "run.json").is_file():
        parser.error(f"{options.run} is no run: it has no run.json")
    reporter = Reporter() if options.follow else None
    os.nice(NICENESS)
    try:
        cursor_path(folder, options.tracker).parent.mkdir(exist_ok=True)
        # One process at a time sends a run to a tracker: that of a killed trainer may still be running.
        with lock(cursor_path(folder, options.tracker).with_suffix(".lock")):
            sent = Sender(folder, options.tracker, reporter).run(follow=options.follow)
    except Exception as error:
        return _failed(error, reporter)
    if not options.follow:
        print(f"{options.tracker} was sent {sent:,} points of {folder.name}.")
    return 0


class Reporter:
    """Reports to the trainer as JSON lines on standard output; what a library prints goes to standard error instead."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._process = psutil.Process()

    def report(self, **fields: Any) -> None:
        with contextlib.suppress(OSError):  # the trainer has died; the rest is still sent
            print(json.dumps({**fields, "cpu_seconds": self._cpu_seconds()}), file=self._out, flush=True)

    def _cpu_seconds(self) -> float:
        """CPU time of this process and of those that a library has started."""
        total = 0.0
        for process in (self._process, *self._process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total


class Sender:
    """Sends the record lines after the cursor of `tracker`, and moves the cursor."""

    def __init__(self, folder: Path, tracker: str, reporter: Reporter | None) -> None:
        self._reporter = reporter
        self._cursor = Cursor(folder, tracker)
        self._tracker = open_tracker(folder, tracker, self._cursor.sent)

    def run(self, *, follow: bool) -> int:
        """Send all there is, and with `follow` what is still to come; returns the number of points sent."""
        before = self._cursor.sent
        self._report(up=True, notice=self._tracker.notice)
        if self._tracker.notice and not follow:
            print(f"{self._tracker.notice}.", file=sys.stderr)
        while follow and not _has_ended(POLL_SECONDS):
            self._send_new()
        if follow:
            faulthandler.dump_traceback_later(GIVE_UP_SECONDS, exit=True)  # also covers what a library does at Python's exit
            time.sleep(SETTLE_SECONDS)
        self._send_new()
        self._tracker.close()
        self._report(done=True)
        return self._cursor.sent - before

    def _send_new(self) -> None:
        before = self._cursor.sent
        for line in self._cursor.new_lines():
            if line.kind == EVENTS and line.fields.get("event") == "resumed":
                self._tracker.restart(line.fields["step"] + 1)
            if (point := point_of(line.kind, line.fields)) is not None:
                self._tracker.send(point)
                self._cursor.sent += 1
            self._cursor.passed(line)
            if self._cursor.sent - before >= CURSOR_EVERY_POINTS:
                before = self._cursor.sent
                self._save_cursor()
        self._save_cursor()

    def _save_cursor(self) -> None:
        self._tracker.flush()
        self._cursor.save()
        self._report(sent=self._cursor.sent)

    def _report(self, **fields: Any) -> None:
        if self._reporter:
            self._reporter.report(**fields)


def open_tracker(folder: Path, tracker: str, sent: int) -> Tracker:
    """Raises `TrackerError` if its library is not installed or cannot start."""
    return Wandb(folder, sent) if tracker == "wandb" else TensorBoard(folder / "tensorboard")


def _has_ended(seconds: float) -> bool:
    """Wait for `seconds`, or until standard input ends, because the run has ended or the trainer was killed."""
    ready, _, _ = select.select([0], [], [], seconds)
    return bool(ready) and os.read(0, 4096) == b""


def _failed(error: Exception, reporter: Reporter | None) -> int:
    sentence = " ".join(str(error).split()) if isinstance(error, TrackerError) else f"{type(error).__name__}: {error}"
    if reporter:
        reporter.report(failed=sentence)
    if isinstance(error, TrackerError):
        print(f"Not sent: {sentence}.", file=sys.stderr)
    else:
        traceback.print_exception(error)
    return 1


if __name__ == "__main__":
    sys.exit(main())
