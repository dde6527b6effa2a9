"""Serves the app with uvicorn, on a thread and an event loop of its own.

If the server dies, that is logged once and training goes on.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading

import uvicorn
from fastapi import FastAPI

from trainer.errors import ConfigError
from trainer.server.connections import MAX_HEAD_BYTES, Connections
from trainer.server.events import TickEvents

log = logging.getLogger(__name__)

_STOP_SECONDS = 2.0


class StatusServer:
    """`bind` first, before anything is loaded; then `start`; `stop` at the end."""

    def __init__(self, sock: socket.socket | None, token: bytes | None = None) -> None:
        self._socket = sock
        self._events: TickEvents | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.token = token
        """What a client has to send to control the run; None if no client may."""
        self.address = None if sock is None else _url(sock)
        """Such as `http://127.0.0.1:9400`, or with 0.0.0.0 if it listens on every address; None if nothing is served."""

    @staticmethod
    def bind(host: str, port: int) -> socket.socket | None:
        """A listening socket; None for port -1, which serves nothing. Raises `ConfigError` if the port cannot be opened."""
        if port == -1:
            return None
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            sock = socket.create_server(address[:2], family=family, backlog=128)
            # Each connection inherits it; asyncio sets it only where a socket names its protocol, and accepted ones do not.
            # Without it the second packet of a small answer waits 40 ms for the client to acknowledge the first.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                way_out = "choose another with --watch.port, or 0 for any free one"
                raise ConfigError(f"port {port} on {host} is in use: another run or program listens there; {way_out}") from None
            # create_server adds its own words to `strerror`; a failed look-up of the host has no errno of the system.
            reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
            raise ConfigError(f"port {port} on {host} cannot be opened: {reason}; change --watch.host or --watch.port") from None

    def start(self, app: FastAPI) -> None:
        """Answer requests from now on. Does nothing without a socket."""
        if self._socket is None:
            return
        self._events = app.state.events
        # uvicorn's own log is silent: `SafeResponses` logs failures. Off the main thread uvicorn installs no signal handlers.
        # X-Forwarded-For is ignored: a client that wrote another address into each request would pass every rate limit.
        connections = Connections(app)
        config = uvicorn.Config(
            connections, http="h11", ws="none", lifespan="off", log_config=None, log_level=logging.CRITICAL, access_log=False,
            server_header=False, proxy_headers=False, timeout_graceful_shutdown=1, h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )  # fmt: skip
        config.load()
        config.http_protocol_class = connections.in_front_of(config.http_protocol_class)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, args=(self._server, self._socket), name="status", daemon=True)
        self._thread.start()

    def _serve(self, server: uvicorn.Server, sock: socket.socket) -> None:
        try:
            server.run(sockets=[sock])
        except BaseException as error:  # uvicorn exits by SystemExit
            log.warning("the status server at %s has died, training goes on: %s: %s", self.address, type(error).__name__, error)

    def stop(self) -> None:
        """End every answer and the thread, within about a second. May be called twice, or without `start`."""
        if self._events is not None:
            self._events.close()
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(_STOP_SECONDS)
        if self._socket is not None:
            self._socket.close()


def on_this_machine(address: str) -> str:
    """An address as a browser on this machine opens it: the loopback address in place of "every address"."""
    return address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if sock.family == socket.AF_INET6 else f"http://{host}:{port}"
