"""`POST /control/{checkpoint,pause,resume,stop}`: who may control the run, what the request holds, and the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import orjson
from fastapi import APIRouter, Request, Response, Security
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainer.formatting import one_line
from trainer.metrics.catalogue.watching import CONTROL_ACTIONS
from trainer.monitor.control import Answer, Control
from trainer.monitor.monitor import Monitor
from trainer.server.auth import is_authorized
from trainer.server.middleware import OnRefusal, RateLimit, client_address, single_header, too_many_requests

PER_SECOND, AT_ONCE = 1.0, 10
WRONG_PER_SECOND, WRONG_AT_ONCE = 1 / 12, 5
MAX_REASON = 300

_SENTENCE = {"text/plain": {"schema": {"type": "string"}}}


class ControlRequest(BaseModel):
    """The body of a request; it may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)
    reason: str = Field(default="", max_length=MAX_REASON, description="Recorded in the run's events.")


class ControlAnswer(BaseModel):
    """The answer to an accepted request: status 202 if it will be done, 200 if it is so already."""

    action: Literal["checkpoint", "pause", "resume", "stop"]
    accepted: Literal[True] = True
    message: str
    state: str = Field(description="Of the run, now.")
    step: int = Field(description="Of the run, now.", ge=0)


class AccessControl:
    """Refuses pages of other sites, requests without the token, and clients that ask or guess too often."""

    def __init__(self, token: bytes, on_refusal: OnRefusal) -> None:
        self._token, self._on_refusal = token, on_refusal
        self._requests = RateLimit(PER_SECOND, AT_ONCE)
        self._wrong_tokens = RateLimit(WRONG_PER_SECOND, WRONG_AT_ONCE)

    def refusal(self, request: Request) -> Response | None:
        scope, address = request.scope, client_address(request.scope)
        if _is_cross_site(request):
            self._on_refusal("origin")
            return PlainTextResponse("pages of other sites may not control the run\n", 403)
        if wait := self._wrong_tokens.wait(address):
            self._on_refusal("rate")
            return too_many_requests(wait, "too many wrong tokens")
        if not is_authorized(single_header(scope, b"authorization").encode("latin-1"), self._token):
            self._wrong_tokens.take(address)
            self._on_refusal("token")
            sentence = "send the token of --watch.token-file in one header, Authorization: Bearer TOKEN\n"
            return PlainTextResponse(sentence, 401, {"www-authenticate": 'Bearer realm="draftscope"'})
        if wait := self._requests.take(address):
            self._on_refusal("rate")
            return too_many_requests(wait, f"more than {PER_SECOND:g} control request a second")
        return None


def control_routes(control: Control, monitor: Monitor, token: bytes, on_refusal: OnRefusal) -> APIRouter:
    """The routes that control the run for a client with `token`."""
    router = APIRouter(prefix="/control", tags=["control"])
    access = AccessControl(token, on_refusal)
    for action in CONTROL_ACTIONS:
        router.add_api_route(
            f"/{action}",
            _endpoint(action, access, control, monitor),
            methods=["POST"],
            operation_id=action,
            summary=f"Ask the run to {action}",
            status_code=202,
            response_model=ControlAnswer,
            responses={
                200: {"model": ControlAnswer, "description": "It is so already"},
                "4XX": {"description": "Refused", "content": _SENTENCE},
            },
            openapi_extra={"requestBody": {"content": {"application/json": {"schema": ControlRequest.model_json_schema()}}}},
            # For the schema only: `AccessControl` checks the token before the body is read.
            dependencies=[Security(HTTPBearer(auto_error=False))],
        )
    return router


def _endpoint(action: str, access: AccessControl, control: Control, monitor: Monitor) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        refusal = access.refusal(request)
        if refusal is not None:
            return refusal
        reason = read_reason(await request.body())
        if reason is None:
            sentence = f'the body must be JSON as in {{"reason": "why"}}, of {MAX_REASON} characters at most, or empty\n'
            return PlainTextResponse(sentence, 400)
        return _answer(action, control.request(action, reason), monitor)

    return endpoint


def _answer(action: str, answer: Answer, monitor: Monitor) -> Response:
    if answer.status == 409:
        return PlainTextResponse(answer.message + "\n", 409)
    run = monitor.state
    content: dict[str, Any] = {"action": action, "accepted": True, "message": answer.message, "state": run.state, "step": run.step}
    return Response(orjson.dumps(content) + b"\n", answer.status, media_type="application/json")


def read_reason(body: bytes) -> str | None:
    """The reason in a body, printable and on one line; "" for an empty body, None for an invalid one."""
    if not body:
        return ""
    try:
        reason = ControlRequest.model_validate_json(body).reason
    except ValidationError:
        return None
    return one_line("".join(character if character.isprintable() else " " for character in reason))


def _is_cross_site(request: Request) -> bool:
    """Whether a browser sent it for a page of another server. Other clients send neither header."""
    sites, origins = request.headers.getlist("sec-fetch-site"), request.headers.getlist("origin")
    own = request.headers.get("host", "").lower()
    return any(site != "same-origin" for site in sites) or any(origin.lower().partition("://")[2] != own for origin in origins)
