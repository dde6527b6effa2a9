"""Connections to the status server: none may take its time for ever, and those that ask nothing make room for others.

uvicorn itself waits without an end for a request that comes byte by byte and for a reader that does not read.
"""

from __future__ import annotations

import asyncio
import sys
import time
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from trainer.server.middleware import SAFE_HEADERS

MOST_CONNECTIONS = 128
REQUEST_SECONDS = 10.0
"""From a connection's first moment, or a request's first byte, to the request's last byte."""
REST_SECONDS = 2.0
"""For the rest of a body whose answer is out already."""
READ_SECONDS = 30.0
"""In which a client must take something of an answer that it holds up."""
MOST_HEAD_BYTES = 16_384
"""Of the request line and the headers together."""


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 on one connection. Used by the server's event loop alone."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._request_deadline: asyncio.TimerHandle | None = None
        self._read_deadline: asyncio.TimerHandle | None = None
        self._heard = time.monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_request(REQUEST_SECONDS)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_request()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        super().data_received(data)
        self._watch_request(REQUEST_SECONDS)

    def on_response_complete(self) -> None:
        self._heard = time.monotonic()
        super().on_response_complete()
        self._forget_request()
        self._watch_request(REST_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_deadline = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Instead of uvicorn's: with the safe headers, with 431 where the head is too long, and without failing in mid-answer."""
        if self.conn.our_state is h11.IDLE:
            error = sys.exc_info()[1]
            status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
            sentence = (
                f"the request line and headers are above {MOST_HEAD_BYTES} bytes" if status == 431 else "this is no HTTP request"
            )
            headers = {"content-type": "text/plain; charset=utf-8", "connection": "close", **SAFE_HEADERS}
            events = (
                h11.Response(status_code=status, headers=list(headers.items()), reason=HTTPStatus(status).phrase),
                h11.Data(data=sentence.encode() + b"\n"),
                h11.EndOfMessage(),
            )
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()

    def _watch_request(self, seconds: float) -> None:
        """Give a request that has begun until then to be whole; one that is whole has no deadline."""
        begun = self.conn.their_state is h11.SEND_BODY or (self.conn.their_state is h11.IDLE and self.conn.trailing_data[0])
        if begun:
            self._expect_request(seconds)
        else:
            self._forget_request()

    def _expect_request(self, seconds: float) -> None:
        if self._request_deadline is None:
            self._request_deadline = self.loop.call_later(seconds, self.transport.abort)

    def _forget_request(self) -> None:
        if self._request_deadline is not None:
            self._request_deadline.cancel()
            self._request_deadline = None

    def _make_room(self) -> None:
        """Past the limit the connection that has been silent longest goes; the newest does where all wait for their answers."""
        others = [other for other in self.connections if isinstance(other, BoundedProtocol) and not other.transport.is_closing()]
        if len(others) > MOST_CONNECTIONS:
            silent = [other for other in others if other is not self and (other.cycle is None or other.cycle.response_complete)]
            min(silent, key=lambda other: other._heard, default=self).transport.abort()
