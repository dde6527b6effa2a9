"""A dashboard on a free port of this machine, for tests that need a real connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from dashboard.__main__ import Server, listen
from dashboard.app import create_app
from dashboard.record.runs import Runs


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """The address of a dashboard over `root`, which ends with the block; it looks and tells more often than one for people."""
    with Runs(root, look_every=0.02) as runs, listen("127.0.0.1", 0) as listener:
        server = Server(
            uvicorn.Config(create_app(runs, tick_seconds=0.1), log_level="warning", lifespan="off", timeout_graceful_shutdown=2),
            runs,
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
