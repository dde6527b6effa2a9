"""For tests of threads: one that keeps its outcome, waiting for something to come true, a clock set by hand."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainer.pipeline.meter import Meter


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Worker(threading.Thread):
    """Runs `call` with a meter of its own; keeps what it returned or raised."""

    def __init__(self, call: Callable[[Meter], object]) -> None:
        super().__init__(daemon=True)
        self.meter = Meter()
        self.call = call
        self.result: object = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.call(self.meter)
        except BaseException as error:
            self.result = error

    def waits(self, state: str) -> None:
        eventually(lambda: self.meter.read().state == state)

    def ended(self, within: float = 5.0) -> object:
        self.join(within)
        assert not self.is_alive(), "still waiting"
        return self.result


def eventually(condition: Callable[[], bool], within: float = 5.0, every: float = 0.001) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(every)


@contextmanager
def restless() -> Iterator[None]:
    """Threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
