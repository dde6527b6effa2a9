"""`GET /events`: one server-sent event per telemetry tick, made once and sent to every open stream."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import orjson
from fastapi import HTTPException
from fastapi.sse import ServerSentEvent

from trainer.monitor.status import StatusSource

MAX_STREAMS = 16
RETRY_MILLISECONDS = 2000
_WAIT_SECONDS = 0.5  # how soon a stream notices that the server stops
# Bounds of an event, below 50 KB together: for every list, for lists that are short by nature, and for every text.
_ITEMS, _CHARACTERS = 64, 300
_SHORTER = {"warnings": slice(-8, None), "notes": slice(16), "devices": slice(16)}
_LEFT_OUT = ("versions", "command")


class TickEvents:
    """The run's ticks as server-sent events. FastAPI encodes them, and adds a comment every 15 s while none comes.

    `on_cpu_seconds` is called with what each event cost, `on_refusal` with the reason when a stream is refused.
    """

    def __init__(self, source: StatusSource, on_cpu_seconds: Callable[[float], None], on_refusal: Callable[[str], None]) -> None:
        self._source, self._on_cpu_seconds, self._on_refusal = source, on_cpu_seconds, on_refusal
        self._lock = threading.Lock()
        self._newest = (-1, ServerSentEvent())
        # A pool of its own: streams that wait for a tick must not use up the threads that answer /status and /metrics.
        # An abandoned wait keeps its thread for up to `_WAIT_SECONDS`, hence twice as many.
        self._threads = anyio.CapacityLimiter(2 * MAX_STREAMS)
        self._closed = False
        self.open_streams = 0

    def close(self) -> None:
        """End every stream within half a second."""
        self._closed = True

    async def limit(self) -> AsyncIterator[None]:
        """Dependency of the route: counts the stream while it is open; raises `HTTPException` 503 beyond `MAX_STREAMS`.

        A dependency rather than part of `stream`: a client that leaves before the first event must free its place too.
        """
        if self.open_streams >= MAX_STREAMS:
            self._on_refusal("streams")
            sentence = f"{MAX_STREAMS} event streams are open, which is the limit; close one, or read /status instead"
            raise HTTPException(503, sentence)
        self.open_streams += 1
        try:
            yield
        finally:
            self.open_streams -= 1

    async def stream(self) -> AsyncIterator[ServerSentEvent]:
        """The newest tick at once, then every tick. A slow reader misses ticks and delays nobody."""
        yield ServerSentEvent(retry=RETRY_MILLISECONDS)
        last = -1
        while not self._closed:
            tick, event = await anyio.to_thread.run_sync(self._wait, last, abandon_on_cancel=True, limiter=self._threads)
            if tick != last:
                last = tick
                yield event

    def _wait(self, last: int) -> tuple[int, ServerSentEvent]:
        """The newest tick and its event; the number is still `last` if none came within `_WAIT_SECONDS`."""
        tick = self._source.wait_tick(last, _WAIT_SECONDS)
        with self._lock:
            if self._newest[0] < tick:
                began = time.thread_time()
                body = orjson.dumps(compact(self._source.status().document())).decode()
                self._newest = (tick, ServerSentEvent(id=str(tick), raw_data=body))
                self._on_cpu_seconds(time.thread_time() - began)
            return self._newest


def compact(value: Any) -> Any:
    """A status with bounded texts and lists, without `versions` and `command`."""
    if isinstance(value, dict):
        kept = {key: inner for key, inner in value.items() if key not in _LEFT_OUT}
        return {key: compact(inner[_SHORTER[key]] if key in _SHORTER else inner) for key, inner in kept.items()}
    if isinstance(value, list | tuple):
        return [compact(inner) for inner in value[:_ITEMS]]
    return value[:_CHARACTERS] if isinstance(value, str) else value
