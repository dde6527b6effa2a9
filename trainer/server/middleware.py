"""What stands before every route: a request in, a refusal in one sentence or the way to its route out; safe headers on all answers.

The Host allow-list stops DNS rebinding, by which a web page reads a loopback port under a name of its own.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer.config import is_loopback
from trainer.record.redact import redact
from trainer.server.rate_limit import RateLimit

log = logging.getLogger(__name__)

Refused = Callable[[str], None]
"""Is told why a request was refused, as in HTTP_REFUSALS."""

MOST_BODY_BYTES = 4096
READS_PER_SECOND, READS_AT_ONCE = 20.0, 100
SAFE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]{2,45})\]|(?P<name>[a-z0-9._-]{1,253}))(?::[0-9]{0,5})?", re.IGNORECASE)


class _TooLargeError(Exception):
    """A body went past the limit while it was read."""


class Doorway:
    """In front of `app`: the Host allow-list, rate and size limits, safe headers, and one sentence for whatever fails behind it."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = (), refused: Refused = lambda _: None) -> None:
        self._app, self._refused = app, refused
        self._hosts = frozenset(name_of(host) for host in hosts)
        self._rate = RateLimit(READS_PER_SECOND, READS_AT_ONCE)
        self._logged: set[tuple[str, type]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "HEAD" and scope["path"] != "/events":  # as GET; the server leaves the body out
            scope = {**scope, "method": "GET"}
        started, got = False, 0

        async def send_safely(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message).update(SAFE_HEADERS)
            await send(message)

        async def receive_some() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got <= MOST_BODY_BYTES:
                return message
            if started:
                return {"type": "http.disconnect"}
            raise _TooLargeError

        try:
            await (self._refusal(scope) or self._app)(scope, receive_some, send_safely)
        except Exception as error:
            excuse = self._excuse(scope, error)
            if not started:
                await excuse(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> Response | None:
        host = only(scope, b"host")
        if not self._is_allowed(host):
            self._refused("host")
            way_out = "ask for localhost or 127.0.0.1, or allow this name with --watch.allow-hosts"
            return PlainTextResponse(f"the Host header {host[:80]!r} is not allowed; {way_out}\n", 400)
        if _is_loaded_by_another_site(scope):
            self._refused("origin")
            return PlainTextResponse("pages of other sites may link here, but load nothing from here\n", 403)
        # Not what asks whether the process lives: it costs nothing, and must not die of another's haste.
        if scope["path"] != "/healthz" and (wait := self._rate.take(address_of(scope))):
            self._refused("rate")
            return too_many(wait, f"more than {READS_PER_SECOND:g} requests a second")
        length = only(scope, b"content-length")
        if length.isdecimal() and int(length[:20]) > MOST_BODY_BYTES:
            return self._too_large()
        return None

    def _is_allowed(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        name = (match["six"] or match["name"]).lower() if match else ""
        return name in self._hosts or is_loopback(name)

    def _excuse(self, scope: Scope, error: Exception) -> Response:
        if isinstance(error, _TooLargeError):
            return self._too_large()
        self._log_once(scope["path"], error)
        return PlainTextResponse(redact(f"{scope['path']} failed: {type(error).__name__}: {error}\n"), 500)

    def _too_large(self) -> Response:
        self._refused("size")
        return PlainTextResponse(f"the body is above {MOST_BODY_BYTES} bytes, which is the limit\n", 413)

    def _log_once(self, path: str, error: Exception) -> None:
        """A scraper comes back every few seconds; its first failure says it all."""
        if (path, type(error)) not in self._logged:
            self._logged.add((path, type(error)))
            log.warning("%s failed, training goes on: %s: %s", path, type(error).__name__, error, exc_info=error)


def too_many(seconds: float, what: str) -> Response:
    """The refusal of a client that has to wait."""
    wait = math.ceil(seconds)
    return PlainTextResponse(f"{what} from one address, which is the limit; wait {wait} s\n", 429, {"retry-after": str(wait)})


def address_of(scope: Scope) -> str:
    """The client's, without its port; "" where there is none."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def name_of(host: str) -> str:
    """A host as people write it, without the port: `LocalHost:9400` → `localhost`, `[::1]:9400` → `::1`."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]


def only(scope: Scope, name: bytes) -> str:
    """A header's value; "" where it is missing or there are several."""
    values = [value for key, value in scope["headers"] if key == name]
    return values[0].decode("latin-1").strip() if len(values) == 1 else ""


def _is_loaded_by_another_site(scope: Scope) -> bool:
    """As browsers say it of themselves. It could not read the answer; this is so that it does not use up what others may ask."""
    return only(scope, b"sec-fetch-site") in ("cross-site", "same-site") and only(scope, b"sec-fetch-dest") != "document"
