"""trainer/server/middleware.py: who is let in, what every answer carries, and how much may come in."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.support.fake_monitor import FakeMonitor
from tests.support.served import Served
from tests.support.threads import FakeClock
from trainer.server import middleware
from trainer.server.middleware import MAX_BODY_BYTES, READS_AT_ONCE, SAFE_HEADERS, RateLimit, client_of, single_header

CLOSE = b"Connection: close\r\n\r\n"


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with Served(allow_hosts=("Trainer", "proxy.example:443", "::2", "*", "*.evil.example")) as served:
        yield served


@pytest.fixture
def served(shared: Served) -> Served:
    """One server for all tests that leave it as it is."""
    shared.refused.clear()
    return shared


def test_asking_for_the_head_alone_answers_as_get_does(served: Served) -> None:
    for path in ("/healthz", "/readyz", "/status", "/metrics", "/nothing"):
        head, whole = served.client.head(path), served.get(path)
        assert (head.status_code, head.headers["content-type"], head.content) == (
            whole.status_code,
            whole.headers["content-type"],
            b"",
        )
    assert served.client.head("/events").status_code == 405, "a stream has no end"


def test_only_known_hosts_are_let_in(served: Served) -> None:
    known = ("localhost", "LocalHost:9400", "127.0.0.1:1", "127.9.9.9", "[::1]:9400", "[::1]", "[::2]:1", "trainer:9400", "trainer")
    for host in (*known, "TRAINER", "proxy.example", "localhost:"):
        assert served.get("/status", host=host).status_code == 200, host
    assert served.refused == []


def test_a_probe_may_ask_for_signs_of_life_by_any_address(served: Served) -> None:
    """As a kubelet does; it learns nothing but that the process answers."""
    assert served.get("/healthz", host="10.1.2.3:9400").text == "ok\n"
    for path in ("/readyz", "/healthz/", "/status?/healthz"):
        assert served.get(path, host="10.1.2.3:9400").status_code == 400, path


STRANGERS = [
    *("evil.example", "localhost.evil.example:9400", "127.0.0.1.evil.example", "[::3]:9400", "10.0.0.1", "localhost.", "trainer."),
    *("127.1", "2130706433", "0x7f.1", "user@localhost", "localhost@evil.example", "localhost:9400@evil.example", "localhost:evil"),
    *("localhost:1:2", "localhost/", "localhost,evil.example", "::1", "[::1", "::1]", "[::1]evil.example", "[::1%25lo]"),
    *(
        "[localhost]",
        "http://localhost",
        "localhost?x",
        "*",
        "a.evil.example",
        "127.0.0.1:evil",
        "127.0.0.1:1:2",
        "127.0.0.1@evil.example",
    ),
]


def test_strangers_are_refused_whatever_they_call_themselves(served: Served) -> None:
    def is_refused(host: str) -> bool:
        answer = served.send(b"GET /status HTTP/1.1\r\nHost: " + host.encode() + b"\r\n" + CLOSE)
        return answer.startswith(b"HTTP/1.1 400 ") and b"is not allowed; ask for localhost or 127.0.0.1" in answer

    strangers = ["", " ", "\t", *STRANGERS]
    assert [host for host in strangers if not is_refused(host)] == []
    assert served.refused == ["host"] * len(strangers), "each is counted"


@pytest.mark.parametrize("head", [b"", b"Host: localhost\r\nHost: localhost\r\n", b"Host: local\r\nHost: host\r\n"])
def test_a_request_names_one_host(served: Served, head: bytes) -> None:
    assert served.send(b"GET /status HTTP/1.1\r\n" + head + CLOSE).startswith(b"HTTP/1.1 400 ")
    assert served.send(b"GET /status HTTP/1.0\r\n" + head + CLOSE).startswith(b"HTTP/1.1 400 ")


def test_a_header_that_comes_twice_is_none() -> None:
    """Whatever server passes it on; ours lets no request through that names two hosts."""
    scope = {"headers": [(b"host", b"local"), (b"host", b"host"), (b"x", b" y ")]}
    assert (single_header(scope, b"host"), single_header(scope, b"x"), single_header(scope, b"z")) == ("", "y", "")


@pytest.mark.parametrize("named", ["x-forwarded-host", "forwarded", "x-original-host"])
def test_a_proxys_words_do_not_stand_for_the_host(served: Served, named: str) -> None:
    assert served.get("/status", host="evil.example", **{named: "localhost"}).status_code == 400


def test_every_answer_is_safe_for_a_browser(served: Served) -> None:
    assert SAFE_HEADERS == {
        "cache-control": "no-store",
        "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    served.live.tick()
    answers = [
        served.get(path)
        for path in ("/", "/status", "/metrics", "/healthz", "/readyz", "/openapi.json", "/nope", "/status?format=x")
    ]
    answers += [
        served.get("/status", host="evil.example"),
        served.client.post("/status"),
        served.client.post("/", content=b"x" * 5000),
    ]
    with served.client.stream("GET", "/events") as stream:
        answers.append(stream)
    for answer in answers:
        assert dict(answer.headers).items() >= SAFE_HEADERS.items(), answer.url
        assert not {name for name in answer.headers if name.startswith("access-control-")}
        assert "server" not in answer.headers


def test_pages_of_other_sites_may_link_here_but_load_nothing(served: Served) -> None:
    for site in ("cross-site", "same-site"):
        for path, into in (("/status", "empty"), ("/events", "empty"), ("/healthz", "image"), ("/status", "iframe")):
            assert served.get(path, **{"sec-fetch-site": site, "sec-fetch-dest": into}).status_code == 403
        assert served.get("/status", **{"sec-fetch-site": site, "sec-fetch-dest": "document"}).status_code == 200
    for site in ("same-origin", "none"):
        assert served.get("/status", **{"sec-fetch-site": site, "sec-fetch-dest": "empty"}).status_code == 200
    assert served.refused == ["origin"] * 8


def test_what_fails_is_one_sentence_and_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    def broken(accept: str | None) -> tuple[bytes, str]:
        raise RuntimeError("no numbers at https://me:secret@host")

    with Served(exposition=broken) as served:
        for _ in range(3):
            answer = served.get("/metrics")
            assert (answer.status_code, answer.text) == (500, "/metrics failed: RuntimeError: no numbers at https://host\n")
            assert dict(answer.headers).items() >= SAFE_HEADERS.items()
        assert served.get("/healthz").status_code == 200
    messages = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(messages) == 1
    assert messages[0].startswith("/metrics failed, training goes on: RuntimeError: no numbers")


def test_too_many_requests_are_refused() -> None:
    with Served() as served:
        answers = [served.get("/") for _ in range(READS_AT_ONCE)]
        assert {answer.status_code for answer in answers} == {200}
        refused = next(answer for answer in (served.get("/") for _ in range(400)) if answer.status_code != 200)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.text == "more than 20 requests a second from one address, which is the limit; wait 1 s\n"
        assert served.refused == ["rate"]


def test_another_address_in_a_header_passes_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "READS_PER_SECOND", 0.001)
    monkeypatch.setattr(middleware, "READS_AT_ONCE", 3)
    with Served() as served:
        codes = [served.get("/", **{"x-forwarded-for": f"10.0.0.{number}"}).status_code for number in range(5)]
        assert served.get("/healthz").status_code == 200, "whether it lives is answered all the same"
    assert codes == [200, 200, 200, 429, 429]


HEAD = b"POST /control/stop HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer 0123456789abcdef\r\n"


@pytest.mark.parametrize("length", [MAX_BODY_BYTES + 1, 10**9, 10**18])
def test_a_body_that_says_it_is_too_large_is_not_read(length: int) -> None:
    with Served(token=b"0123456789abcdef") as served, served.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % length)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
        assert served.refused == ["size"]
        assert not served.control.is_stopping()


def test_a_body_that_does_not_say_so_is_read_up_to_the_limit() -> None:
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
    with Served(token=b"0123456789abcdef") as served:
        with served.connect() as connection:
            connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + 5 * chunk)
            answer = connection.recv(65536)
            while not answer.endswith(b"limit\n"):
                answer += connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert served.refused == ["size"]
        assert not served.control.is_stopping()
        whole = HEAD + CLOSE[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + 3 * chunk + b"2\r\n{}\r\n0\r\n\r\n"
        assert served.send(whole).startswith(b"HTTP/1.1 202 ")


def test_a_stream_is_not_broken_off_noisily_by_a_body(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.live.tick()
    with served.connect() as connection:
        connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert b"200 OK" in connection.recv(65536)
        connection.sendall(10 * (b"400\r\n" + b" " * 1024 + b"\r\n"))
        while connection.recv(65536):
            pass
    assert served.get("/healthz").status_code == 200
    assert caplog.messages == []


def test_secrets_are_in_no_answer() -> None:
    live = FakeMonitor(
        run={"id": "a", "name": "a", "started_at": "2026-11-30T10:21:03+00:00", "command": ["train", "--hub-token", "S3CRET"]},
        state="failed",
        last_error="OSError: http://me:S3CRET@proxy:3128 says no to hf_S3CRETS3CRETS3CRET",
        warnings=["https://host/?token=S3CRET"],
    )
    with Served(live=live) as served:
        live.tick()
        answers = [served.get(path).text for path in ("/status", "/status?format=text", "/readyz")]
        with served.client.stream("GET", "/events") as stream:
            lines = stream.iter_lines()
            answers.append(next(line for line in lines if line.startswith("data: ")))
    assert [answer for answer in answers if "S3CRET" in answer] == []
    assert all("proxy:3128" in answer for answer in answers)


def test_a_burst_passes_then_a_steady_rate() -> None:
    clock = FakeClock()
    limit = RateLimit(2.0, 3, clock)
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    clock.now += 0.25
    assert limit.take("a") == pytest.approx(0.25)
    clock.now += 0.25
    assert limit.take("a") == 0
    assert limit.take("a") == pytest.approx(0.5)
    clock.now += 1000
    assert [limit.take("a") > 0 for _ in range(4)] == [False, False, False, True], "no more than the burst is saved up"


def test_looking_takes_nothing_and_a_refusal_costs_nothing() -> None:
    limit = RateLimit(1.0, 1, FakeClock())
    assert [limit.wait("a") for _ in range(5)] == [0] * 5
    assert limit.take("a") == 0
    assert [limit.take("a") for _ in range(5)] == [1] * 5


def test_clients_do_not_share() -> None:
    limit = RateLimit(1.0, 1, FakeClock())
    assert (limit.take("10.0.0.1"), limit.take("10.0.0.2"), limit.take("10.0.0.1")) == (0, 0, 1)


def test_memory_is_bounded_and_the_busy_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "MAX_CLIENTS", 10)
    limit = RateLimit(1.0, 1, FakeClock())
    limit.take("busy")
    for number in range(100):
        limit.take(f"10.0.0.{number}")
        assert limit.take("busy") > 0
    assert len(limit._buckets) == 10


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        *((address, "localhost") for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.2")),
        ("", ""),
        ("testclient", "testclient"),
    ],
)
def test_who_an_address_belongs_to(address: str, client: str) -> None:
    assert client_of(address) == client
