"""Samples the run once a second on its own thread: stage shares, rates, verdict, devices; detects stalls.

What a tick sees is a pure function of two moments (`observe`). An error is logged and counted, and the next tick tries again.
"""

from __future__ import annotations

import faulthandler
import itertools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from trainer.config import WatchConfig
from trainer.gpus.collectors import gpu_samples
from trainer.gpus.device import NOT_SAMPLED, GpuSnapshot
from trainer.gpus.sampler import GpuSampler
from trainer.metrics.catalogue.watching import PROCESS_CPU, PROCESS_MEMORY, WATCH_ERRORS, WATCH_SECONDS
from trainer.metrics.exporter import MetricSample
from trainer.monitor.collectors import queue_samples, stage_samples
from trainer.monitor.monitor import Monitor
from trainer.monitor.rates import WINDOW_SECONDS, Counts, Pace, Rates
from trainer.monitor.state import RunState, Tick
from trainer.monitor.status import telemetry_line
from trainer.monitor.verdict import judge, shares
from trainer.pipeline.queues import QueueStats
from trainer.pipeline.stages import Stages, StageStats

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Everything that can be sampled, at one moment; `at` on the monotonic clock, `time` as Unix time."""

    at: float
    time: float
    state: RunState
    stages: tuple[StageStats, ...] = ()
    queues: tuple[QueueStats, ...] = ()
    gpus: GpuSnapshot = NOT_SAMPLED
    cpu_seconds: float = 0.0
    memory_bytes: int | None = None


def observe(before: Moment, now: Moment, *, rates: Rates, lost_device_seconds: float, stall_seconds: float) -> Tick:
    """What the stretch from one moment to another says of the run. Pure."""
    split = tuple(shares(before.stages, now.stages))
    evidence = now.state.evidence(now.at, now.time, split, stall_seconds=stall_seconds, lost_device_seconds=lost_device_seconds)
    seconds = now.at - before.at
    return Tick(
        verdict=judge(evidence, now.state.verdict),
        rates=rates,
        stages=split,
        queues=now.queues,
        gpus=now.gpus,
        cpu_cores=round((now.cpu_seconds - before.cpu_seconds) / seconds, 3) if seconds > 0 else None,
        memory_bytes=now.memory_bytes,
        lost_device_seconds=lost_device_seconds,
    )


class Window:
    """The moments of the last minute, and what adds up over them."""

    def __init__(self, drafter_devices: int) -> None:
        self._drafter_devices = drafter_devices
        self._moments: deque[Moment] = deque()
        self._pace = Pace()
        self._base: Counts | None = None  # where the pace begins, if not where the attempt did
        self._settled = False
        self.lost_device_seconds = 0.0
        """Since the attempt began, pauses left out."""

    def add(self, now: Moment) -> Moment:
        """Take in the newest moment; returns the oldest that it is to be compared with.

        The window begins anew with the first step, since what stages did while the queues were filling says nothing of the run,
        and after a pause.
        """
        moments, newest = self._moments, now.state.newest
        if now.state.state == "paused":
            self._begin_anew(now.state)
        if moments:
            self.lost_device_seconds += self._drafter_devices * _waited(moments[-1], now)
        if not self._settled and newest is not None:
            self._settled = True
            while len(moments) > 1:
                moments.popleft()
        while len(moments) > 1 and moments[1].at <= now.at - WINDOW_SECONDS:
            moments.popleft()
        moments.append(now)
        base = self._base or now.state.base
        if newest is not None and newest.line.step > base.step:
            progress = now.state.progress_ratio
            self._pace.add(newest.at, newest.counts, progress, step_seconds=newest.line.step_seconds, base=base)
        return moments[0]

    def rates(self, now: float) -> Rates:
        return self._pace.rates(now)

    def _begin_anew(self, state: RunState) -> None:
        self._moments.clear()
        self._pace = Pace()
        self._base = state.newest.counts if state.newest else state.base


class Sampler:
    """`start` it before anything is loaded, `attach` the stages once there are some, `stop` it when the run has ended.

    `drafter_devices` counts the devices that stand still while the drafter waits.
    """

    def __init__(self, monitor: Monitor, config: WatchConfig, *, drafter_devices: int = 1, gpus: GpuSampler | None = None) -> None:
        self._monitor, self._config = monitor, config
        self._exporter, self._record = monitor.exporter, monitor.record
        self._gpus = gpus or GpuSampler(monitor.exporter, config.gpu_seconds)
        self._process = psutil.Process()
        self._stages: Stages | None = None
        self._window = Window(drafter_devices)
        self._gpu_warning = ""
        self._record_trouble: str | None = None
        self._writer_seconds = 0.0
        self._logged: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._exporter.register(self._samples)

    def start(self) -> None:
        self._gpus.start()
        self._thread.start()

    def attach(self, stages: Stages) -> None:
        """From now on the stages and queues of the pipeline are sampled."""
        self._stages = stages

    def stop(self) -> None:
        """Take a last tick and end, this thread and the GPUs'; gives up after `STOP_SECONDS`, should it hang."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        self._gpus.stop()
        # The record keeps the last GPU figures; `/status` and `/metrics` say from now on that the GPUs are no longer sampled.
        if (newest := self._monitor.state.tick) is not None:
            self._monitor.take_tick(replace(newest, gpus=self._gpus.snapshot))

    def tick(self) -> None:
        """Sample once. Never raises."""
        began = time.thread_time()
        try:
            self._sample()
        except Exception as error:
            self._exporter.add(WATCH_ERRORS, 1, "sampler")
            self._log_once(error)
        self._exporter.add(WATCH_SECONDS, time.thread_time() - began, "sampler")
        written = self._record.cpu_seconds
        self._exporter.add(WATCH_SECONDS, written - self._writer_seconds, "writer")
        self._writer_seconds = written

    def _run(self) -> None:
        last = False
        while not last:
            self.tick()
            last = self._stopping.wait(self._config.sample_seconds)
        self.tick()

    def _sample(self) -> None:
        now = self._moment()
        before = self._window.add(now)
        tick = observe(
            before,
            now,
            rates=self._window.rates(now.at),
            lost_device_seconds=self._window.lost_device_seconds,
            stall_seconds=self._config.stall_seconds,
        )
        self._notice_stall(tick)
        self._notice_trouble(now.gpus.warning)
        self._monitor.take_tick(tick)
        self._record.telemetry(telemetry_line(self._monitor.state, now.at))

    def _moment(self) -> Moment:
        cpu = self._process.cpu_times()
        return Moment(
            at=self._monitor.clock(),
            time=self._monitor.wall(),
            state=self._monitor.state,
            stages=tuple(self._stages.read()) if self._stages else (),
            queues=tuple(self._stages.read_queues()) if self._stages else (),
            gpus=self._gpus.snapshot,
            cpu_seconds=cpu.user + cpu.system,
            memory_bytes=self._process.memory_info().rss,
        )

    def _notice_stall(self, tick: Tick) -> None:
        verdict = tick.verdict
        if verdict.state != "stalled":
            self._monitor.recover()
            return
        running = [share for share in tick.stages if share.running]
        stuck = [share.seconds_on_item for share in running if share.name == verdict.stage]
        seconds = stuck[0] if stuck else min((share.seconds_since_progress for share in running), default=0.0)
        if self._monitor.stall(verdict.stage, seconds, verdict.sentence):
            log.error("%s %s", verdict.sentence, _try_to_dump(self._record.folder))

    def _notice_trouble(self, gpu_warning: str) -> None:
        """Warn of GPUs that cannot be read, for as long as that holds, and of a record that cannot be written."""
        if gpu_warning != self._gpu_warning:
            self._monitor.withdraw(self._gpu_warning)
            self._gpu_warning = gpu_warning
            if gpu_warning:
                self._monitor.warn(gpu_warning)
        before, self._record_trouble = self._record_trouble, self._record.trouble
        if self._record_trouble and not before:
            self._monitor.warn(f"The run record cannot be written at present; training continues: {self._record_trouble}.")

    def _samples(self) -> Iterator[MetricSample]:
        """For `/metrics`, as of now; only the GPU figures are their own thread's newest, since a driver may make one wait."""
        yield from stage_samples(self._stages.read() if self._stages else [])
        yield from queue_samples(self._stages.read_queues() if self._stages else [])
        yield from gpu_samples(self._gpus.snapshot)
        cpu = self._process.cpu_times()
        yield MetricSample(PROCESS_CPU, cpu.user + cpu.system)
        yield MetricSample(PROCESS_MEMORY, self._process.memory_info().rss)

    def _log_once(self, error: Exception) -> None:
        sentence = f"{type(error).__name__}: {error}"
        if sentence not in self._logged:
            self._logged.add(sentence)
            log.warning("sampling failed, training continues: %s", sentence, exc_info=error)


def _waited(before: Moment, now: Moment) -> float:
    """Seconds between two moments in which the drafter was not busy, once there is one."""
    busy = [stage.busy_seconds for moment in (before, now) for stage in moment.stages if stage.name == "drafter" and stage.running]
    return max(0.0, now.at - before.at - (busy[1] - busy[0])) if len(busy) == 2 else 0.0


def _try_to_dump(folder: Path) -> str:
    try:
        return f"The stack of every thread is in {dump_stacks(folder).name}."
    except OSError as error:
        return f"The stacks could not be written: {error}."


def dump_stacks(folder: Path) -> Path:
    """Write the stack of every thread into the next free `stacks-<n>.txt` of `folder`. Raises `OSError`."""
    path = next(path for number in itertools.count(1) if not (path := folder / f"stacks-{number}.txt").exists())
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    with path.open("x") as file:
        file.writelines(f"Thread 0x{ident:016x} is {names.get(ident, 'unknown')}\n" for ident in sys._current_frames())
        file.write("\n")
        file.flush()
        faulthandler.dump_traceback(file, all_threads=True)
    return path
