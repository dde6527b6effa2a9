"""The trainer's HTTP face over a hand-made `Live`, on a free port, and a client for it."""

from __future__ import annotations

from typing import Any

import httpx

from tests.fake_live import FakeLive
from trainer.status import StatusServer, create_app

SERVER_SECONDS = 5.0


def exposition(accept: str | None) -> tuple[bytes, str]:
    if accept and "openmetrics" in accept:
        return b"# EOF\n", "application/openmetrics-text; version=1.0.0; charset=utf-8"
    return b"draftscope_loss 3.4\n", "text/plain; version=0.0.4; charset=utf-8"


class Served:
    """A context manager around the server; `options` are those of `create_app`."""

    def __init__(self, live: FakeLive | None = None, exposition: Any = exposition, **options: Any) -> None:
        self.live = live or FakeLive()
        self.app = create_app(self.live, exposition, **options)

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
