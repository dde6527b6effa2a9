"""How much training slows down when everything watches it: steps a second with all of it on, against all of it off.

`python -m tests.benchmarks.throughput` trains one drafter for the `tiny` target on the CPU, and lets it be watched by turns of a
few seconds: with record, metrics, sampler, console and a status server that another process scrapes every 5 s, and with none
of these. All else stays as it is, warm and in one process: weights, threads, queues, and batches that are all alike. Two
neighbouring turns make a pair, in changing order, so that a machine that drifts favours neither; of the pairs' ratios the median
counts, with the interval that resampling the pairs gives. One ratio is of the wall time, which is the throughput; the other of the
CPU time of this process, which other work on the machine moves less, and in which nothing that watching does on an idle core is
free. 1: watching costs nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import datasets

from trainer.config import BatchesConfig, CheckpointConfig, DatasetConfig, DrafterConfig, EvaluateConfig, TrainConfig, WatchConfig
from trainer.metrics.catalogue.watching import WATCH_PARTS, WATCH_SECONDS
from trainer.monitor.control import Control
from trainer.pipeline.stages import Stages
from trainer.run.folder import Run, open_run
from trainer.run.preflight import check
from trainer.train import run_pipeline
from trainer.watch import Watch, listening

LEAST_RATIO = 0.99
RESAMPLES = 4000
# From the beginning of a turn until it is timed: the queues, which filled meanwhile, empty, and the scraper starts.
WARM_STEPS, WARM_SECONDS, WARM_SECONDS_OF_TRACKERS = 10, 1.0, 5.0

# At the pace of the stack's Prometheus, and over one connection, as it does.
SCRAPER = """
import http.client, sys, time
server = http.client.HTTPConnection(sys.argv[1].removeprefix("http://"), timeout=10)
while True:
    for path in ("/metrics", "/status"):
        server.request("GET", path)
        server.getresponse().read()
    time.sleep(5)
"""


class Turn(NamedTuple):
    """Seconds of a step, by the clock on the wall and as CPU time of the whole process.

    Of each second: the CPU time of the threads that are there for watching only, and what watching has booked as its cost.
    """

    watched: bool
    wall: float
    cpu: float
    threads: float
    booked: float


class Clocks(NamedTuple):
    steps: int
    wall: float
    cpu: float
    threads: float
    booked: float


class Silence:
    """In place of all that is told of a run: takes everything, keeps nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Switch:
    """In place of a `Watch` and its `monitor`: passes everything on, to everything that watches or to nobody, by turns.

    `plan` says of each turn whether it is watched; once it is used up, the run is told to stop.
    """

    def __init__(self, run: Run, config: TrainConfig, control: Control, plan: list[bool], seconds: float) -> None:
        self._run, self._config, self._control = run, config, control
        self._plan, self._seconds = iter(plan), seconds
        self._warm_seconds = WARM_SECONDS_OF_TRACKERS if config.trackers else WARM_SECONDS
        self._stages: Stages | None = None
        self._watching = contextlib.ExitStack()
        self._watched = False
        self._others: set[threading.Thread] = set()
        self._monitor: Any = Silence()
        self._steps = 0
        self._entered = 0.0
        self._timed: Clocks | None = None
        self.turns: list[Turn] = []

    @property
    def monitor(self) -> Switch:
        return self

    def observe(self, stages: Stages) -> None:
        self._stages = stages
        self._next()

    def step(self, *facts: object) -> None:
        self._monitor.step(*facts)
        self._steps += 1
        now = time.perf_counter()
        if self._timed is None:
            if self._steps >= WARM_STEPS and now - self._entered >= self._warm_seconds:
                self._timed = self._clocks()
        elif now - self._timed.wall >= self._seconds:
            self._end(self._timed, self._clocks())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._monitor, name)

    def _end(self, began: Clocks, ended: Clocks) -> None:
        steps, wall = ended.steps - began.steps, ended.wall - began.wall
        threads, booked = (ended.threads - began.threads) / wall, (ended.booked - began.booked) / wall
        self.turns.append(Turn(self._watched, wall / steps, (ended.cpu - began.cpu) / steps, threads, booked))
        self._next()

    def _next(self) -> None:
        self.close()
        watched = next(self._plan, None)
        if watched is None:
            self._control.stop()
        elif watched:
            self._begin_to_watch()
        self._steps, self._entered, self._timed = 0, time.perf_counter(), None

    def _begin_to_watch(self) -> None:
        assert self._stages is not None
        enter, config = self._watching.enter_context, self._config
        self._others = set(threading.enumerate())
        server = enter(listening(config.watch))
        watch = enter(Watch(self._run, config.watch, server, config.trackers, Control()))
        enter(scraped(str(server.address)))
        watch.observe(self._stages)
        self._watched, self._monitor = True, watch.monitor

    def close(self) -> None:
        self._watched, self._monitor = False, Silence()
        self._watching.close()

    def _clocks(self) -> Clocks:
        if not self._watched:
            return Clocks(self._steps, time.perf_counter(), time.process_time(), 0.0, 0.0)
        exporter = self._monitor.exporter
        booked = sum(exporter.total(WATCH_SECONDS, part) for part in WATCH_PARTS)
        own = sum(map(cpu_seconds, set(threading.enumerate()) - self._others))
        return Clocks(self._steps, time.perf_counter(), time.process_time(), own, booked)


def cpu_seconds(thread: threading.Thread) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) if thread.ident else 0.0


@contextlib.contextmanager
def scraped(address: str) -> Iterator[None]:
    """By a process of its own, as Prometheus is one."""
    with subprocess.Popen([sys.executable, "-c", SCRAPER, address], stderr=subprocess.DEVNULL) as scraper:
        try:
            yield
        finally:
            scraper.kill()


def write_data(folder: Path) -> None:
    """The same conversation over and over, so that no turn has more to do than another."""
    talk = [{"role": "user", "content": "Count to fifty."}, {"role": "assistant", "content": " ".join(map(str, range(1, 51)))}]
    datasets.disable_progress_bars()
    datasets.Dataset.from_list([{"messages": talk}] * 200).save_to_disk(folder)


def config_of(folder: Path, trackers: tuple[str, ...]) -> TrainConfig:
    return TrainConfig(
        target="tiny",
        data=str(folder / "data"),
        runs=str(folder),
        max_steps=10**9,
        trackers=trackers,
        dataset=DatasetConfig(max_length=512),
        batches=BatchesConfig(token_budget=1024, epochs=10**6),
        drafter=DrafterConfig(layers=1, anchors=32),
        checkpoint=CheckpointConfig(every=0),
        evaluate=EvaluateConfig(every=0),
        watch=WatchConfig(port=0, console="plain"),
    )


def train(pairs: int, seconds: float, trackers: tuple[str, ...]) -> list[tuple[Turn, Turn]]:
    """(unwatched, watched), pair by pair, in one training."""
    order = [number % 4 in (1, 2) for number in range(2 * pairs)]  # off on, on off, off on …
    with tempfile.TemporaryDirectory() as folder, console_away():
        write_data(Path(folder, "data"))
        config, control = config_of(Path(folder), trackers), Control()
        with open_run(config, plan := check(config), ["benchmark"]) as run:
            switch = Switch(run, config, control, order, seconds)
            with contextlib.closing(switch):
                run_pipeline(plan, run, cast(Watch, switch), control)
    turns = switch.turns
    return [cast(tuple[Turn, Turn], tuple(sorted(two))) for two in zip(turns[::2], turns[1::2], strict=True)]


@contextlib.contextmanager
def console_away() -> Iterator[None]:
    """What a watched run prints goes where nobody reads it."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


class Estimate(NamedTuple):
    """A median, and between which bounds 95 % of the medians of resampled values lie."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.4f} ({self.low:.4f} to {self.high:.4f})"


def estimate(values: list[float]) -> Estimate:
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return Estimate(statistics.median(values), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)])


def verdict(found: Estimate) -> str:
    if found.low >= LEAST_RATIO:
        return "kept"
    return "NOT kept" if found.high < LEAST_RATIO else "cannot be told for sure (a quieter machine, or more --pairs, would)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="of turns, one watched and one not")
    parser.add_argument("--seconds", type=float, default=5.0, help="that a turn is timed for")
    parser.add_argument("--trackers", nargs="*", default=[], help="wandb, tensorboard: on in the watched turns")
    asked = parser.parse_args()
    if asked.pairs < 1 or asked.seconds <= 0:
        parser.error(f"--pairs must be at least 1 and --seconds above 0, got {asked.pairs} and {asked.seconds:g}")
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"{datetime.date.today()}, {os.cpu_count()} CPU cores, load before: {load}, trackers: {' '.join(asked.trackers) or 'none'}",
        flush=True,
    )
    pairs = train(asked.pairs, asked.seconds, tuple(asked.trackers))
    for number, (off, on) in enumerate(pairs, start=1):
        shown = f"a step {off.wall * 1e3:.2f} ms off, {on.wall * 1e3:.2f} ms on; CPU {off.cpu * 1e3:.2f} and {on.cpu * 1e3:.2f} ms"
        print(f"pair {number}: {shown}; ratios {off.wall / on.wall:.4f} and {off.cpu / on.cpu:.4f}")
    wall, cpu = (estimate([off[field] / on[field] for off, on in pairs]) for field in (1, 2))
    print(f"\nThroughput with everything on, against everything off: {wall} by the wall, {cpu} by CPU time.")
    threads, booked = (statistics.median(getattr(on, field) for _, on in pairs) for field in ("threads", "booked"))
    print(f"The threads that watch took {threads:.2%} of a core, and all of watching booked {booked:.2%}.")
    print(f"At least {LEAST_RATIO} by the wall: {verdict(wall)}.")
    return int(wall.high < LEAST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
