"""Station 8. The trainer's HTTP face: what `Live` and the recorder know, for people, scripts and Prometheus.

Read only: nothing here can change a run. It lives on a thread and an event loop of its own; whatever breaks in it is logged once
and training goes on. `docs/status.md` describes the answers field by field.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import orjson
import uvicorn
from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer.config import ConfigError
from trainer.status_text import render
from trainer.ticks import LiveRun, Ticks, TickStream

log = logging.getLogger(__name__)

Exposition = Callable[[str | None], tuple[bytes, str]]
Spent = Callable[[float], None]

ROUTES = """Draftscope trainer
/status        the run as JSON; ?format=text for a table
/metrics       Prometheus text or OpenMetrics
/events        server-sent events, a message for each sampling tick
/healthz       200 while the process answers
/readyz        200 while it trains, else 503 and the reason
/openapi.json  the same list for machines
"""

_READY_STATES = ("running", "paused", "finishing")
_STOP_SECONDS = 2.0
_SAFE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


def create_app(live: LiveRun, exposition: Exposition, allow_hosts: Sequence[str] = (), spent: Spent = lambda _: None) -> FastAPI:
    """The routes. `exposition` turns an Accept header into body and content type; `spent` is told each answer's CPU seconds."""
    # Without the pages of docs: they load their scripts from another host.
    app = FastAPI(title="Draftscope trainer", version="1", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.ticks = Ticks(live, spent)
    app.add_middleware(Doorway, hosts=frozenset(_host_name(host) for host in allow_hosts))
    app.add_exception_handler(HTTPException, _refuse)

    @app.get("/", response_class=PlainTextResponse)
    async def index() -> str:
        return ROUTES

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse)
    def readyz() -> Response:
        ready, sentence = readiness(live.status())
        return PlainTextResponse(sentence + "\n", 200 if ready else 503)

    # These are plain `def`: a slow answer then holds a thread of the pool, not the event loop and /healthz with it.
    @app.get("/status")
    def status(format: str = "json") -> Response:
        with _cpu_time(spent):
            return _status_answer(live, format)

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics(accept: Annotated[str | None, Header()] = None) -> Response:
        with _cpu_time(spent):
            body, content_type = exposition(accept)
        return Response(body, headers={"content-type": content_type})

    @app.get("/events", response_class=StreamingResponse)
    async def events() -> Response:
        return TickStream(app.state.ticks)

    return app


def readiness(status: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether the run trains, and the sentence that says so or why not."""
    state = status.get("state") or "unknown"
    if state in _READY_STATES:
        return True, f"ready: the run is {state}"
    if state == "starting":
        reason = status.get("phase")
    elif state == "failed":
        reason = status.get("last_error")
    else:
        reason = (status.get("verdict") or {}).get("sentence")
    return False, f"not ready: the run {'has' if state == 'failed' else 'is'} {state}" + (f": {reason}" if reason else "")


def _status_answer(live: LiveRun, form: str) -> Response:
    if form == "json":
        return Response(orjson.dumps(live.status()) + b"\n", media_type="application/json")
    if form == "text":
        return PlainTextResponse(render(live.status()))
    return PlainTextResponse(f"format must be json or text, got {form[:40]!r}\n", 400)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = f"{request.method} {request.url.path}: {error.detail.lower()}; GET / lists what there is\n"
    return PlainTextResponse(sentence, error.status_code, headers=error.headers)


@contextmanager
def _cpu_time(spent: Spent) -> Iterator[None]:
    began = time.thread_time()
    try:
        yield
    finally:
        spent(time.thread_time() - began)


class Doorway:
    """In front of every route: the Host allow-list, the safe headers, and one sentence for whatever fails behind it.

    The allow-list stops DNS rebinding, by which a web page reads a loopback port under a name of its own.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts
        self._logged: set[tuple[str, type]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_safely(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message).update(_SAFE_HEADERS)
            await send(message)

        try:
            await (self._refusal(scope) or self._app)(scope, receive, send_safely)
        except Exception as error:
            self._log_once(scope["path"], error)
            if not started:
                answer = PlainTextResponse(f"{scope['path']} failed: {type(error).__name__}: {error}\n", 500)
                await answer(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> Response | None:
        host = b"".join(value for name, value in scope["headers"] if name == b"host").decode("latin-1")
        name = _host_name(host)
        if name in self._hosts or name == "localhost" or _is_loopback(name):
            return None
        way_out = "ask for localhost or 127.0.0.1, or allow this name with --watch.allow-hosts"
        return PlainTextResponse(f"the Host header {host[:80]!r} is not allowed; {way_out}\n", 400)

    def _log_once(self, path: str, error: Exception) -> None:
        """A scraper comes back every few seconds; its first failure says it all."""
        if (path, type(error)) not in self._logged:
            self._logged.add((path, type(error)))
            log.warning("%s failed, training goes on: %s: %s", path, type(error).__name__, error, exc_info=error)


def _host_name(host: str) -> str:
    """The name without the port: `LocalHost:9400` → `localhost`, `[::1]:9400` → `::1`."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class StatusServer:
    """Serves an app on a thread of its own: `bind` first, before anything is loaded; then `start`; `stop` at the end."""

    def __init__(self, sock: socket.socket | None) -> None:
        self._socket = sock
        self._ticks: Ticks | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.address = None if sock is None else _url(sock)
        """As in `http://127.0.0.1:9400`; None where nothing is served."""

    @staticmethod
    def bind(host: str, port: int) -> socket.socket | None:
        """A listening socket; None for port -1, which serves nothing. Raises `ConfigError` where it can't be had."""
        if port == -1:
            return None
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=128)
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
        # uvicorn's own log is silent, Doorway speaks for it. Off the main thread it installs no signal handlers.
        config = uvicorn.Config(
            app, http="h11", ws="none", lifespan="off", log_config=None, log_level=logging.CRITICAL, access_log=False,
            server_header=False, timeout_graceful_shutdown=1,
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


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if sock.family == socket.AF_INET6 else f"http://{host}:{port}"
