"""Limits on connections: deadlines for requests and for slow readers, a maximum number, and safe answers to what is not HTTP.

uvicorn waits without end for a request that arrives byte by byte and for a reader that does not read. `Connection` stands between
the socket and uvicorn's protocol, `Connections` between uvicorn and the app; neither touches uvicorn's state (decision 0026).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer.server.middleware import SAFE_HEADERS

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 128
REQUEST_SECONDS = 10.0
"""From a connection's start, or a request's first byte, to the request's last byte."""
REST_SECONDS = 2.0
"""For the rest of a request that was answered before all of it had arrived."""
READ_SECONDS = 30.0
"""How long a client may take nothing of an answer that waits for it."""
MAX_HEAD_BYTES = 16_384
"""For the request line and the headers together."""

Address = tuple[str, int]


class Connections:
    """ASGI middleware that tells each open connection when its requests begin and end. Used by the server's event loop alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: dict[Address, Connection] = {}

    def in_front_of(self, http: Callable[..., asyncio.Protocol]) -> type[asyncio.Protocol]:
        """A protocol for uvicorn in place of `http`, its own, which it wraps."""
        return cast(type[asyncio.Protocol], functools.partial(Connection, self._open, http))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = self._open.get(tuple(scope.get("client") or ()))
        if connection is None or connection.refused:  # it is gone, or its body was broken and is answered already
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        unread = any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])

        async def receive_noting() -> Message:
            nonlocal unread
            message = await receive()
            if unread and not message.get("more_body"):
                unread = False
                connection.body_ended()
            return message

        connection.request_began(with_body=unread)
        try:
            await self._app(scope, receive_noting, send)
        finally:
            connection.request_ended(unread=unread)


class Connection(asyncio.Protocol):
    """One connection, in front of uvicorn's protocol for it."""

    def __init__(self, open_connections: dict[Address, Connection], http: Callable[..., asyncio.Protocol], **named: Any) -> None:
        self.refused = False
        """Whether a refusal was sent, after which the connection closes."""
        self._open, self._http = open_connections, http(**named)
        self._loop = asyncio.get_running_loop()
        self._head = bytearray()  # what has arrived of a request, up to one byte too many
        self._requests = 0  # that the app is answering
        self._more_arrived = False  # behind the request that the app is answering
        self._heard = time.monotonic()
        self._request_deadline: asyncio.TimerHandle | None = None
        self._read_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._address: Address = (transport.get_extra_info("peername") or ("", 0))[:2]
        self._open[self._address] = self
        self._expect_request(REQUEST_SECONDS)
        self._http.connection_made(cast(asyncio.Transport, _Outgoing(self._transport, self)))
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._open.get(self._address) is self:
            del self._open[self._address]
        self._forget_request()
        self._forget_reader()
        self._http.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        if self._requests:
            self._more_arrived = True
        else:
            self._head += data[: MAX_HEAD_BYTES + 1 - len(self._head)]
            self._expect_request(REQUEST_SECONDS)
        try:
            self._http.data_received(data)
        except Exception as error:  # in the middle of an answer uvicorn cannot refuse what follows
            log.debug("closing a connection: %s", error)
            self._transport.close()

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def pause_writing(self) -> None:
        self._read_deadline = self._loop.call_later(READ_SECONDS, self._transport.abort)
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._forget_reader()
        self._http.resume_writing()

    def request_began(self, *, with_body: bool) -> None:
        """The head has arrived and the app has the request."""
        self._requests += 1
        self._head.clear()
        self._more_arrived = False
        if with_body:
            self._expect_request(REQUEST_SECONDS)
        else:
            self._forget_request()

    def body_ended(self) -> None:
        """The request has arrived whole."""
        self._more_arrived = False
        self._forget_request()

    def request_ended(self, *, unread: bool) -> None:
        """The app has answered; `unread` if it has not seen the end of the body."""
        self._requests -= 1
        self._heard = time.monotonic()
        self._forget_request()
        if unread or self._more_arrived:
            self._expect_request(REST_SECONDS)

    @property
    def is_answering(self) -> bool:
        return self._requests > 0

    def refuse(self) -> None:
        """Answer what is not an HTTP request, in place of uvicorn, which then closes the connection."""
        if self.refused:
            return
        self.refused = True
        status, sentence = HTTPStatus.BAD_REQUEST, "this is no HTTP request"
        if len(self._head) > MAX_HEAD_BYTES and b"\r\n\r\n" not in self._head:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            sentence = f"the request line and headers are above {MAX_HEAD_BYTES} bytes"
        body = f"{sentence}\n"
        headers = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), "connection": "close"}
        lines = [f"{name}: {value}" for name, value in {**headers, **SAFE_HEADERS}.items()]
        self._transport.write("\r\n".join([f"HTTP/1.1 {status} {status.phrase}", *lines, "", body]).encode())

    def _expect_request(self, seconds: float) -> None:
        """Abort the connection after `seconds`, or at the deadline that is set already."""
        if self._request_deadline is None:
            self._request_deadline = self._loop.call_later(seconds, self._transport.abort)

    def _forget_request(self) -> None:
        if self._request_deadline is not None:
            self._request_deadline.cancel()
            self._request_deadline = None

    def _forget_reader(self) -> None:
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None

    def _make_room(self) -> None:
        """Beyond the maximum, end the connection that has been silent longest; the new one if all others wait for answers."""
        others = [other for other in self._open.values() if not other._transport.is_closing()]
        if len(others) > MAX_CONNECTIONS:
            silent = [other for other in others if other is not self and not other.is_answering]
            min(silent, key=lambda other: other._heard, default=self)._transport.abort()


class _Outgoing:
    """The transport as uvicorn has it. What uvicorn writes while the app has no request is a refusal, for which ours is sent."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport, self._connection = transport, connection

    def write(self, data: bytes) -> None:
        if self._connection.is_answering:
            self._transport.write(data)
        else:
            self._connection.refuse()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
