"""The stream behind `GET /events`: one server-sent message for each telemetry tick of the run."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import orjson
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from trainer.monitor.snapshot import LiveRun

STREAMS = 16
_HEARTBEAT_SECONDS = 10.0
_WAIT_SECONDS = 0.5  # how soon a stream notices that the server stops
# Bounds of a message, below 50 KB together: of every list, those that are not long by nature, and every text.
_ITEMS, _CHARACTERS = 64, 300
_SHORTER = {"warnings": slice(-8, None), "notes": slice(16), "devices": slice(16)}
_LEFT_OUT = ("versions", "command")


class Ticks:
    """Makes the message of a tick, once for all streams. `close` ends every stream within half a second."""

    def __init__(
        self, live: LiveRun, spent: Callable[[float], None] = lambda _: None, heartbeat_seconds: float = _HEARTBEAT_SECONDS
    ) -> None:
        self._live, self._spent, self._heartbeat_seconds = live, spent, heartbeat_seconds
        self._lock = threading.Lock()
        self._newest = (-1, b"")
        # Threads of their own: streams that wait for a tick must not use up the pool that answers /status and /metrics.
        self._threads = anyio.CapacityLimiter(2 * STREAMS)
        self._closed = False
        self.open_streams = 0

    def close(self) -> None:
        self._closed = True

    async def messages(self) -> AsyncIterator[bytes]:
        """The newest tick at once, then a message for each tick; a slow reader misses ticks and delays nobody."""
        last, quiet_since = -1, time.monotonic()
        yield b"retry: 2000\n\n"
        while not self._closed:
            tick, message = await anyio.to_thread.run_sync(self._next, last, abandon_on_cancel=True, limiter=self._threads)
            if message:
                last, quiet_since = tick, time.monotonic()
                yield message
            elif time.monotonic() - quiet_since >= self._heartbeat_seconds:
                quiet_since = time.monotonic()
                yield b": heartbeat\n\n"

    def _next(self, last: int) -> tuple[int, bytes]:
        tick = self._live.wait_tick(last, _WAIT_SECONDS)
        if tick == last:
            return tick, b""
        with self._lock:
            if self._newest[0] < tick:
                began = time.thread_time()
                body = orjson.dumps(compact(self._live.status()))
                self._newest = (tick, b"id: %d\ndata: %s\n\n" % (tick, body))
                self._spent(time.thread_time() - began)
            return self._newest


class TickStream(StreamingResponse):
    """One client's stream. It counts itself while it is open; past `STREAMS` of them it answers 503, and `refused` is told."""

    media_type = "text/event-stream"

    def __init__(self, ticks: Ticks, refused: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(ticks.messages())
        self._ticks, self._refused = ticks, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._ticks.open_streams >= STREAMS:
            self._refused("streams")
            sentence = f"{STREAMS} event streams are open, which is the limit; close one, or read /status instead\n"
            await PlainTextResponse(sentence, 503)(scope, receive, send)
            return
        # Here rather than in the generator: one that a vanished client never starts would never give its place back.
        self._ticks.open_streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ticks.open_streams -= 1


def compact(value: Any) -> Any:
    """A status with bounded texts and lists, without `versions` and `command`."""
    if isinstance(value, dict):
        kept = {key: inner for key, inner in value.items() if key not in _LEFT_OUT}
        return {key: compact(inner[_SHORTER[key]] if key in _SHORTER else inner) for key, inner in kept.items()}
    if isinstance(value, list | tuple):
        return [compact(inner) for inner in value[:_ITEMS]]
    return value[:_CHARACTERS] if isinstance(value, str) else value
