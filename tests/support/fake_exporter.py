"""A trainer that is none: it serves what a machine with two GPUs and other trackers would, in the shape of the catalogue."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product

from trainer.metrics.catalogue.index import CATALOGUE
from trainer.metrics.catalogue.metric import Metric
from trainer.metrics.catalogue.run import RUN_INFO, STATE

RUN_ID = "on-gpus"
# Of labels that can say anything.
WORDS = {
    "gpu": ("0", "1"),
    "uuid": ("GPU-1f2e",),
    "name": ("NVIDIA H200",),
    "driver": ("580.95.05",),
    "target": ("tiny",),
    "version": ("0.1.0",),
    "git_commit": ("5988d45",),
    "run_id": (RUN_ID,),
}
SERVED = tuple(
    metric
    for metric in CATALOGUE
    if "gpu" in metric.labels or metric.name.startswith(("gpu_", "tracker_")) or metric in (RUN_INFO, STATE)
)


def exposition(elapsed: float) -> str:
    """Text for Prometheus; counters rise with `elapsed`, in seconds."""
    return "".join(line for metric in SERVED for line in _lines(metric, elapsed))


def _lines(metric: Metric, elapsed: float) -> Iterator[str]:
    known = metric.known_values
    yield f"# TYPE {metric.full_name} {'counter' if metric.kind == 'counter' else 'gauge'}\n"
    for combination in product(*(known.get(label) or WORDS[label] for label in metric.label_names)):
        labels = ", ".join(f'{label}="{value}"' for label, value in zip(metric.label_names, combination, strict=True))
        yield f"{metric.full_name}{{{labels}}} {_value(metric, elapsed)}\n"


def _value(metric: Metric, elapsed: float) -> float:
    if metric.kind == "counter":
        return elapsed
    if metric.kind == "info" or metric.name in ("gpu_sampler_up", "tracker_up", "gpu_throttled"):
        return 1
    if metric.name.endswith("_timestamp_seconds"):
        return time.time()
    return 0.5 if metric.unit == "ratio" else 79


class _Handler(BaseHTTPRequestHandler):
    started = time.monotonic()

    def do_GET(self) -> None:
        body = exposition(time.monotonic() - self.started).encode()
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served() -> Iterator[str]:
    """The exporter at a free port; gives `host:port`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
