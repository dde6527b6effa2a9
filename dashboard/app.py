"""Routes: the page, its files, runs as JSON, a live stream of each run, runbooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Annotated, Any

import orjson
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.middleware.gzip import GZipMiddleware

from dashboard import assets, charts, runbooks
from dashboard.live import Cursor, tick
from dashboard.middleware import AllowedHosts, HeadAsGet, SecurityHeaders
from dashboard.record.run import Run
from dashboard.record.runs import Runs
from dashboard.views import range_series, summary

MOST_STREAMS = 32
TICK_SECONDS = 1.0  # minimum between two messages of a stream
POLL_SECONDS = 0.1


def dumps(content: Any) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def answer(content: Any) -> Response:
    return Response(dumps(content), media_type="application/json", headers={"cache-control": "no-store"})


def create_app(runs: Runs, allow_hosts: Collection[str] = (), tick_seconds: float = TICK_SECONDS) -> FastAPI:
    """The web app over `runs`, which the caller has entered; streams end once `runs.closing` is set."""
    app = FastAPI(title="Draftscope dashboard", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.runs = runs
    app.state.assets = assets.load()
    app.state.streams = 0
    app.state.tick_seconds = tick_seconds
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)
    app.add_middleware(AllowedHosts, allowed=allow_hosts)
    app.add_middleware(HeadAsGet)
    app.add_middleware(SecurityHeaders)
    _add_page(app)
    _add_data(app)
    _add_stream(app)
    _add_runbooks(app)
    return app


def opened(run_id: str, request: Request) -> Run:
    runs: Runs = request.app.state.runs
    return _found(runs.run(run_id), run_id, runs)


def watched(run_id: str, request: Request) -> Iterator[Run]:
    runs: Runs = request.app.state.runs
    with runs.watched(run_id) as run:
        yield _found(run, run_id, runs)


def _found(run: Run | None, run_id: str, runs: Runs) -> Run:
    if run is None:
        raise HTTPException(404, f"There is no run {run_id!r} in {runs.root}.")
    return run


OpenedRun = Annotated[Run, Depends(opened)]
WatchedRun = Annotated[Run, Depends(watched)]


def _add_page(app: FastAPI) -> None:
    runs: Runs = app.state.runs
    held: assets.Assets = app.state.assets
    page_headers = {"cache-control": "no-cache", "etag": f'"{held.version}"'}

    @app.get("/healthz")
    def healthz() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    @app.get("/")
    def index() -> Response:
        newest = runs.list()[:1]
        if newest:
            return RedirectResponse(f"/runs/{newest[0]['id']}", headers={"cache-control": "no-store"})
        return HTMLResponse(held.page, headers={"cache-control": "no-store"})

    @app.get("/runs/{run_id}")
    def run_page(run_id: str, request: Request) -> Response:
        if runs.folder(run_id) is None:
            return HTMLResponse(held.page, status_code=404, headers=page_headers)
        if request.headers.get("if-none-match") == page_headers["etag"]:
            return Response(status_code=304, headers=page_headers)
        return HTMLResponse(held.page, headers=page_headers)

    @app.get("/static/{version}/{name}")
    def static(version: str, name: str, request: Request) -> Response:
        asset = held.files.get(name)
        if asset is None:
            raise HTTPException(404, f"There is no file {name!r}.")
        forever = "public, max-age=31536000, immutable" if version == held.version else "no-cache"
        headers = {"cache-control": forever, "etag": asset.etag, "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == asset.etag:
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(asset.packed, media_type=asset.media_type, headers={**headers, "content-encoding": "gzip"})
        return Response(asset.plain, media_type=asset.media_type, headers=headers)


def _add_data(app: FastAPI) -> None:
    runs: Runs = app.state.runs

    @app.get("/api/runs")
    def list_runs() -> Response:
        names = {"outside": runs.outside(), "misnamed": runs.misnamed()}
        return answer({"root": str(runs.root), "root_exists": runs.root.is_dir(), "runs": runs.list(), **names})

    @app.get("/api/charts")
    def list_charts() -> Response:
        return answer(charts.described())

    @app.get("/api/runs/{run_id}")
    def show(run: OpenedRun) -> Response:
        return answer(summary(run))

    @app.get("/api/runs/{run_id}/series")
    def show_series(
        run: OpenedRun,
        metric: Annotated[str, Query(description="column names separated by commas; or `steps` or `telemetry` for a whole file")],
        x: Annotated[str, Query(pattern="^(step|tokens|time)$")] = "step",
        low: Annotated[float | None, Query(alias="from", allow_inf_nan=False)] = None,
        high: Annotated[float | None, Query(alias="to", allow_inf_nan=False)] = None,
    ) -> Response:
        try:
            return answer(range_series(run, metric, x, low, high))
        except KeyError as error:
            raise HTTPException(404, str(error.args[0])) from None


def _add_runbooks(app: FastAPI) -> None:
    pages = runbooks.load()

    @app.get("/runbooks")
    def list_runbooks() -> PlainTextResponse:
        if not pages:
            raise HTTPException(404, runbooks.missing("", pages))
        return PlainTextResponse(runbooks.listing(pages))

    @app.get("/runbooks/{name}")
    def runbook(name: str) -> PlainTextResponse:
        if name not in pages:
            raise HTTPException(404, runbooks.missing(name, pages))
        return PlainTextResponse(pages[name])


def _add_stream(app: FastAPI) -> None:
    runs: Runs = app.state.runs

    async def slot() -> AsyncIterator[None]:
        if app.state.streams >= MOST_STREAMS:
            raise HTTPException(503, f"{MOST_STREAMS} pages are live already; close one.", headers={"retry-after": "10"})
        app.state.streams += 1
        try:
            yield
        finally:
            app.state.streams -= 1

    @app.get("/api/runs/{run_id}/events", response_class=EventSourceResponse, dependencies=[Depends(slot)])
    async def stream(
        run: WatchedRun,
        request: Request,
        cursor: str = "0:0:0",
        width: Annotated[int, Query(ge=1, le=1 << 40)] = 1,
        telemetry_width: Annotated[int, Query(ge=1, le=1 << 40)] = 1,
    ) -> AsyncIterator[ServerSentEvent]:
        at = Cursor.parse(request.headers.get("last-event-id")) or Cursor.parse(cursor) or Cursor()
        widths = {"steps": width, "telemetry": telemetry_width}
        seen = -1
        while not runs.closing.is_set() and not run.replaced:
            if seen == run.version:
                await asyncio.sleep(POLL_SECONDS)
                continue
            seen = run.version
            news = await asyncio.to_thread(tick, run, at, widths)
            at = news.cursor
            yield ServerSentEvent(raw_data=dumps(news.message).decode(), event="tick", id=str(at), retry=1000)
            if news.more:
                seen = -1
            else:
                await _rest(runs, app.state.tick_seconds)


async def _rest(runs: Runs, seconds: float) -> None:
    while seconds > 0 and not runs.closing.is_set():
        await asyncio.sleep(min(seconds, POLL_SECONDS))
        seconds -= POLL_SECONDS
