"""`POST /control/{checkpoint,pause,resume,stop}`: requests with the run's token in, wishes for `Control` out."""

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
from trainer.monitor.control import Answer, Control, ControlledRun
from trainer.server.auth import is_bearer
from trainer.server.middleware import Refused, address_of, only, too_many
from trainer.server.rate_limit import RateLimit

PER_SECOND, AT_ONCE = 1.0, 10
WRONG_PER_SECOND, WRONG_AT_ONCE = 1 / 12, 5
MOST_REASON = 300

_SENTENCE = {"text/plain": {"schema": {"type": "string"}}}


class Wish(BaseModel):
    """The body of a request, which may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)
    reason: str = Field(default="", max_length=MOST_REASON, description="Goes into the run's events.")


class Taken(BaseModel):
    """The answer to a request that was taken: 202 where it will be done, 200 where it is done already."""

    action: Literal["checkpoint", "pause", "resume", "stop"]
    accepted: Literal[True] = True
    message: str
    state: str = Field(description="Of the run, now.")
    step: int = Field(description="Of the run, now.", ge=0)


class Gate:
    """Decides who may ask: no page of another site, nobody without the token, nobody too often."""

    def __init__(self, token: bytes, refused: Refused) -> None:
        self._token, self._refused = token, refused
        self._asked = RateLimit(PER_SECOND, AT_ONCE)
        self._wrong = RateLimit(WRONG_PER_SECOND, WRONG_AT_ONCE)

    def refusal(self, request: Request) -> Response | None:
        scope, address = request.scope, address_of(request.scope)
        if _is_from_elsewhere(request):
            self._refused("origin")
            return PlainTextResponse("pages of other sites may not control the run\n", 403)
        if wait := self._wrong.wait(address):
            self._refused("rate")
            return too_many(wait, "too many wrong tokens")
        if not is_bearer(only(scope, b"authorization").encode("latin-1"), self._token):
            self._wrong.take(address)
            self._refused("token")
            sentence = "send the token of --watch.token-file in one header, Authorization: Bearer TOKEN\n"
            return PlainTextResponse(sentence, 401, {"www-authenticate": 'Bearer realm="draftscope"'})
        if wait := self._asked.take(address):
            self._refused("rate")
            return too_many(wait, f"more than {PER_SECOND:g} control request a second")
        return None


def control_routes(control: Control, run: ControlledRun, token: bytes, refused: Refused) -> APIRouter:
    """The routes, for a run whose token is `token`."""
    router = APIRouter(prefix="/control", tags=["control"])
    gate = Gate(token, refused)
    for action in CONTROL_ACTIONS:
        router.add_api_route(
            f"/{action}",
            _endpoint(action, gate, control, run),
            methods=["POST"],
            operation_id=action,
            summary=f"Ask the run to {action}",
            status_code=202,
            response_model=Taken,
            responses={
                200: {"model": Taken, "description": "It is so already"},
                "4XX": {"description": "Refused", "content": _SENTENCE},
            },
            openapi_extra={"requestBody": {"content": {"application/json": {"schema": Wish.model_json_schema()}}}},
            # For the schema: the gate is what looks, before the body is read.
            dependencies=[Security(HTTPBearer(auto_error=False))],
        )
    return router


def _endpoint(action: str, gate: Gate, control: Control, run: ControlledRun) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        refusal = gate.refusal(request)
        if refusal is not None:
            return refusal
        reason = read_reason(await request.body())
        if reason is None:
            sentence = f'the body must be JSON as in {{"reason": "why"}}, of {MOST_REASON} characters at most, or empty\n'
            return PlainTextResponse(sentence, 400)
        return _told(action, control.ask(action, reason), run)

    return endpoint


def _told(action: str, answer: Answer, run: ControlledRun) -> Response:
    if answer.status == 409:
        return PlainTextResponse(answer.message + "\n", 409)
    content: dict[str, Any] = {"action": action, "accepted": True, "message": answer.message, "state": run.state, "step": run.step}
    return Response(orjson.dumps(content) + b"\n", answer.status, media_type="application/json")


def read_reason(body: bytes) -> str | None:
    """The reason in a body, on one line and printable; "" for an empty one, None for what is no such body."""
    if not body:
        return ""
    try:
        reason = Wish.model_validate_json(body).reason
    except ValidationError:
        return None
    return one_line("".join(sign if sign.isprintable() else " " for sign in reason))


def _is_from_elsewhere(request: Request) -> bool:
    """Whether a browser sent it for a page that is not this server's own. What is no browser sends neither header."""
    sites, origins = request.headers.getlist("sec-fetch-site"), request.headers.getlist("origin")
    own = request.headers.get("host", "").lower()
    return any(site != "same-origin" for site in sites) or any(origin.lower().partition("://")[2] != own for origin in origins)
