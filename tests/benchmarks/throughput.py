"""How much training slows down when everything watches it: steps a second with all of it on, against all of it off.

`python -m tests.benchmarks.throughput` trains a drafter for the `tiny` target on the CPU, over and over in one process: with
record, metrics, sampler, console and a status server that another process scrapes every second, and with none of these. Each pair
of runs gives two ratios: of the wall time, which is the throughput and as noisy as the machine, and of the CPU time of this
process, which other work on the machine moves less. 1 means that watching costs nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from trainer.config import BatchesConfig, CheckpointConfig, DatasetConfig, DrafterConfig, EvaluateConfig, TrainConfig, WatchConfig
from trainer.control import Control
from trainer.preflight import check
from trainer.run import open_run
from trainer.train import travel
from trainer.watch import Watch, listening

LEAST_RATIO = 0.99
WARM_STEPS = 10  # the queues fill, torch finds its kernels

SCRAPER = """
import sys, time, urllib.request
while True:
    for path in ("/metrics", "/status"):
        urllib.request.urlopen(sys.argv[1] + path, timeout=10).read()
    time.sleep(1)
"""


class Took(NamedTuple):
    """Seconds of a step, by the clock on the wall and as CPU time of the whole process."""

    wall: float
    cpu: float


class Silence:
    """In place of all that is told of a run: takes everything, keeps nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Timed:
    """Passes everything on to what is told of the run, and looks at the clocks at each step."""

    def __init__(self, live: object) -> None:
        self._live = live
        self.at: list[tuple[float, float]] = []

    def stepped(self, *facts: object) -> None:
        self._live.stepped(*facts)  # type: ignore[attr-defined]
        self.at.append((time.perf_counter(), time.process_time()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._live, name)

    def took(self) -> Took:
        (wall, cpu), (last_wall, last_cpu) = self.at[WARM_STEPS], self.at[-1]
        steps = len(self.at) - 1 - WARM_STEPS
        return Took((last_wall - wall) / steps, (last_cpu - cpu) / steps)


def config_of(runs: str, steps: int, trackers: tuple[str, ...]) -> TrainConfig:
    return TrainConfig(
        target="tiny",
        data="demo",
        runs=runs,
        max_steps=steps,
        trackers=trackers,
        dataset=DatasetConfig(max_length=512),
        batches=BatchesConfig(token_budget=1024, epochs=1000),
        drafter=DrafterConfig(layers=1, anchors=32),
        checkpoint=CheckpointConfig(every=0),
        evaluate=EvaluateConfig(every=0),
        watch=WatchConfig(port=0, console="plain"),
    )


def train_unwatched(config: TrainConfig) -> Took:
    timed = Timed(Silence())
    with open_run(config, plan := check(config), ["benchmark"]) as run:
        travel(plan, run, cast(Watch, SimpleNamespace(live=timed, observe=lambda stages: None)), Control())
    return timed.took()


def train_watched(config: TrainConfig) -> Took:
    control = Control()
    with (
        listening(config.watch) as server,
        open_run(config, plan := check(config), ["benchmark"]) as run,
        Watch(run, config.watch, server, config.trackers, control) as watch,
        scraped(str(server.address)),
    ):
        timed = Timed(watch.live)
        watch.finish(travel(plan, run, cast(Watch, SimpleNamespace(live=timed, observe=watch.observe)), control))
    return timed.took()


@contextlib.contextmanager
def scraped(address: str) -> Iterator[None]:
    """By a process of its own, as Prometheus is one."""
    with subprocess.Popen([sys.executable, "-c", SCRAPER, address], stderr=subprocess.DEVNULL) as scraper:
        try:
            yield
        finally:
            scraper.kill()


@contextlib.contextmanager
def console_away() -> Iterator[None]:
    """What a watched run prints goes where nobody reads it."""
    before = sys.stdout
    with Path(os.devnull).open("w") as nowhere:
        sys.stdout = nowhere
        try:
            yield
        finally:
            sys.stdout = before


def pair(steps: int, trackers: tuple[str, ...], *, watched_first: bool) -> tuple[Took, Took]:
    """One run of each kind: (unwatched, watched)."""
    with tempfile.TemporaryDirectory() as runs, console_away():
        config = config_of(runs, steps, trackers)
        if watched_first:
            watched = train_watched(config)
            return train_unwatched(config), watched
        return train_unwatched(config), train_watched(config)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of each run")
    parser.add_argument("--rounds", type=int, default=6, help="pairs of runs")
    parser.add_argument("--trackers", nargs="*", default=[], help="wandb, tensorboard: on in the watched runs")
    asked = parser.parse_args()
    if asked.steps < WARM_STEPS + 2 or asked.rounds < 1:
        parser.error(f"--steps must be at least {WARM_STEPS + 2} and --rounds at least 1, got {asked.steps} and {asked.rounds}")
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"{datetime.date.today()}, {os.cpu_count()} CPU cores, load before: {load}, trackers: {' '.join(asked.trackers) or 'none'}"
    )
    walls, cpus = [], []
    for number in range(asked.rounds):
        off, on = pair(asked.steps, tuple(asked.trackers), watched_first=bool(number % 2))
        walls.append(off.wall / on.wall)
        cpus.append(off.cpu / on.cpu)
        shown = f"a step {off.wall * 1e3:.2f} ms off, {on.wall * 1e3:.2f} ms on; CPU {off.cpu * 1e3:.2f} and {on.cpu * 1e3:.2f} ms"
        print(f"round {number + 1}: {shown}; ratios {walls[-1]:.4f} and {cpus[-1]:.4f}", flush=True)
    print(f"\nThroughput with everything on, against everything off: {spread(walls)} by the wall, {spread(cpus)} by CPU time.")
    kept = statistics.median(walls) >= LEAST_RATIO
    print(f"At least {LEAST_RATIO} at the median by the wall: {'kept' if kept else 'NOT kept'}.")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
