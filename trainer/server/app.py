"""The trainer's HTTP face: what `Live` and the exporter know, for people, scripts and Prometheus.

It reads, and neither waits for the run nor the run for it. Whoever has the run's token may ask for more: a checkpoint, a pause,
the run's end (`trainer/server/control_routes.py`); without a token there is no such route. `docs/status.md` describes the answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException

from trainer.monitor.control import Control, ControlledRun
from trainer.monitor.snapshot import LiveRun
from trainer.monitor.status_text import render
from trainer.record.redact import redact, redact_all
from trainer.server.control_routes import control_routes
from trainer.server.events import Ticks, TickStream
from trainer.server.middleware import Doorway, Refused
from trainer.server.status_schema import EVENTS, METRICS, SENTENCE, STATUS

Exposition = Callable[[str | None], tuple[bytes, str]]
Spent = Callable[[float], None]

ROUTES = """Draftscope trainer
/status        the run as JSON; ?format=text for a table
/metrics       Prometheus text or OpenMetrics
/events        server-sent events, a message for each telemetry tick
/healthz       200 while the process answers
/readyz        200 while it trains, else 503 and the reason
/openapi.json  the same list for machines
"""
CONTROL_ROUTES = """
With the run's token, POST:
/control/checkpoint, /control/pause, /control/resume, /control/stop
"""

_READY_STATES = ("running", "paused", "finishing")
# Every refusal is one sentence: a Host that is not allowed, a page of another site, a body too large, too many requests.
_REFUSALS: dict[int | str, dict[str, Any]] = {"4XX": {"description": "Refused", "content": SENTENCE}}


class _ScrubbedRun:
    """A run without the secrets that its command, an error or a warning may hold."""

    def __init__(self, live: LiveRun) -> None:
        self._live = live
        self.wait_tick = live.wait_tick

    def status(self) -> dict[str, Any]:
        return dict(redact_all(self._live.status()))


def create_app(
    live: LiveRun,
    exposition: Exposition,
    allow_hosts: Sequence[str] = (),
    spent: Spent = lambda _: None,
    refused: Refused = lambda _: None,
) -> FastAPI:
    """The routes that read.

    `exposition` turns an Accept header into body and content type; `spent` is told each answer's CPU seconds, `refused` why a
    request was refused.
    """
    # Without the pages of docs: they load their scripts from another host.
    app = FastAPI(
        title="Draftscope trainer", version="1", docs_url=None, redoc_url=None, redirect_slashes=False, responses=_REFUSALS
    )
    app.state.refused, app.state.routes = refused, ROUTES
    app.add_middleware(Doorway, hosts=allow_hosts, refused=refused)
    app.add_exception_handler(HTTPException, _refuse)
    _add_signs_of_life(app, live, spent)
    scrubbed = _ScrubbedRun(live)
    app.state.ticks = Ticks(scrubbed, spent)

    # These are plain `def`: a slow answer then holds a thread of the pool, not the event loop and /healthz with it.
    @app.get("/status", responses=STATUS)
    def status(format: Annotated[str, Query(json_schema_extra={"enum": ["json", "text"]})] = "json") -> Response:
        with _cpu_time(spent):
            return _status_answer(scrubbed, format)

    @app.get("/metrics", response_class=PlainTextResponse, responses=METRICS)
    def metrics(accept: Annotated[str | None, Header(include_in_schema=False)] = None) -> Response:
        with _cpu_time(spent):
            body, content_type = exposition(accept)
        return Response(body, headers={"content-type": content_type})

    @app.get("/events", response_class=StreamingResponse, responses=EVENTS)
    async def events() -> Response:
        return TickStream(app.state.ticks, refused)

    return app


def add_control(app: FastAPI, control: Control, run: ControlledRun, token: bytes) -> None:
    """From now on whoever has `token` may control the run."""
    app.include_router(control_routes(control, run, token, app.state.refused))
    app.state.routes += CONTROL_ROUTES


def _add_signs_of_life(app: FastAPI, live: LiveRun, spent: Spent) -> None:
    @app.get("/", response_class=PlainTextResponse)
    async def index() -> str:
        return str(app.state.routes)

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse, responses={503: {"description": "Not ready", "content": SENTENCE}})
    def readyz() -> Response:
        with _cpu_time(spent):
            ready, sentence = readiness(live.status())
        return PlainTextResponse(redact(sentence) + "\n", 200 if ready else 503)


def readiness(status: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether the run trains, and the sentence that says so or why not."""
    state = status.get("state") or "unknown"
    if state in _READY_STATES:
        return True, f"ready: the run is {state}"
    reasons = {
        "starting": status.get("phase"),
        "stalled": (status.get("verdict") or {}).get("sentence"),
        "failed": status.get("last_error"),
    }
    reason = reasons.get(state)
    return False, f"not ready: the run {'has' if state == 'failed' else 'is'} {state}" + (f": {reason}" if reason else "")


def _status_answer(live: LiveRun, form: str) -> Response:
    if form == "json":
        return Response(orjson.dumps(live.status()) + b"\n", media_type="application/json")
    if form == "text":
        return PlainTextResponse(render(live.status()))
    return PlainTextResponse(f"format must be json or text, got {form[:40]!r}\n", 400)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = f"{request.method} {request.url.path[:200]}: {error.detail.lower()}; GET / lists what there is\n"
    return PlainTextResponse(sentence, error.status_code, headers=error.headers)


@contextmanager
def _cpu_time(spent: Spent) -> Iterator[None]:
    began = time.thread_time()
    try:
        yield
    finally:
        spent(time.thread_time() - began)
