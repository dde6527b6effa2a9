"""The FastAPI app of a running trainer: status, metrics, events and health for people, scripts and Prometheus.

Its routes only read: they never wait for the run, nor the run for them. With a token there are control routes too
(`trainer/server/control_routes.py`). `docs/status.md` describes the answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse
from fastapi.sse import EventSourceResponse
from starlette.exceptions import HTTPException

from trainer.monitor.control import Control
from trainer.monitor.monitor import Monitor
from trainer.monitor.status import Status, StatusSource
from trainer.monitor.status_text import render
from trainer.record.redact import redact, redact_all
from trainer.server.control_routes import control_routes
from trainer.server.events import TickEvents
from trainer.server.middleware import AllowedHosts, OnRefusal, RequestLimits, SafeResponses

Exposition = Callable[[str | None], tuple[bytes, str]]
OnCpuSeconds = Callable[[float], None]

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
SENTENCE: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
STATUS: dict[int | str, dict[str, Any]] = {200: {"description": "The run", "model": Status, "content": SENTENCE}}
METRICS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Every number", "content": {**SENTENCE, "application/openmetrics-text": {"schema": {"type": "string"}}}},
}
# Every refusal is one sentence: a Host that is not allowed, a page of another site, a body too large, too many requests.
_REFUSALS: dict[int | str, dict[str, Any]] = {"4XX": {"description": "Refused", "content": SENTENCE}}


class _Redacted:
    """A status without the secrets that its command, its error or its warnings may hold."""

    def __init__(self, source: StatusSource) -> None:
        self._source = source
        self.wait_tick = source.wait_tick

    def status(self) -> Status:
        return Status.model_validate(redact_all(self._source.status().document()))


def create_app(
    source: StatusSource,
    exposition: Exposition,
    allow_hosts: Sequence[str] = (),
    on_cpu_seconds: OnCpuSeconds = lambda _: None,
    on_refusal: OnRefusal = lambda _: None,
) -> FastAPI:
    """The routes that read.

    `exposition` turns an Accept header into body and content type. `on_cpu_seconds` is called with the cost of each answer,
    `on_refusal` with the reason of each refusal.
    """
    # No documentation pages: they load scripts from another host.
    app = FastAPI(
        title="Draftscope trainer", version="1", docs_url=None, redoc_url=None, redirect_slashes=False, responses=_REFUSALS
    )
    app.state.on_refusal, app.state.routes = on_refusal, ROUTES
    app.state.events = TickEvents(_Redacted(source), on_cpu_seconds, on_refusal)
    app.add_middleware(RequestLimits, on_refusal=on_refusal)  # the one added last comes first
    app.add_middleware(AllowedHosts, hosts=allow_hosts, on_refusal=on_refusal)
    app.add_middleware(SafeResponses)
    app.add_exception_handler(HTTPException, _explain)
    _add_health(app, source, on_cpu_seconds)
    _add_events(app)

    # Plain `def`: a slow answer then holds a thread of the pool, not the event loop, and /healthz with it.
    @app.get("/status", responses=STATUS)
    def status(format: Annotated[str, Query(json_schema_extra={"enum": ["json", "text"]})] = "json") -> Response:
        with _measured(on_cpu_seconds):
            return _status_answer(_Redacted(source), format)

    @app.get("/metrics", response_class=PlainTextResponse, responses=METRICS)
    def metrics(accept: Annotated[str | None, Header(include_in_schema=False)] = None) -> Response:
        with _measured(on_cpu_seconds):
            body, content_type = exposition(accept)
        return Response(body, headers={"content-type": content_type})

    return app


def add_control(app: FastAPI, control: Control, monitor: Monitor, token: bytes) -> None:
    """Add the routes by which a client that has `token` controls the run."""
    app.include_router(control_routes(control, monitor, token, app.state.on_refusal))
    app.state.routes += CONTROL_ROUTES


def _add_health(app: FastAPI, source: StatusSource, on_cpu_seconds: OnCpuSeconds) -> None:
    @app.get("/", response_class=PlainTextResponse)
    async def index() -> str:
        return str(app.state.routes)

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse, responses={503: {"description": "Not ready", "content": SENTENCE}})
    def readyz() -> Response:
        with _measured(on_cpu_seconds):
            ready, sentence = readiness(source.status())
        return PlainTextResponse(redact(sentence) + "\n", 200 if ready else 503)


def _add_events(app: FastAPI) -> None:
    events: TickEvents = app.state.events
    app.add_api_route(
        "/events",
        events.stream,
        response_class=EventSourceResponse,
        responses={503: {"description": "Too many streams are open", "content": SENTENCE}},
        dependencies=[Depends(events.limit)],
    )


def readiness(status: Status) -> tuple[bool, str]:
    """Whether the run trains, and the sentence that says so or why not."""
    state = status.state
    if state in _READY_STATES:
        return True, f"ready: the run is {state}"
    reasons = {"starting": status.phase, "stalled": status.verdict.sentence, "failed": status.last_error}
    reason = reasons.get(state)
    return False, f"not ready: the run {'has' if state == 'failed' else 'is'} {state}" + (f": {reason}" if reason else "")


def _status_answer(source: StatusSource, form: str) -> Response:
    if form == "json":
        return Response(source.status().model_dump_json() + "\n", media_type="application/json")
    if form == "text":
        return PlainTextResponse(render(source.status()))
    return PlainTextResponse(f"format must be json or text, got {form[:40]!r}\n", 400)


async def _explain(request: Request, error: Exception) -> Response:
    """An HTTP error as one sentence; for a path or method that does not exist it names the list of those that do."""
    assert isinstance(error, HTTPException)
    sentence = error.detail
    if error.status_code in (404, 405):
        sentence = f"{request.method} {request.url.path[:200]}: {error.detail.lower()}; GET / lists what there is"
    return PlainTextResponse(sentence + "\n", error.status_code, headers=error.headers)


@contextmanager
def _measured(on_cpu_seconds: OnCpuSeconds) -> Iterator[None]:
    began = time.thread_time()
    try:
        yield
    finally:
        on_cpu_seconds(time.thread_time() - began)
