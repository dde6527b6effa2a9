"""The trainer's HTTP face over a hand-made `Live`, on a free port, and a client for it."""

from __future__ import annotations

import socket
from typing import Any

import httpx

from tests.support.fake_monitor import FakeMonitor
from trainer.monitor.control import Control
from trainer.server.app import add_control, create_app
from trainer.server.server import StatusServer

SERVER_SECONDS = 5.0


def exposition(accept: str | None) -> tuple[bytes, str]:
    if accept and "openmetrics" in accept:
        return b"# EOF\n", "application/openmetrics-text; version=1.0.0; charset=utf-8"
    return b"draftscope_loss 3.4\n", "text/plain; version=0.0.4; charset=utf-8"


class Served:
    """A context manager around the server; with a `token` the run can be controlled. `options` are those of `create_app`."""

    def __init__(
        self, live: FakeMonitor | None = None, exposition: Any = exposition, token: bytes | None = None, **options: Any
    ) -> None:
        self.live = live or FakeMonitor()
        self.refused: list[str] = []
        self.app = create_app(self.live, exposition, on_refusal=self.refused.append, **options)
        self.control = Control()
        self.control.attach(self.live)
        if token is not None:
            add_control(self.app, self.control, self.live, token)

    def __enter__(self) -> Served:
        self.server = StatusServer(StatusServer.bind("127.0.0.1", 0))
        self.server.start(self.app)
        self.client = httpx.Client(base_url=self.server.address, timeout=SERVER_SECONDS, trust_env=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        self.client.close()

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.client.get(path, headers=headers)

    def connect(self) -> socket.socket:
        """A bare connection, for what no client library would send."""
        host, _, port = str(self.server.address).removeprefix("http://").partition(":")
        return socket.create_connection((host, int(port)), timeout=SERVER_SECONDS)

    def send(self, sent: bytes) -> bytes:
        """Everything that comes back, up to the end of the connection."""
        with self.connect() as connection:
            connection.sendall(sent)
            return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)
