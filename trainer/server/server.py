"""An app and an address in, answers over HTTP out, from a thread and an event loop of their own.

Whatever breaks in it is logged once and training goes on.
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
from trainer.server.connections import MOST_HEAD_BYTES, BoundedProtocol
from trainer.server.events import Ticks

log = logging.getLogger(__name__)

_STOP_SECONDS = 2.0


class StatusServer:
    """Serves an app on a thread of its own: `bind` first, before anything is loaded; then `start`; `stop` at the end."""

    def __init__(self, sock: socket.socket | None, token: bytes | None = None) -> None:
        self._socket = sock
        self._ticks: Ticks | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.token = token
        """What whoever controls the run has to send; None where nobody may."""
        self.address = None if sock is None else _url(sock)
        """As in `http://127.0.0.1:9400`, with 0.0.0.0 where it listens on every address; None where nothing is served."""

    @staticmethod
    def bind(host: str, port: int) -> socket.socket | None:
        """A listening socket; None for port -1, which serves nothing. Raises `ConfigError` where it can't be had."""
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
            # Not `strerror` for both: socket.create_server adds its own words to it, a failed look-up has no errno of the system.
            reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
            raise ConfigError(f"port {port} on {host} can't be opened: {reason}; change --watch.host or --watch.port") from None

    def start(self, app: FastAPI) -> None:
        """Answer from now on. Does nothing without a socket."""
        if self._socket is None:
            return
        self._ticks = app.state.ticks
        # uvicorn's own log is silent, Doorway speaks for it. Off the main thread it installs no signal handlers. X-Forwarded-For is
        # not believed: whoever wrote another address into each request would pass every rate limit.
        config = uvicorn.Config(
            app, http=BoundedProtocol, ws="none", lifespan="off", log_config=None, log_level=logging.CRITICAL, access_log=False,
            server_header=False, proxy_headers=False, timeout_graceful_shutdown=1, h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, args=(self._server, self._socket), name="status", daemon=True)
        self._thread.start()

    def _serve(self, server: uvicorn.Server, sock: socket.socket) -> None:
        try:
            server.run(sockets=[sock])
        except BaseException as error:  # uvicorn ends itself by SystemExit
            log.warning("the status server at %s has died, training goes on: %s: %s", self.address, type(error).__name__, error)

    def stop(self) -> None:
        """End every answer and the thread, within about a second. May be called twice, and without `start`."""
        if self._ticks is not None:
            self._ticks.close()
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(_STOP_SECONDS)
        if self._socket is not None:
            self._socket.close()


def on_this_machine(address: str) -> str:
    """An address as a browser on this machine opens it: what listens everywhere does so on the loopback address."""
    return address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if sock.family == socket.AF_INET6 else f"http://{host}:{port}"
