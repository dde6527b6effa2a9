"""A run's folder in, its record sent to one tracker: `python -m trainer.trackers runs/<run_id> tensorboard`.

Training starts one such process for each tracker, with `--follow`: it then takes in new lines until its standard input ends, and
reports to its standard output. It reads only files, so that whatever a tracker does, no stage ever waits for it. No torch in here.
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
from trainer.trackers.scalars import point_of
from trainer.trackers.sink import Sink, TrackerError
from trainer.trackers.tensorboard import EventFiles
from trainer.trackers.wandb import WandbRun

POLL_SECONDS = 1.0
# After the run has ended: until the record's last lines are in its files, and until a library that hangs is given up.
SETTLE_SECONDS = 1.0
GIVE_UP_SECONDS = 60.0
KEEP_POINTS = 5_000
NICENESS = 5  # the stages come first, and yet it has to finish in time on a machine that is full


def main(arguments: list[str] | None = None) -> int:
    """0 where all was sent; 1 where the tracker cannot work."""
    parser = argparse.ArgumentParser(prog="python -m trainer.trackers", description="Send a run's record to another tracker.")
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("tracker", choices=TRACKERS)
    parser.add_argument("--follow", action="store_true", help="go on until standard input ends; report in JSON lines")
    asked = parser.parse_args(arguments)
    folder: Path = asked.run.resolve()
    if not (folder / "run.json").is_file():
        parser.error(f"{asked.run} is no run: it has no run.json")
    reports = Reports() if asked.follow else None
    os.nice(NICENESS)
    try:
        cursor_path(folder, asked.tracker).parent.mkdir(exist_ok=True)
        # One process at a time sends a run to a tracker: that of a run which was killed may still be at it.
        with lock(cursor_path(folder, asked.tracker).with_suffix(".lock")):
            sent = Sender(folder, asked.tracker, reports).run(follow=asked.follow)
    except Exception as error:
        return _failed(error, reports)
    if not asked.follow:
        print(f"{asked.tracker} was sent {sent:,} points of {folder.name}.")
    return 0


class Reports:
    """What the trainer is told, as JSON lines. Whatever a library prints goes to standard error instead."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._process = psutil.Process()

    def tell(self, **report: Any) -> None:
        with contextlib.suppress(OSError):  # the trainer is gone; the rest is still sent
            print(json.dumps({**report, "cpu_seconds": self._cpu_seconds()}), file=self._out, flush=True)

    def _cpu_seconds(self) -> float:
        """Of this process and those that a library has started."""
        total = 0.0
        for process in (self._process, *self._process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total


class Sender:
    """Sends what is behind the cursor of `tracker`, and moves it."""

    def __init__(self, folder: Path, tracker: str, reports: Reports | None) -> None:
        self._reports = reports
        self._cursor = Cursor(folder, tracker)
        self._sink = open_sink(folder, tracker, self._cursor.sent)

    def run(self, *, follow: bool) -> int:
        """Send all there is, and with `follow` what is still to come; returns how many points."""
        before = self._cursor.sent
        self._tell(up=True, notice=self._sink.notice)
        if self._sink.notice and not follow:
            print(f"{self._sink.notice}.", file=sys.stderr)
        while follow and not _has_ended(POLL_SECONDS):
            self._send_new()
        if follow:
            faulthandler.dump_traceback_later(GIVE_UP_SECONDS, exit=True)  # also for what a library does when Python ends
            time.sleep(SETTLE_SECONDS)
        self._send_new()
        self._sink.close()
        self._tell(done=True)
        return self._cursor.sent - before

    def _send_new(self) -> None:
        before = self._cursor.sent
        for line in self._cursor.new_lines():
            if line.kind == EVENTS and line.fields.get("event") == "resumed":
                self._sink.restart(line.fields["step"] + 1)
            if (point := point_of(line.kind, line.fields)) is not None:
                self._sink.send(point)
                self._cursor.sent += 1
            self._cursor.passed(line)
            if self._cursor.sent - before >= KEEP_POINTS:
                before = self._cursor.sent
                self._keep()
        self._keep()

    def _keep(self) -> None:
        self._sink.flush()
        self._cursor.keep()
        self._tell(sent=self._cursor.sent)

    def _tell(self, **report: Any) -> None:
        if self._reports:
            self._reports.tell(**report)


def open_sink(folder: Path, tracker: str, sent: int) -> Sink:
    """Raises `TrackerError` where its library is not installed or cannot begin."""
    return WandbRun(folder, sent) if tracker == "wandb" else EventFiles(folder / "tensorboard")


def _has_ended(seconds: float) -> bool:
    """Wait for `seconds`, or until standard input ends: then the run has, or the trainer was killed."""
    ready, _, _ = select.select([0], [], [], seconds)
    return bool(ready) and os.read(0, 4096) == b""


def _failed(error: Exception, reports: Reports | None) -> int:
    sentence = " ".join(str(error).split()) if isinstance(error, TrackerError) else f"{type(error).__name__}: {error}"
    if reports:
        reports.tell(failed=sentence)
    if isinstance(error, TrackerError):
        print(f"Not sent: {sentence}.", file=sys.stderr)
    else:
        traceback.print_exception(error)
    return 1


if __name__ == "__main__":
    sys.exit(main())
