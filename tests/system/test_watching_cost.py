"""What watching costs the drafter's thread at each step: no file, no socket, no waiting, and little more than five gauges."""

import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from tests.benchmarks import throughput
from tests.support.lines import step_of
from tests.support.sources import ROOT
from tests.support.threads import Worker
from trainer.metrics.catalogue.watching import WATCH_SECONDS
from trainer.metrics.exporter import Exporter
from trainer.monitor.monitor import Monitor
from trainer.record.writer import RecordLogHandler, RunRecord

MOST_TIMES_FIVE_GAUGES = 5.0
MOST_SECONDS_P99 = 1e-3
STEPS = [step_of(step) for step in range(1, 201)]

_listening: list[Any] = []  # whether the hook below listens: the thread, and what it was told
_heard: list[str] = []


def _hear(event: str, _: Any) -> None:
    """Python tells of every file that is opened, every socket, every process; a hook cannot be removed, so that this one sleeps."""
    if _listening and threading.get_ident() == _listening[0]:
        _heard.append(event)


sys.addaudithook(_hear)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def monitor(tmp_path: Path, registry: CollectorRegistry) -> Iterator[Monitor]:
    """After its first step; its writer sleeps, so that only the caller's own work is measured."""
    record = RunRecord(tmp_path, 0, flush_seconds=1000, waiting_lines=500)
    monitor = Monitor({"id": "one", "max_steps": 1000}, Exporter(registry, "one"), record)
    monitor.step(STEPS[0])
    yield monitor
    record.close()


def least_seconds(calls: Callable[[], object], batches: int = 60) -> float:
    """CPU time that this thread needs for `calls`, on a machine that others use too: the least of many."""
    took = []
    for _ in range(batches):
        before = time.thread_time()
        calls()
        took.append(time.thread_time() - before)
    return min(took)


def take_all(monitor: Monitor) -> None:
    for facts in STEPS:
        monitor.step(facts)


def test_a_step_costs_at_most_as_much_as_25_gauges(monitor: Monitor, registry: CollectorRegistry) -> None:
    """Five times what five gauges cost, which is what other trackers are measured against (docs/watching.md)."""
    one, two, three, four, five = (Gauge(name, name, registry=registry) for name in ("one", "two", "three", "four", "five"))

    def set_gauges() -> None:
        for _ in STEPS:
            one.set(1.0)
            two.set(1.0)
            three.set(1.0)
            four.set(1.0)
            five.set(1.0)

    ratios = []
    for _ in range(5):  # until one was measured in peace
        ratios.append(least_seconds(lambda: take_all(monitor)) / least_seconds(set_gauges))
        if ratios[-1] <= MOST_TIMES_FIVE_GAUGES:
            break
    assert min(ratios) <= MOST_TIMES_FIVE_GAUGES


def test_no_step_in_a_hundred_takes_a_millisecond(monitor: Monitor) -> None:
    took = []
    for facts in STEPS * 10:
        before = time.thread_time()
        monitor.step(facts)
        took.append(time.thread_time() - before)
    assert sorted(took)[int(0.99 * len(took))] <= MOST_SECONDS_P99


def test_a_step_opens_no_file_and_no_socket(monitor: Monitor) -> None:
    """Neither does one that is left out, which is a warning in the log as well."""
    handler = RecordLogHandler(monitor.record)
    logging.getLogger("trainer").addHandler(handler)
    monitor.step(STEPS[1], "non_finite_loss")  # what is done once, such as looking up the time zone
    _heard.clear()
    _listening.append(threading.get_ident())
    try:
        take_all(monitor)
        monitor.step(STEPS[2], "non_finite_loss")
    finally:
        _listening.clear()
        logging.getLogger("trainer").removeHandler(handler)
    assert [event for event in _heard if event.partition(".")[0] not in ("sys", "object")] == []  # looked at itself


@pytest.mark.skipif(not Path("/proc/thread-self/io").exists(), reason="only Linux counts a thread's writes")
def test_a_step_writes_nothing(monitor: Monitor) -> None:
    """Not even to a file that is open already, and not once in a while when a buffer is full."""

    def writes() -> int:
        (line,) = (line for line in Path("/proc/thread-self/io").read_text().splitlines() if line.startswith("syscw"))
        return int(line.split()[1])

    before = writes()
    for _ in range(20):
        take_all(monitor)
    assert writes() - before == 0


def test_a_step_waits_for_no_reader(monitor: Monitor, registry: CollectorRegistry) -> None:
    """Every lock that a scrape, a tick, a console or a request could hold is held while it is taken."""
    with monitor._ticked, registry._lock:
        Worker(lambda _: take_all(monitor)).ended()
    assert monitor.state.step == STEPS[-1].step


def test_its_cost_is_told(monitor: Monitor) -> None:
    before = monitor.exporter.total(WATCH_SECONDS, "record")
    took = -time.perf_counter()
    take_all(monitor)
    took += time.perf_counter()
    told = monitor.exporter.total(WATCH_SECONDS, "record") - before
    assert 0.5 * took < told <= took


def benchmark(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_the_benchmark_of_a_call_runs() -> None:
    ran = benchmark("watching", "--calls", "3", "--rounds", "1", "--only", "scalars")
    assert ran.returncode in (0, 1), ran.stderr  # what it finds on a busy machine says nothing
    rows = [line for line in ran.stdout.splitlines() if line.startswith("|ours: five scalars into the record|")]
    assert rows[0].count("µs") >= 4
    assert "five Gauge.set at the median" in ran.stdout


@pytest.mark.slow
def test_the_benchmark_of_throughput_runs() -> None:
    ran = benchmark("throughput", "--pairs", "1", "--seconds", "1", "--trackers", "tensorboard")
    assert ran.returncode in (0, 1), ran.stderr
    assert ran.stdout.count("; ratios ") == 1
    assert "Throughput with everything on, against everything off: " in ran.stdout
    (shares,) = re.findall(r"^The threads that watch took ([\d.]+)% of a core, .* booked ([\d.]+)%\.$", ran.stdout, re.MULTILINE)
    assert min(map(float, shares)) > 0, "the watched turns are watched"


def test_the_benchmark_says_kept_only_where_it_is_sure() -> None:
    assert throughput.verdict(throughput.estimate([0.999, 1.001, 0.998, 1.002] * 5)) == "kept"
    assert throughput.verdict(throughput.estimate([0.95, 0.96, 0.94] * 5)) == "NOT kept"
    noisy = throughput.estimate([0.7, 1.4, 0.99, 1.01, 0.8, 1.2])
    assert noisy.low < noisy.median < noisy.high
    assert throughput.verdict(noisy).startswith("cannot be told")
