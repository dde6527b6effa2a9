"""`python -m dashboard --runs runs`: serves the runs of a folder, live, to browsers on this machine."""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
from pathlib import Path
from types import FrameType

import uvicorn

from dashboard.app import create_app
from dashboard.record.runs import Runs

EVERYWHERE = ("0.0.0.0", "::")  # every address of this machine


class Server(uvicorn.Server):
    """uvicorn, ending open streams before it waits for them."""

    def __init__(self, config: uvicorn.Config, runs: Runs) -> None:
        super().__init__(config)
        self.runs = runs

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends on the first signal, at once on the second; uvicorn's own raises the signal again, which changes the exit code."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.runs.closing.set()
        await super().shutdown(sockets)


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dashboard", description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="the folder of runs (default: runs)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)")
    parser.add_argument("--port", type=int, default=8400, help="port to listen on, 0 for a free one (default: 8400)")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name to answer to as well; may be given several times",
    )
    return parser.parse_args(words)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ValueError with a sentence if there can be none."""
    if not 0 <= port <= 65535:
        raise ValueError(f"--port must be between 0 and 65535, got {port}.")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ValueError(f"Cannot listen on {host} port {port}: {reason}. Choose another with --port or --host.") from None


def main(words: list[str]) -> int:
    args = arguments(words)
    try:
        if args.runs.exists() and not args.runs.is_dir():
            raise ValueError(f"--runs must be a folder, and {args.runs} is a file.")
        listener = listen(args.host, args.port)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    with Runs(args.runs) as runs, listener:
        app = create_app(runs, [args.host, *args.allow_host])
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=2)
        print(f"Dashboard: http://{_shown(args.host)}:{listener.getsockname()[1]}/ over the runs in {args.runs}", flush=True)
        if args.host in EVERYWHERE:
            print("It answers to localhost only; for another name or address of this machine, add --allow-host NAME.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):  # before uvicorn handles signals
            Server(config, runs).run(sockets=[listener])
    return 0


def _shown(host: str) -> str:
    if host in EVERYWHERE:
        return "localhost"
    return f"[{host}]" if ":" in host else host


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
