"""ASGI middleware in front of every route: Host allow-list, rate and size limits, safe headers, one sentence for each error.

From the outside in: `SafeResponses`, `AllowedHosts`, `RequestLimits`.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer.record.redact import redact

log = logging.getLogger(__name__)

OnRefusal = Callable[[str], None]
"""Called with the reason of each refusal, one of HTTP_REFUSALS."""

MAX_BODY_BYTES = 4096
READS_PER_SECOND, READS_AT_ONCE = 20.0, 100
MAX_CLIENTS = 1024
SAFE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

# Any address of 127.0.0.0/8, before a port or the end.
_IPV4_LOOPBACK = re.compile(r"^127(?:\.[0-9]{1,3}){3}(?=:|$)")


class SafeResponses:
    """Puts `SAFE_HEADERS` on every answer, answers HEAD as GET, and turns an exception into status 500 with one sentence."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._logged: set[tuple[str, type]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "HEAD" and scope["path"] != "/events":  # the server leaves out the body
            scope = {**scope, "method": "GET"}
        started = False

        async def send_safely(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message).update(SAFE_HEADERS)
            await send(message)

        try:
            await self._app(scope, receive, send_safely)
        except Exception as error:
            cause = _only_cause(error)
            self._log_once(scope["path"], cause)
            if not started:
                sentence = redact(f"{scope['path']} failed: {type(cause).__name__}: {cause}\n")
                await PlainTextResponse(sentence, 500)(scope, receive, send_safely)

    def _log_once(self, path: str, error: BaseException) -> None:
        """A scraper comes back every few seconds; its first failure says it all."""
        if (path, type(error)) not in self._logged:
            self._logged.add((path, type(error)))
            log.warning("%s failed, training goes on: %s: %s", path, type(error).__name__, error, exc_info=error)


class AllowedHosts(TrustedHostMiddleware):
    """Starlette's check of the Host header, with a refusal that says what to do.

    It stops DNS rebinding, by which a web page reads a loopback port under a name of its own. `localhost`, loopback addresses
    and `hosts` are allowed, on any port; Starlette's wildcards are not.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], on_refusal: OnRefusal) -> None:
        names = [host_name(host) for host in hosts if "*" not in host]
        allowed = ["localhost", "[::1]", *(f"[{name}]" if ":" in name else name for name in names)]
        super().__init__(_mark_allowed, allowed, www_redirect=False)
        self._app, self._on_refusal = app, on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") == "/healthz":  # a probe asks by the machine's address, and learns nothing but that it is there
            await self._app(scope, receive, send)
            return
        host = single_header(scope, b"host")
        # Starlette compares names, and knows neither networks nor an empty port.
        name = _IPV4_LOOPBACK.sub("localhost", host.removesuffix(":"))
        check: dict[str, Any] = {"type": "http", "headers": [(b"host", name.encode("latin-1"))]}
        await super().__call__(check, receive, _discard)
        if check.get("allowed"):
            await self._app(scope, receive, send)
            return
        self._on_refusal("host")
        way_out = "ask for localhost or 127.0.0.1, or allow this name with --watch.allow-hosts"
        await PlainTextResponse(f"the Host header {host[:80]!r} is not allowed; {way_out}\n", 400)(scope, receive, send)


class RequestLimits:
    """Refuses what pages of other sites load, more than `READS_PER_SECOND` from one address, and bodies above `MAX_BODY_BYTES`."""

    def __init__(self, app: ASGIApp, on_refusal: OnRefusal) -> None:
        self._app, self._on_refusal = app, on_refusal
        self._rate = RateLimit(READS_PER_SECOND, READS_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, received = False, 0

        async def send_noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received <= MAX_BODY_BYTES:
                return message
            if started:
                return {"type": "http.disconnect"}
            raise _BodyTooLargeError

        try:
            await (self._refusal(scope) or self._app)(scope, receive_limited, send_noting)
        except _BodyTooLargeError:
            await self._too_large()(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        if _is_loaded_by_another_site(scope):
            self._on_refusal("origin")
            return PlainTextResponse("pages of other sites may link here, but load nothing from here\n", 403)
        # /healthz is exempt: it costs nothing, and a busy neighbour must not make the process look dead.
        if scope["path"] != "/healthz" and (wait := self._rate.take(client_address(scope))):
            self._on_refusal("rate")
            return too_many_requests(wait, f"more than {READS_PER_SECOND:g} requests a second")
        length = single_header(scope, b"content-length")
        if length.isdecimal() and int(length[:20]) > MAX_BODY_BYTES:
            return self._too_large()
        return None

    def _too_large(self) -> Response:
        self._on_refusal("size")
        return PlainTextResponse(f"the body is above {MAX_BODY_BYTES} bytes, which is the limit\n", 413)


class RateLimit:
    """Token buckets: `rate` requests a second for each client, `burst` at once. For one thread; `clock` is monotonic, in seconds.

    The `MAX_CLIENTS` most recent clients are remembered.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> float:
        """Count a request and return 0.0 if it may pass; otherwise the seconds until one may."""
        wait = self.wait(address)
        if not wait:
            client = client_of(address)
            filled, at = self._buckets[client]
            self._buckets[client] = (filled - 1, at)
        return wait

    def wait(self, address: str) -> float:
        """As `take`, without counting."""
        client, now = client_of(address), self._clock()
        filled, at = self._buckets.pop(client, (float(self._burst), now))
        filled = min(self._burst, filled + (now - at) * self._rate)
        self._buckets[client] = (filled, now)
        while len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if filled >= 1 else (1 - filled) / self._rate


class _BodyTooLargeError(Exception):
    """A body grew past the limit while it was read."""


def too_many_requests(seconds: float, what: str) -> Response:
    """Status 429 for a client that has to wait for `seconds`; `what` begins the sentence."""
    wait = math.ceil(seconds)
    return PlainTextResponse(f"{what} from one address, which is the limit; wait {wait} s\n", 429, {"retry-after": str(wait)})


def client_address(scope: Scope) -> str:
    """Without its port; "" if the server knows none."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def client_of(address: str) -> str:
    """What shares one limit: a /64 network of IPv6, all loopback addresses together, or else the address itself."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv6Address):
        known = known.ipv4_mapped or known
    if known.is_loopback:
        return "localhost"
    return str(ipaddress.ip_network((known, 64), strict=False) if known.version == 6 else known)


def host_name(host: str) -> str:
    """A host as people write it, without its port: `LocalHost:9400` → `localhost`, `[::1]:9400` → `::1`."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]


def single_header(scope: Scope, name: bytes) -> str:
    """A header's value; "" if it is missing or there are several."""
    values = [value for key, value in scope["headers"] if key == name]
    return values[0].decode("latin-1").strip() if len(values) == 1 else ""


def _is_loaded_by_another_site(scope: Scope) -> bool:
    """As the browser says. Such a page could not read the answer; this keeps it from using up the rate limit of others."""
    return single_header(scope, b"sec-fetch-site") in ("cross-site", "same-site") and (
        single_header(scope, b"sec-fetch-dest") != "document"
    )


def _only_cause(error: Exception) -> Exception:
    """The error inside groups of one, as which streams fail."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _mark_allowed(scope: Scope, _: Receive, __: Send) -> None:
    scope["allowed"] = True


async def _discard(_: Message) -> None:
    """Starlette's own refusal, which says no way out."""
