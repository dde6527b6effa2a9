"""Starts and stops everything that watches a run: record, metrics, monitor, sampler, server, console, trackers, log."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from trainer.config import WatchConfig
from trainer.devices import Placement
from trainer.drafter.checkpoint import folder_bytes, when_written
from trainer.errors import EXIT_INTERRUPTED, ConfigError
from trainer.formatting import duration
from trainer.gpus.device import NO_TORCH_GPUS, torch_gpus
from trainer.gpus.sampler import GpuSampler
from trainer.metrics.catalogue.watching import EVENT_STREAMS, HTTP_REFUSED, WATCH_SECONDS
from trainer.metrics.exporter import Exporter, MetricSample
from trainer.monitor.collectors import log_samples, run_samples
from trainer.monitor.console import Console, choose_mode
from trainer.monitor.control import Control
from trainer.monitor.monitor import Monitor
from trainer.monitor.rates import Counts
from trainer.monitor.sampler import Sampler
from trainer.monitor.status import MonitorStatus
from trainer.pipeline.stages import Stages
from trainer.record.format import EvaluationLine, read_line
from trainer.record.reader import newest_events
from trainer.record.writer import RecordLogHandler, RunRecord
from trainer.run.checkpointing import UnsavedError
from trainer.run.folder import Run
from trainer.server.app import add_control, create_app
from trainer.server.auth import read_token
from trainer.server.server import StatusServer, on_this_machine
from trainer.server.service_discovery import ServiceDiscoveryFile, rank_of
from trainer.trackers.supervisor import Trackers

log = logging.getLogger("trainer")

# Two scrapes of the stack's Prometheus: a stop that it does not see looks like a crash.
STOPPED_LINGER_SECONDS = 12.0
# Ctrl-C, docker stop; a terminal that is gone; what Slurm sends before a time limit (--signal), and a CPU limit.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
SHOW_CURSOR = b"\x1b[?25h\n"  # the live display hides it


class RunFailedError(RuntimeError):
    """A run has failed, and console, log and record say so already; the cause is `__cause__`."""


class Watch:
    """Watches `run` from the moment it has a folder until its end, in order or not; a context manager around all of it.

    `control` takes requests over HTTP where `server` has a token. `placement` names the GPUs to sample.
    """

    def __init__(
        self,
        run: Run,
        config: WatchConfig,
        server: StatusServer,
        trackers: Sequence[str] = (),
        control: Control | None = None,
        placement: Placement | None = None,
    ) -> None:
        self._run = run
        self._server = server
        self._record = RunRecord(run.folder, run.attempt)
        self._exporter = Exporter(CollectorRegistry(), str(run.metadata["id"]))
        self.monitor = Monitor(run.metadata, self._exporter, self._record)
        self.source = MonitorStatus(self.monitor)
        torch = torch_gpus(placement.targets, placement.drafter) if placement else NO_TORCH_GPUS
        gpus = GpuSampler(self._exporter, config.gpu_seconds, torch, progress=lambda: self.monitor.state.step)
        self._sampler = Sampler(self.monitor, config, gpus=gpus)
        self._control = control or Control()
        self._control.attach(self.monitor)
        self._linger_seconds = config.linger_seconds
        addresses = {"status": f"{on_this_machine(server.address)}/status"} if server.address else {}
        self._console = Console(self.source, choose_mode(config.console, sys.stdout), sys.stdout, addresses)
        self._handlers_before: list[logging.Handler] = []
        self._logged = RecordLogHandler(self._record)
        self._exporter.register(lambda: run_samples(self.monitor.state, self._record))
        self._exporter.register(lambda: log_samples(self._logged.warnings, self._logged.errors))
        self._handlers: list[logging.Handler] = [self._logged, self._console.log_handler()]
        self._discovery = _discovery_file(config, run, server)
        # Its own address, and the name by which Prometheus asks for it: what is told of it must lead to it.
        own = (urlsplit(server.address or "").netloc, self._discovery.target if self._discovery else None)
        self._allow_hosts = (*config.allow_hosts, *filter(None, own))
        self._trackers = Trackers(run.folder, trackers, self._exporter, self.monitor.warn)
        self._stages: Stages | None = None
        self._final_message = ""

    def __enter__(self) -> Watch:
        root = logging.getLogger()
        self._handlers_before, root.handlers = root.handlers, self._handlers
        start = self._run.start
        self._inherit()
        self.monitor.begin(Counts(start.step, start.context_tokens, start.draft_tokens, start.samples))
        self._serve()  # now that it has begun: nothing can be asked of it before
        self._sampler.start()
        self._console.start()
        self._trackers.start()
        for sentence in self._run.warnings:
            self.monitor.warn(sentence)
        if self._discovery and (trouble := self._discovery.publish()):
            self.monitor.warn(trouble)
        return self

    def observe(self, stages: Stages) -> None:
        """From now on the stages and queues of the pipeline are sampled."""
        self._stages = stages
        self._sampler.attach(stages)

    def finish(self, message: str) -> None:
        """The run ended in order."""
        self.monitor.finish(message)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self._fail(error)
        self._sampler.stop()
        self._trackers.stop()
        linger_seconds = self._announce_lingering() if error is None or isinstance(error, Exception) else 0.0
        self._console.stop(self._final_message)
        self._record.close()
        logging.getLogger().handlers = self._handlers_before
        self._control.linger(linger_seconds)
        if self._discovery and (trouble := self._discovery.remove()):
            log.warning(trouble)
        if isinstance(error, Exception):
            raise RunFailedError(self._final_message) from error

    def _inherit(self) -> None:
        """Take over what earlier attempts left: the checkpoint, and the newest evaluation up to its step."""
        if (checkpoint := self._run.checkpoint) is None:
            return
        before = filter(None, (read_line(EvaluationLine, row) for row in newest_events(self._run.folder, "evaluated")))
        evaluation = next((line for line in before if line.step <= self._run.start.step), None)
        with contextlib.suppress(OSError):  # if it has vanished since it was checked, loading it will say so
            self.monitor.inherit(self._run.start.step, checkpoint, folder_bytes(checkpoint), when_written(checkpoint), evaluation)

    def _serve(self) -> None:
        app = create_app(self.source, self._exporter.exposition, self._allow_hosts, self._count_http_seconds, self._count_refusal)
        if self._server.token is not None:
            add_control(app, self._control, self.monitor, self._server.token)
        self._exporter.register(lambda: [MetricSample(EVENT_STREAMS, app.state.events.open_streams)])
        self._server.start(app)

    def _announce_lingering(self) -> float:
        """Seconds for which the ended run still answers; fewer after a stop, since somebody waits for the process to exit."""
        seconds = min(self._linger_seconds, STOPPED_LINGER_SECONDS) if self._control.is_stopping() else self._linger_seconds
        if not seconds or self._server.address is None:
            return 0.0
        log.info("Still answering at %s for %s; Ctrl-C ends that.", on_this_machine(self._server.address), duration(seconds))
        return seconds

    def _count_refusal(self, reason: str) -> None:
        self._exporter.add(HTTP_REFUSED, 1, reason)

    def _count_http_seconds(self, seconds: float) -> None:
        self._exporter.add(WATCH_SECONDS, seconds, "http")

    def _fail(self, error: BaseException) -> None:
        stage = self._stages.failed_stage if self._stages else None
        # A target that cannot be loaded, or a disk that is full at the end, is a sentence and needs no traceback.
        plain = isinstance(error.__cause__, ConfigError) or isinstance(error, UnsavedError)
        text = str(error) if plain else "".join(traceback.format_exception(error))
        log.error("%s", text.rstrip())
        self.monitor.fail(stage, str(error) if plain else error, text)
        self._final_message = self.monitor.state.verdict.sentence


def _discovery_file(config: WatchConfig, run: Run, server: StatusServer) -> ServiceDiscoveryFile | None:
    if config.announce is None:
        return None
    return ServiceDiscoveryFile(Path(config.announce), str(run.metadata["id"]), server.address, rank_of(os.environ))


@contextlib.contextmanager
def listening(config: WatchConfig) -> Iterator[StatusServer]:
    """Bind the status server's port and read the control token, if there is to be one, before anything else is made.

    Raises `ConfigError` where the port is in use or the token cannot be read.
    """
    server = StatusServer(StatusServer.bind(config.host, config.port))
    try:
        if config.token_file is not None and server.address is not None:
            server.token = read_token(config.token_file)
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def interruptible() -> Iterator[Control]:
    """A control that STOP_SIGNALS stop; a second SIGINT or SIGTERM ends the process at once. Main thread only."""
    control = Control()
    if threading.current_thread() is not threading.main_thread():
        yield control
        return
    signals = 0

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal signals
        # The others repeat by themselves: a hang-up comes from shell and kernel, SIGXCPU for each second past its limit. Not
        # `is_stopping`: after a stop over HTTP the first signal must not cost the last checkpoint.
        signals += number in (signal.SIGINT, signal.SIGTERM)
        if signals > 1:
            if sys.stdout.isatty():
                os.write(1, SHOW_CURSOR)
            os._exit(EXIT_INTERRUPTED)
        control.stop()
        if not control.is_lingering:
            log.warning("Stopping after the current step, or after loading. A second signal ends it at once, without a checkpoint.")

    # Under nohup SIGHUP is ignored, and stays so.
    taken = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGINT]
    before = {number: signal.signal(number, handle) for number in taken}
    try:
        yield control
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
