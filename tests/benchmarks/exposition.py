"""What `/metrics` costs: `python -m tests.benchmarks.exposition` counts its series, times a scrape, and asks `/healthz` meanwhile.

A scrape is timed in CPU and in wall time, beside prometheus_client's own text of as many plain gauges in the same process, since
times depend on the machine and their ratio hardly does. `/healthz` is asked from another process, every 20 ms, with and without
ten scrapes a second.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from tests.support.full_rank import BLOCK_SIZE, full_rank
from trainer.monitor.monitor import Monitor
from trainer.monitor.status import MonitorStatus
from trainer.server.app import create_app
from trainer.server.server import StatusServer

# As Prometheus 3 sends it.
ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
MOST_SERIES, MOST_SECONDS = 300, 0.01
SCRAPES_A_SECOND = 10


class Spent(NamedTuple):
    """Seconds: the median and the 99th percentile."""

    median: float
    p99: float


class Cost(NamedTuple):
    series: int
    cpu: Spent
    wall: Spent
    plain_cpu: Spent
    """Of as many plain gauges."""


def series_of(body: bytes) -> int:
    return sum(not line.startswith(b"#") for line in body.splitlines())


def scrape(monitor: Monitor) -> bytes:
    return monitor.exporter.exposition(ACCEPT)[0]


def cost(folder: Path, gpus: int, times: int) -> Cost:
    """Of one scrape of a full rank."""
    with full_rank(folder, gpus) as monitor:
        series = series_of(scrape(monitor))
        plain = plain_gauges(series)
        # By turns, so that a machine that drifts favours neither.
        ours, theirs = [], []
        for _ in range(times):
            ours.append(spent(lambda: scrape(monitor)))
            theirs.append(spent(lambda: generate_latest(plain)))
    cpu, wall = (summary([one[place] for one in ours]) for place in (0, 1))
    return Cost(series, cpu, wall, summary([one[0] for one in theirs]))


def plain_gauges(count: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    for number in range(count):
        Gauge(f"plain_{number}", "A plain gauge, as a program without labels has it.", registry=registry).set(number)
    return registry


def spent(call: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds of this thread, and seconds on the wall."""
    cpu, wall = time.thread_time(), time.perf_counter()
    call()
    return time.thread_time() - cpu, time.perf_counter() - wall


def summary(times: list[float]) -> Spent:
    return Spent(statistics.median(times), statistics.quantiles(times, n=100)[-1])


@contextmanager
def served(monitor: Monitor) -> Iterator[str]:
    """`host:port` of a status server for this rank."""
    server = StatusServer(StatusServer.bind("127.0.0.1", 0))
    server.start(create_app(MonitorStatus(monitor), monitor.exporter.exposition))
    assert server.address is not None
    try:
        yield server.address.removeprefix("http://")
    finally:
        server.stop()


def healthz(address: str, scrapes_a_second: int, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds that each answer of `/healthz` took, and each of `/metrics` beside it."""
    over = threading.Event()
    scrapes: list[float] = []
    scraper = threading.Thread(target=ask, args=(address, "/metrics", 1 / max(1, scrapes_a_second), over, scrapes))
    if scrapes_a_second:
        scraper.start()
    answers: list[float] = []
    timer = threading.Timer(seconds, over.set)
    timer.start()
    ask(address, "/healthz", 0.02, over, answers)
    if scrapes_a_second:
        scraper.join()
    return answers, scrapes


def ask(address: str, path: str, every: float, over: threading.Event, times: list[float]) -> None:
    connection = http.client.HTTPConnection(address, timeout=10)
    while not over.wait(every):
        began = time.perf_counter()
        connection.request("GET", path, headers={"accept": ACCEPT})
        answer = connection.getresponse()
        answer.read()
        times.append(time.perf_counter() - began)
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}")
    connection.close()


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=300, help="scrapes that are timed")
    parser.add_argument("--seconds", type=float, default=10.0, help="that /healthz is asked for")
    args = parser.parse_args()
    print(f"One rank at block size {BLOCK_SIZE}; budget: {MOST_SERIES} series, {milliseconds(MOST_SECONDS)} a scrape\n")
    print("| GPUs | series | scrape, CPU: median | p99 | wall: median | p99 | CPU, to as many plain gauges |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for gpus in (0, 1, 2, 8):
        with tempfile.TemporaryDirectory() as folder:
            found = cost(Path(folder), gpus, args.times)
        shown = " | ".join(milliseconds(value) for value in (*found.cpu, *found.wall))
        print(f"| {gpus} | {found.series} | {shown} | {found.cpu.median / found.plain_cpu.median:.2f} |", flush=True)
    print("\n| `/healthz`, asked every 20 ms | median | p99 | slowest | a scrape beside it |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder, full_rank(Path(folder), 2) as monitor, served(monitor) as address:
        for scrapes in (0, SCRAPES_A_SECOND):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as elsewhere:
                answers, beside = elsewhere.submit(healthz, address, scrapes, args.seconds).result()
            row = [*map(milliseconds, (*summary(answers), max(answers))), milliseconds(statistics.median(beside)) if beside else ""]
            print(f"| {scrapes} scrapes a second | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
