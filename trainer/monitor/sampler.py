"""Looks at the run once a second, on a thread of its own: shares, rates, verdict, devices; finds out when nothing gets on.

An error in here is logged and counted, and the next tick tries again.
"""

from __future__ import annotations

import faulthandler
import itertools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from trainer.config import WatchConfig
from trainer.gpus.collectors import gpu_samples
from trainer.gpus.device import NOT_SAMPLED
from trainer.gpus.sampler import GpuSampler
from trainer.metrics.catalogue.watching import PROCESS_CPU, PROCESS_MEMORY, WATCH_ERRORS, WATCH_SECONDS
from trainer.metrics.exporter import Exporter, MetricSample
from trainer.monitor.live import Live
from trainer.monitor.moments import Base, Tick, queue_samples, stage_samples
from trainer.monitor.rates import WINDOW_SECONDS, Pace
from trainer.monitor.snapshot import telemetry_line
from trainer.monitor.verdict import Verdict, judge, shares
from trainer.pipeline.stages import Stages, StageStats
from trainer.record.writer import RunRecord

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Moment:
    at: float
    stages: list[StageStats] = field(default_factory=list)
    cpu_seconds: float = 0.0


class Sampler:
    """`start` it before anything is loaded, `attach` the stages once there are some, `stop` it when the run has ended.

    `drafter_devices` counts the devices that stand still while the drafter waits. `clock` counts seconds and never goes back.
    """

    def __init__(
        self,
        live: Live,
        exporter: Exporter,
        record: RunRecord,
        config: WatchConfig,
        *,
        drafter_devices: int = 1,
        gpus: GpuSampler | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._live, self._exporter, self._record, self._config = live, exporter, record, config
        self._drafter_devices = drafter_devices
        self._gpus = gpus or GpuSampler(exporter, config.gpu_seconds)
        self._clock = clock
        self._process = psutil.Process()
        self._stages: Stages | None = None
        self._window: deque[_Moment] = deque()
        self._pace = Pace()
        self._pace_base: Base | None = None
        self._settled = False
        self._lost_seconds = 0.0
        self._verdict: Verdict | None = None
        self._gpu_reading = NOT_SAMPLED
        self._newest: Tick | None = None
        self._trouble: str | None = None
        self._writer_seconds = 0.0
        self._logged: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        exporter.register(self._samples)

    def start(self) -> None:
        self._gpus.start()
        self._thread.start()

    def attach(self, stages: Stages) -> None:
        """From now on the stages and queues of the pipeline are looked at."""
        self._stages = stages

    def stop(self) -> None:
        """Take a last look and end, this thread and the GPUs'; gives up after `STOP_SECONDS`, should it not come to its end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        self._gpus.stop()
        # The record ends with the last figures of the GPUs; whoever asks from now on is told that nobody looks at them.
        if self._newest is not None:
            self._live.ticked(replace(self._newest, gpus=self._gpus.snapshot))

    def tick(self) -> None:
        """Look once. Never raises."""
        began = time.thread_time()
        try:
            self._look()
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

    def _look(self) -> None:
        stages = self._stages.read() if self._stages else []
        queues = self._stages.read_queues() if self._stages else []
        cpu = self._process.cpu_times()
        if self._live.state == "paused":
            self._begin_anew()
        before, now = self._remember(_Moment(self._clock(), stages, cpu.user + cpu.system))
        self._see_gpus()
        newest = self._live.newest
        base = self._pace_base or self._live.base
        if newest is not None and newest.facts.step > base.step:
            self._pace.add(newest, base, self._live.progress_ratio)
        split = tuple(shares(before.stages, stages))
        self._verdict = judge(self._live.facts(split, self._config.stall_seconds, self._lost_seconds), self._verdict)
        elapsed = now.at - before.at
        tick = Tick(
            verdict=self._verdict,
            rates=self._pace.rates(now.at),
            stages=split,
            queues=tuple(queues),
            gpus=self._gpu_reading,
            cpu_cores=round((now.cpu_seconds - before.cpu_seconds) / elapsed, 3) if elapsed > 0 else None,
            memory_bytes=self._process.memory_info().rss,
            lost_device_seconds=self._lost_seconds,
        )
        self._see_stall(tick)
        self._see_record()
        self._newest = tick
        self._live.ticked(tick)
        self._record.telemetry(telemetry_line(self._live.snapshot()))

    def _remember(self, now: _Moment) -> tuple[_Moment, _Moment]:
        """Add a moment to the window; returns its oldest and its newest.

        The window begins anew at the first step: what the stages did while the queues were filling says nothing of the run.
        """
        window = self._window
        if window:
            self._lost_seconds += self._drafter_devices * _waited(window[-1], now)
        if not self._settled and self._live.newest is not None:
            self._settled = True
            while len(window) > 1:
                window.popleft()
        while len(window) > 1 and window[1].at <= now.at - WINDOW_SECONDS:
            window.popleft()
        window.append(now)
        return window[0], now

    def _begin_anew(self) -> None:
        """What a pause holds says nothing of the run: shares, rates and lost time are of what comes after it."""
        self._window.clear()
        self._pace, self._pace_base = Pace(), self._live.base
        if (newest := self._live.newest) is not None:
            facts = newest.facts
            self._pace_base = Base(facts.step, facts.context_tokens, facts.draft_tokens, facts.samples)

    def _see_gpus(self) -> None:
        before, self._gpu_reading = self._gpu_reading, self._gpus.snapshot
        if self._gpu_reading.warning == before.warning:
            return
        self._live.withdraw(before.warning)
        if self._gpu_reading.warning:
            self._live.warn(self._gpu_reading.warning)

    def _see_record(self) -> None:
        before, self._trouble = self._trouble, self._record.trouble
        if self._trouble and not before:
            self._live.warn(f"The record has gaps for now, training goes on: {self._trouble}.")

    def _see_stall(self, tick: Tick) -> None:
        verdict = tick.verdict
        if verdict.state != "stalled":
            self._live.recovered()
            return
        running = [share for share in tick.stages if share.running]
        stuck = [share.seconds_on_item for share in running if share.name == verdict.stage]
        seconds = stuck[0] if stuck else min((share.seconds_since_progress for share in running), default=0.0)
        if self._live.stalled(verdict.stage, seconds, verdict.sentence):
            log.error("%s %s", verdict.sentence, _try_to_dump(self._record.folder))

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
            log.warning("sampling failed, training goes on: %s", sentence, exc_info=error)


def _waited(before: _Moment, now: _Moment) -> float:
    """Seconds from one moment to the other that the drafter was not busy, once there is one."""
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
