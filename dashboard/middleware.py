"""ASGI middleware in front of every route: security headers, HEAD, Host allow-list."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
# Plotly injects <style> elements and makes downloads from blob: URLs; it needs nothing else.
POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class SecurityHeaders:
    """Adds `HEADERS` to every answer, refusals included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, send_with_headers)


class HeadAsGet:
    """Answers HEAD as GET without the body, on every route: FastAPI has no HEAD for the routes that it is given."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        answered = asyncio.Event()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                answered.set()

        async def receive_end() -> Message:
            await answered.wait()  # an endless stream ends here: nobody reads it
            return {"type": "http.disconnect"}

        await self.app({**scope, "method": "GET"}, receive_end, send_head)


class AllowedHosts:
    """Answers 400 to a Host header that is not allowed, which stops DNS rebinding: a page of another site reaching this one.

    Starlette's TrustedHostMiddleware has no place for a sentence that says what to do.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str] = ()) -> None:
        self.app = app
        self.allowed = LOOPBACK | {host_name(name) for name in allowed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = host_name(Headers(scope=scope).get("host", "")) if scope["type"] == "http" else "localhost"
        # A probe asks for /healthz by the machine's address, and learns nothing but that it is there.
        open_to_all = scope.get("path") == "/healthz"
        app: ASGIApp = self.app if open_to_all or host in self.allowed else _refusal(host)
        await app(scope, receive, send)


def host_name(written: str) -> str:
    """A host from a Host header or the command line, in lower case, without its port and an IPv6 address's brackets."""
    if written.startswith("["):
        return written[1:].partition("]")[0].lower()
    name, _, rest = written.lower().partition(":")
    return written.lower() if ":" in rest else name  # two colons: a bare IPv6 address


def _refusal(host: str) -> PlainTextResponse:
    return PlainTextResponse(
        f'This dashboard does not answer to the host name "{host[:100]}". '
        "Open it as localhost, or start it with --allow-host NAME.\n",
        status_code=400,
    )
