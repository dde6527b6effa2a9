"""What one record call costs the thread that makes it: ours beside a plain gauge, and beside other trackers.

`python -m tests.benchmarks.watching` (or `make bench`) prints the table of docs/watching.md. Each tracker runs in a process and an
empty folder of its own; its calls take turns with five `Gauge.set` of prometheus_client, so that both meet the same noise, and the
ratio is that of the two medians. Beside it 0, 1 or 3 threads of pure Python keep the interpreter busy, as tokenising threads do.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.lines import step_of

ROOT = Path(__file__).parent.parent.parent
BENCH_SITE = ROOT / ".venv" / "bench"  # what only this benchmark needs (Makefile)
NAMES = ("loss", "learning_rate", "grad_norm", "acceptance", "tokens")
BUSY = (0, 1, 3)
PERIOD_SECONDS = 0.01
MOST_TIMES_A_GAUGE, MOST_P99_US = 5.0, 1000.0

Call = Callable[[int, dict[str, float]], object]


class Cell(NamedTuple):
    """Microseconds of a call, and of five `Gauge.set` that took turns with it."""

    median: float
    p99: float
    gauge_median: float

    @property
    def ratio(self) -> float:
        return self.median / self.gauge_median


# The trackers: each opens what it needs in the folder it stands in, and yields one call of 5 scalars.


@contextmanager
def five_gauges(prefix: str = "") -> Iterator[Call]:
    from prometheus_client import CollectorRegistry, Gauge

    registry = CollectorRegistry()
    first, second, third, fourth, fifth = (Gauge(prefix + name, name, registry=registry) for name in NAMES)

    def call(step: int, values: dict[str, float]) -> None:
        first.set(values["loss"])
        second.set(values["learning_rate"])
        third.set(values["grad_norm"])
        fourth.set(values["acceptance"])
        fifth.set(values["tokens"])

    yield call


@contextmanager
def a_deque() -> Iterator[Call]:
    waiting: deque[tuple[int, dict[str, float]]] = deque(maxlen=10_000)
    yield lambda step, values: waiting.append((step, values))


@contextmanager
def json_lines() -> Iterator[Call]:
    """A file, written by the caller, a line at a time: what is usually done by hand."""
    with Path("steps.jsonl").open("w", buffering=1, encoding="utf-8") as file:
        yield lambda step, values: file.write(json.dumps({"step": step, **values}) + "\n")


@contextmanager
def our_record() -> Iterator[Call]:
    """Steps into the run record: its writer's thread runs beside it."""
    from trainer.record.writer import RunRecord

    record, lines = RunRecord(Path.cwd(), 0), [step_of(step + 1) for step in range(1000)]
    yield lambda step, values: record.step(lines[step % 1000], 1.0)
    record.close()


@contextmanager
def our_step() -> Iterator[Call]:
    """All that a training step says: record, step time, warnings, verdict; more than five scalars."""
    from prometheus_client import CollectorRegistry

    from trainer.metrics.exporter import Exporter
    from trainer.monitor.monitor import Monitor
    from trainer.record.writer import RunRecord

    record = RunRecord(Path.cwd(), 0)
    monitor = Monitor({"id": "one", "max_steps": 10**9}, Exporter(CollectorRegistry(), "one"), record)
    lines = [step_of(step + 1, position_accuracy=(0.5,) * 15) for step in range(1000)]
    yield lambda step, values: monitor.step(lines[step % 1000])
    record.close()


@contextmanager
def tensorboard() -> Iterator[Call]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(".")

    def call(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    yield call
    writer.close()


@contextmanager
def trackio() -> Iterator[Call]:
    import trackio as library

    library.init(project="b")
    yield lambda step, values: library.log(values, step=step)
    library.finish()


@contextmanager
def wandb() -> Iterator[Call]:
    import wandb as library

    run = library.init(project="b", settings=library.Settings(console="off", x_disable_meta=True))
    yield lambda step, values: run.log(values, step=step)
    run.finish()


TRACKERS = {
    "prometheus_client, five Gauge.set": five_gauges,
    "deque, one append": a_deque,
    "ours: five scalars into the record": our_record,
    "ours: all of a training step": our_step,
    "JSON lines, flushed by the caller": json_lines,
    "trackio": trackio,
    "TensorBoard (torch's SummaryWriter)": tensorboard,
    "wandb, offline": wandb,
}


def measure(call: Call, gauges: Call, calls: int, period: float) -> Cell:
    took: tuple[list[int], list[int]] = ([], [])
    values = dict.fromkeys(NAMES, 0.5)
    clock = time.perf_counter_ns
    for step in range(calls):
        for action, times in ((call, took[0]), (gauges, took[1])):
            given = {**values, "loss": step * 0.1}
            before = clock()
            action(step, given)
            times.append(clock() - before)
            if period:
                time.sleep(period)
    ours, gauge = sorted(took[0]), sorted(took[1])
    return Cell(
        median=statistics.median(ours) / 1e3,
        p99=ours[int(0.99 * len(ours))] / 1e3,
        gauge_median=statistics.median(gauge) / 1e3,
    )


def keep_busy(threads: int) -> None:
    def spin() -> None:
        while True:
            sum(range(500))

    for _ in range(threads):
        threading.Thread(target=spin, daemon=True).start()


def one(tracker: str, busy: int, calls: int, period: float) -> Cell:
    """Measure in this process; busy threads begin once the tracker is ready."""
    with TRACKERS[tracker]() as call, five_gauges("own_") as gauges:
        measure(call, gauges, 50, 0)  # warm
        keep_busy(busy)
        return measure(call, gauges, calls, period)


def in_a_process(tracker: str, busy: int, calls: int, period: float) -> Cell | str:
    """The same in a process and an empty folder of its own; a reason where it cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        paths = os.pathsep.join([str(ROOT), str(BENCH_SITE), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths, "HOME": folder, "TRACKIO_DIR": f"{folder}/trackio"}
        environment |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "HF_HUB_OFFLINE": "1"}
        Path(folder, "empty").mkdir()
        words = ["--one", tracker, "--busy", str(busy), "--calls", str(calls), "--period", str(period)]
        command = [sys.executable, "-P", "-m", "tests.benchmarks.watching", *words]
        ran = subprocess.run(command, cwd=f"{folder}/empty", env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        return (ran.stderr.strip().splitlines() or ["no reason given"])[-1]
    return Cell(*json.loads(ran.stdout.splitlines()[-1]))


def best(cells: list[Cell | str]) -> Cell | str:
    """The least disturbed one."""
    measured = [cell for cell in cells if isinstance(cell, Cell)]
    return min(measured, key=lambda cell: cell.median) if measured else cells[0]


def time_of(us: float) -> str:
    return f"{us / 1000:.3g} ms" if us >= 1000 else f"{us:.3g} µs"


def shown(cell: Cell | str) -> str:
    return f"{time_of(cell.median)} / {time_of(cell.p99)} / {cell.ratio:.2g}x" if isinstance(cell, Cell) else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300, help="calls of each kind, for each cell")
    parser.add_argument("--rounds", type=int, default=2, help="the best of so many is printed")
    parser.add_argument("--only", help="trackers with this word in their name")
    parser.add_argument("--one", choices=TRACKERS, help=argparse.SUPPRESS)
    parser.add_argument("--busy", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--period", type=float, default=0.0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one(asked.one, asked.busy, asked.calls, asked.period)), flush=True)
        os._exit(0)  # busy threads end for nothing else
    trackers = [name for name in TRACKERS if not asked.only or asked.only in name]
    return table(trackers, asked.calls, asked.rounds)


def table(trackers: list[str], calls: int, rounds: int) -> int:
    """Print it; 1 where ours is dearer than it may be."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{datetime.date.today()}, {os.cpu_count()} CPU cores, Python {platform.python_version()}, load before: {load}")
    print("Each cell: median / p99 of a call, and its median as a multiple of five Gauge.set that took turns with it.\n")
    print(f"| |back to back|{'|'.join(f'100 a second, {busy} busy threads' for busy in BUSY)}|")
    print(f"|---|{'---|' * (1 + len(BUSY))}")
    kept = True
    for name in trackers:
        ways = [(0, 10 * calls, 0.0), *((busy, calls, PERIOD_SECONDS) for busy in BUSY)]
        cells = [best([in_a_process(name, *way) for _ in range(rounds)]) for way in ways]
        print(f"|{name}|{'|'.join(map(shown, cells))}|", flush=True)
        for reason in {cell for cell in cells if isinstance(cell, str)}:
            print(f"{name}: {reason}", file=sys.stderr)
        if name.startswith("ours"):
            kept &= all(isinstance(cell, Cell) and cell.ratio <= MOST_TIMES_A_GAUGE and cell.p99 <= MOST_P99_US for cell in cells)
    verdict = "kept" if kept else "NOT kept"
    print(f"\nOurs at most {MOST_TIMES_A_GAUGE:g} x five Gauge.set at the median, and {MOST_P99_US / 1000:g} ms at p99: {verdict}.")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
