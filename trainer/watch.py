"""Everything that watches a run, put together and taken apart: record, metrics, status server, sampler, console, log."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType

from prometheus_client import CollectorRegistry

from trainer import metrics
from trainer.config import EXIT_INTERRUPTED, ConfigError, WatchConfig
from trainer.console import Console, choose_mode
from trainer.keeper import UnsavedError
from trainer.live import Live
from trainer.record import RecordLogHandler, RunRecord
from trainer.recorder import Recorder
from trainer.run import Run
from trainer.sampler import Sampler
from trainer.stages import Stages
from trainer.status import StatusServer, create_app

log = logging.getLogger("trainer")

SHOW_CURSOR = b"\x1b[?25h\n"  # a live display hides it


class RunFailedError(RuntimeError):
    """A run has failed, and its console, log and record have told it; the cause is `__cause__`."""


class Watch:
    """Watches `run` from the moment it has a folder until it has ended, well or not. A context manager around all of it."""

    def __init__(self, run: Run, config: WatchConfig, server: StatusServer) -> None:
        self._run = run
        self._server = server
        self._record = RunRecord(run.folder, run.attempt)
        self._recorder = Recorder(CollectorRegistry())
        self.live = Live(run.facts, self._recorder, self._record)
        self._sampler = Sampler(self.live, self._recorder, self._record, config)
        addresses = {"status": f"{server.address}/status"} if server.address else {}
        self._console = Console(self.live, choose_mode(config.console, sys.stdout), sys.stdout, addresses)
        self._handlers_before: list[logging.Handler] = []
        self._handlers: list[logging.Handler] = [RecordLogHandler(self._record), self._console.log_handler()]
        self._allow_hosts = config.allow_hosts
        self._stages: Stages | None = None
        self._last_words = ""

    def __enter__(self) -> Watch:
        root = logging.getLogger()
        self._handlers_before, root.handlers = root.handlers, self._handlers
        self._server.start(create_app(self.live, self._recorder.exposition, self._allow_hosts, self._book_http))
        self._sampler.start()
        self._console.start()
        start = self._run.start
        self.live.began(start.step, start.context_tokens, start.draft_tokens, start.samples)
        for sentence in self._run.warnings:
            self.live.warn(sentence)
        return self

    def observe(self, stages: Stages) -> None:
        """From now on the stages and queues of the pipeline are sampled."""
        self._stages = stages
        self._sampler.attach(stages)

    def finish(self, message: str) -> None:
        """The run has come to an orderly end."""
        self.live.finished(message)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self._fail(error)
        self._sampler.stop()
        self._console.stop(self._last_words)
        self._record.close()
        logging.getLogger().handlers = self._handlers_before
        if isinstance(error, Exception):
            raise RunFailedError(self._last_words) from error

    def _book_http(self, seconds: float) -> None:
        self._recorder.add(metrics.WATCH_SECONDS, seconds, "http")

    def _fail(self, error: BaseException) -> None:
        stage = self._stages.failed_stage if self._stages else None
        # What is wrong with the target, or with the disk at the very end, is a sentence, and needs no traceback.
        plain = isinstance(error.__cause__, ConfigError) or isinstance(error, UnsavedError)
        text = str(error) if plain else "".join(traceback.format_exception(error))
        log.error("%s", text.rstrip())
        self.live.failed(stage, str(error) if plain else error, text)
        self._last_words = self.live.verdict().sentence


@contextlib.contextmanager
def listening(config: WatchConfig) -> Iterator[StatusServer]:
    """The status server's port, taken before anything else is done. Raises `ConfigError` where it is in use."""
    server = StatusServer(StatusServer.bind(config.host, config.port))
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def interruptible() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second one ends the process at once. Outside of the main thread, only the event."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            if sys.stdout.isatty():
                os.write(1, SHOW_CURSOR)
            os._exit(EXIT_INTERRUPTED)
        stop.set()
        log.warning("Stopping once the step or the loading under way is done. Once more ends it at once, without a checkpoint.")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
