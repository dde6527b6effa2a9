"""trainer/server/control_routes.py: who has the token may control the run, over one way, and nobody else may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.fake_monitor import FakeMonitor
from tests.support.served import Served
from trainer.metrics.catalogue.watching import CONTROL_ACTIONS
from trainer.server import control_routes, middleware
from trainer.server.control_routes import AT_ONCE, MAX_REASON, WRONG_AT_ONCE, read_reason

TOKEN = b"0123456789abcdef-token"
RIGHT = {"authorization": f"Bearer {TOKEN.decode()}"}
PATHS = {f"/control/{action}" for action in CONTROL_ACTIONS}


@pytest.fixture
def served() -> Iterator[Served]:
    with Served(token=TOKEN, allow_hosts=("trainer",)) as served:
        yield served


@pytest.fixture(scope="module")
def patient() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((middleware, "READS_AT_ONCE"), (control_routes, "AT_ONCE"), (control_routes, "WRONG_AT_ONCE")):
            patch.setattr(module, name, 10**9)
        served = Served(token=TOKEN, allow_hosts=("trainer",))
        served.app.middleware_stack = served.app.build_middleware_stack()  # else at its first request, when the limits are back
    with served:
        yield served


@pytest.fixture
def untouched(patient: Served) -> Iterator[Served]:
    """One server, without limits, for all tests in which nobody gets through."""
    patient.refused.clear()
    yield patient
    assert is_untouched(patient)


def post(served: Served, action: str, *, token: bool = True, content: bytes = b"", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return served.client.post(f"/control/{action}", content=content, headers=(RIGHT if token else {}) | named)


def is_untouched(served: Served) -> bool:
    control = served.control
    return not (control.is_stopping() or control.wants_pause() or control.takes_checkpoint() or served.live.told)


def test_without_a_token_there_are_no_such_routes() -> None:
    with Served() as served:
        for path in PATHS:
            for method in ("POST", "GET", "OPTIONS"):
                assert served.client.request(method, path, headers=RIGHT).status_code == 404
        assert "/control" not in served.get("/openapi.json").text + served.get("/").text
        assert is_untouched(served)


def test_with_a_token_the_index_and_the_schema_tell_them(served: Served) -> None:
    schema = served.get("/openapi.json").json()
    assert {path for path in schema["paths"] if path.startswith("/control")} == PATHS
    for path in PATHS:
        assert path in served.get("/").text
        assert set(schema["paths"][path]) == {"post"}
        assert schema["paths"][path]["post"]["security"] == [{"HTTPBearer": []}]
        assert set(schema["paths"][path]["post"]["responses"]) == {"200", "202", "4XX"}
    assert TOKEN.decode() not in json.dumps(schema)


@pytest.mark.parametrize("action", ["checkpoint", "pause", "stop"])
def test_who_has_the_token_is_heard(served: Served, action: str) -> None:
    answer = post(served, action, content=b'{"reason": "lunch"}')
    assert answer.status_code == 202
    assert answer.headers["content-type"] == "application/json"
    told = answer.json()
    assert {**told, "message": ""} == {"action": action, "accepted": True, "message": "", "state": "running", "step": 1240}
    wishes = served.control.takes_checkpoint(), served.control.wants_pause(), served.control.is_stopping()
    assert wishes == (action == "checkpoint", action == "pause", action == "stop")
    assert served.live.told[1] == (f"{action}_requested", {"message": told["message"], "step": 1240, "reason": "lunch"})


def test_asked_again_it_is_so_already_and_what_cannot_be_is_a_sentence(served: Served) -> None:
    refused = post(served, "resume")
    assert (refused.status_code, refused.text) == (409, "The run is not paused, it is running: there is nothing to resume.\n")
    assert [post(served, "pause").status_code for _ in range(2)] == [202, 200]
    assert [post(served, "resume").status_code for _ in range(2)] == [202, 409]
    assert [post(served, "stop").status_code for _ in range(3)] == [202, 200, 200]


WRONG: dict[str, dict[str, str]] = {
    "none": {},
    "another": {"authorization": "Bearer 0123456789abcdef-tokem"},
    "its beginning": {"authorization": "Bearer 0123456789abcdef"},
    "empty": {"authorization": "Bearer"},
    "another scheme": {"authorization": f"Basic {TOKEN.decode()}"},
    "a cookie": {"cookie": f"token={TOKEN.decode()}; Authorization=Bearer {TOKEN.decode()}"},
    "another header": {"x-api-key": TOKEN.decode(), "proxy-authorization": RIGHT["authorization"]},
}


def test_who_has_not_is_told_how_and_nothing_else(untouched: Served) -> None:
    for case, headers in WRONG.items():
        for content in (b"", b"no JSON", b'{"reason": "x"}'):
            answer = post(untouched, "stop", token=False, content=content, **headers)
            assert answer.status_code == 401, (case, content)
            assert answer.headers["www-authenticate"] == 'Bearer realm="draftscope"'
            assert answer.text == "send the token of --watch.token-file in one header, Authorization: Bearer TOKEN\n"
    assert untouched.refused == ["token"] * 3 * len(WRONG)


def test_a_token_in_the_address_or_twice_does_not_count(untouched: Served) -> None:
    for query in (f"token={TOKEN.decode()}", f"access_token={TOKEN.decode()}", f"authorization=Bearer%20{TOKEN.decode()}"):
        assert untouched.client.post(f"/control/stop?{query}").status_code == 401
    twice = [("authorization", RIGHT["authorization"])] * 2
    assert untouched.client.post("/control/stop", headers=twice).status_code == 401


ELSEWHERE: list[dict[str, str]] = [
    *(
        {"origin": origin}
        for origin in ("http://evil.example", "null", "http://localhost:8400", "http://localhost", "", "localhost")
    ),
    *({"sec_fetch_site": site} for site in ("cross-site", "same-site", "none", "", "other")),
    *({"origin": origin} for origin in ("http://[", "http://localhost:9400/x", "http://me@localhost:9400", "localhost:9400")),
    {"origin": "http://evil.example", "sec_fetch_site": "same-origin"},
]


def test_pages_of_other_sites_are_refused_token_or_not(untouched: Served) -> None:
    for headers in ELSEWHERE:
        for token in (True, False):
            answer = post(untouched, "stop", token=token, host="localhost:9400", **headers)
            assert (answer.status_code, answer.text.count("\n")) == (403, 1), (headers, token)
    assert untouched.refused == ["origin"] * 2 * len(ELSEWHERE)


def test_its_own_pages_are_not(served: Served) -> None:
    same = {"host": "Trainer:9400", "origin": "http://trainer:9400", "sec_fetch_site": "same-origin", "sec_fetch_mode": "cors"}
    assert post(served, "pause", **same).status_code == 202
    assert post(served, "resume", host="trainer", origin="https://trainer").status_code == 202, "behind a proxy with TLS"


ASIDE = ["/x/../control/stop", "/./control/stop", "//control/stop", "/control//stop", "/control/stop/", "/Control/stop"]


def test_no_other_path_leads_there(untouched: Served) -> None:
    for path in (*ASIDE, "/control/stop;x", "/%2e%2e/control/stop", "/x/%2e%2e/control/stop"):
        for token in (b"", b"Authorization: Bearer " + TOKEN + b"\r\n"):
            head = b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            assert untouched.send(head + token + b"\r\n").startswith(b"HTTP/1.1 404 "), path


def test_however_it_is_spelt_the_token_is_asked_for(untouched: Served) -> None:
    for path in ("/control/stop", "/control%2Fstop", "/%63ontrol/stop", "/control/sto%70"):
        head = b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert untouched.send(head).startswith(b"HTTP/1.1 401 "), path


def test_no_other_method_does(untouched: Served) -> None:
    for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "STOP", "post"):
        head = (
            method.encode() + b" /control/stop HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer " + TOKEN
        )
        answer = untouched.send(head + b"\r\nX-HTTP-Method-Override: POST\r\nX-HTTP-Method: POST\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 405 "), method
        assert b"\r\nallow: POST\r\n" in answer
        assert TOKEN not in answer, "TRACE least of all"


def test_methods_of_what_reads_cannot_be_overridden_either(untouched: Served) -> None:
    for method in ("TRACE", "OPTIONS", "POST"):
        assert untouched.client.request(method, "/status").status_code == 405
    assert untouched.client.get("/control/stop?_method=POST", headers=RIGHT).status_code == 405


def test_too_many_wrong_tokens_and_even_the_right_one_has_to_wait(served: Served) -> None:
    assert [post(served, "stop", token=False).status_code for _ in range(WRONG_AT_ONCE)] == [401] * WRONG_AT_ONCE
    for token in (False, True):
        answer = post(served, "stop", token=token)
        assert (answer.status_code, answer.text.split(" from ")[0]) == (429, "too many wrong tokens")
        assert 10 <= int(answer.headers["retry-after"]) <= 13
    assert served.refused == ["token"] * WRONG_AT_ONCE + ["rate"] * 2
    assert is_untouched(served)
    assert served.get("/status").status_code == 200


def test_wrong_tokens_are_forgiven_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_routes, "WRONG_PER_SECOND", 10**6)
    with Served(token=TOKEN) as served:
        assert [post(served, "stop", token=False).status_code for _ in range(2 * WRONG_AT_ONCE)] == [401] * 2 * WRONG_AT_ONCE
        assert post(served, "stop").status_code == 202


def test_too_many_right_ones_have_to_wait_too(served: Served) -> None:
    codes = [post(served, "checkpoint").status_code for _ in range(AT_ONCE + 3)]
    assert codes[:AT_ONCE] == [202] * AT_ONCE
    assert codes[-1] == 429
    assert "rate" in served.refused


NO_BODIES = [
    *(b"no JSON", b"[]", b'"x"', b'{"reason": 5}', b'{"reason": null}', b'{"why": "x"}', b"\xff\xfe", b'{"reason": "\xff"}', b"{"),
    *(json.dumps({"reason": "x" * (MAX_REASON + 1)}).encode(), b"[" * 4000),
]


def test_a_body_that_is_none_is_a_sentence(untouched: Served) -> None:
    for content in NO_BODIES:
        answer = post(untouched, "stop", content=content)
        assert (answer.status_code, answer.text.split(" as in")[0]) == (400, "the body must be JSON"), content


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", ""),
        (b"{}", ""),
        (b'{"reason": "lunch"}', "lunch"),
        (b'{"reason": " two\\nlines\\r\\u001b[31m\\u0000 \\u202e"}', "two lines [31m"),
        (json.dumps({"reason": "ü" * MAX_REASON}).encode(), "ü" * MAX_REASON),
        (b"null", None),
    ],
)
def test_reasons_are_one_printable_line(body: bytes, reason: Any) -> None:
    found = read_reason(body)
    assert found == reason or (found is not None and found.removesuffix("…") == reason[: len(found) - 1])


def test_the_token_is_in_no_answer(served: Served) -> None:
    answers = [
        served.get(path) for path in ("/", "/status", "/status?format=text", "/metrics", "/openapi.json", "/healthz", "/readyz")
    ]
    answers += [post(served, action) for action in CONTROL_ACTIONS]
    answers += [served.get("/control/stop", **RIGHT), served.get("/nope", **RIGHT), post(served, "stop", content=b"x")]
    for answer in answers:
        assert TOKEN.decode() not in answer.text + str(answer.headers), answer.url


def test_what_the_run_is_now_is_in_the_answer() -> None:
    with Served(FakeMonitor(state="stalled", step=7), token=TOKEN) as served:
        answer = post(served, "pause").json()
    assert (answer["state"], answer["step"]) == ("stalled", 7)
