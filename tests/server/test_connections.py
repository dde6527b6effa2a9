"""trainer/server/connections.py: slow, silent and greedy clients keep nobody from an answer, and go."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from tests.support.served import SERVER_SECONDS, Served, exposition, read_all
from tests.support.threads import eventually
from trainer.server import connections
from trainer.server.middleware import SAFE_HEADERS

# A machine that is busy with other things may take its time; a request that waits for another waits for seconds.
PROMPT = 0.5
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One server for all tests that leave it as it is."""
    with Served() as served:
        yield served


@contextmanager
def stepping() -> Iterator[list[float]]:
    """A thread that does small steps, as a stage does; how long the longest took is known at the end."""
    longest, done = [0.0], threading.Event()

    def step() -> None:
        while not done.is_set():
            began = time.monotonic()
            time.sleep(0.002)
            sum(range(2000))
            longest[0] = max(longest[0], time.monotonic() - began)

    thread = threading.Thread(target=step)
    thread.start()
    try:
        yield longest
    finally:
        done.set()
        thread.join()


def slowest_answer(served: Served, times: int = 10) -> float:
    """Seconds of the slowest of some answers of /healthz, each on a connection of its own."""
    slowest = 0.0
    for _ in range(times):
        began = time.monotonic()
        assert served.send(GET[:-2] + b"Connection: close\r\n\r\n").endswith(b"ok\n")
        slowest = max(slowest, time.monotonic() - began)
    return slowest


def test_a_slow_scrape_delays_neither_the_others_nor_a_step() -> None:
    entered, left = threading.Event(), threading.Event()

    def slow(accept: str | None) -> tuple[bytes, str]:
        entered.set()
        left.wait(2.0)
        return exposition(accept)

    with Served(exposition=slow) as served, stepping() as longest:
        scrape = threading.Thread(target=httpx.get, args=(f"{served.server.address}/metrics",), kwargs={"trust_env": False})
        scrape.start()
        try:
            assert entered.wait(SERVER_SECONDS)
            assert slowest_answer(served) < PROMPT
            assert served.get("/status").status_code == 200
            assert scrape.is_alive()
        finally:
            left.set()
            scrape.join()
    assert longest[0] < PROMPT


def test_half_open_connections_delay_nobody(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(30):
            for sent in (b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: b"):
                stack.enter_context(served.connect()).sendall(sent)
        assert slowest_answer(served) < PROMPT


def test_reading_byte_by_byte_delays_nobody() -> None:
    def large(accept: str | None) -> tuple[bytes, str]:
        return b"draftscope_loss 3.4\n" * 500_000, "text/plain; charset=utf-8"

    with Served(exposition=large) as served, served.connect() as reader, stepping() as longest:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.sendall(GET.replace(b"/healthz", b"/metrics"))
        for _ in range(20):
            reader.recv(1)
        assert slowest_answer(served) < PROMPT
    assert longest[0] < PROMPT


def until_gone(connection: socket.socket) -> float:
    began = time.monotonic()
    read_all(connection)
    return time.monotonic() - began


def test_a_request_that_does_not_come_to_its_end_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(connections, "REST_SECONDS", 0.3)
    with ExitStack() as stack:
        unfinished = (b"", b"G", GET[:30], GET[:-2] + b"Content-Length: 5\r\n\r\nab")
        opened = [stack.enter_context(served.connect()) for _ in unfinished]
        for connection, sent in zip(opened, unfinished, strict=True):
            connection.sendall(sent)
        began = time.monotonic()
        for connection, sent in zip(opened, unfinished, strict=True):
            until_gone(connection)
            assert 0.2 < time.monotonic() - began < 2, sent


def test_a_request_that_trickles_in_is_given_up_too(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    with served.connect() as connection:
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 5:
                connection.sendall(b"X")
                time.sleep(0.02)
        assert 0.2 < time.monotonic() - began < 2


def test_the_deadline_is_of_one_request_not_of_the_connection(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    with served.connect() as connection:
        for _ in range(4):
            connection.sendall(GET)
            answer = b""
            while not answer.endswith(b"ok\n"):
                answer += connection.recv(65536)
            time.sleep(0.12)


def test_a_slow_answer_and_an_open_stream_have_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.2)

    def slow(accept: str | None) -> tuple[bytes, str]:
        time.sleep(0.6)
        return exposition(accept)

    with Served(exposition=slow) as served, served.client.stream("GET", "/events") as stream:
        lines = stream.iter_lines()
        served.live.tick(step=1)
        assert served.get("/metrics").status_code == 200
        served.live.tick(step=2)
        assert any('"step":2' in line for line in lines)


def test_an_answer_that_nobody_takes_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_SECONDS", 0.3)

    def large(accept: str | None) -> tuple[bytes, str]:
        return b"x" * 50_000_000, "text/plain; charset=utf-8"

    with Served(exposition=large) as served, served.connect() as reader:
        reader.sendall(GET.replace(b"/healthz", b"/metrics"))
        eventually(lambda: len(open_connections(served)) == 1)
        eventually(lambda: len(open_connections(served)) == 0)
        assert len(read_all(reader)) < 50_000_000


def open_connections(served: Served) -> list[object]:
    return list(served.server._server.server_state.connections)


def crowd(served: Served, count: int, hello: Callable[[socket.socket], None], stack: ExitStack) -> list[socket.socket]:
    guests = []
    for _ in range(count):
        guests.append(stack.enter_context(served.connect()))
        hello(guests[-1])
    return guests


def test_past_the_limit_the_longest_silent_one_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 10)
    with Served() as served, ExitStack() as stack:
        guests = crowd(served, 10, lambda guest: guest.sendall(b"G"), stack)
        eventually(lambda: len(open_connections(served)) == 10)
        guests[0].sendall(b"E")  # the second is now the one that has said nothing for longest
        time.sleep(0.1)
        assert served.get("/healthz").status_code == 200
        assert until_gone(guests[1]) < 1
        guests[0].sendall(GET[2:])
        assert guests[0].recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_flood_of_connections_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with Served() as served, ExitStack() as stack:
        crowd(served, 2 * connections.MAX_CONNECTIONS, lambda guest: None, stack)
        assert slowest_answer(served, 3) < 2 * PROMPT
        assert len(open_connections(served)) <= connections.MAX_CONNECTIONS + 1


def test_who_waits_for_an_answer_is_not_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    with Served() as served, ExitStack() as stack:
        stream = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
        streams = crowd(served, 3, lambda guest: guest.sendall(stream), stack)
        eventually(lambda: served.app.state.events.open_streams == 3)
        late = stack.enter_context(served.connect())
        assert until_gone(late) < 1
        served.live.tick(step=7)
        for guest in streams:
            assert b"200 OK" in guest.recv(65536)


BROKEN = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "bad UTF-8 in the target": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a blank in the target": b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n",
    "a nul in a header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
}


def test_what_is_no_request_gets_a_safe_answer(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    answers = {case: served.send(sent) for case, sent in BROKEN.items()}
    safe = [b"HTTP/1.1 400 Bad Request\r\n", *(f"\r\n{name}: {value}\r\n".encode() for name, value in SAFE_HEADERS.items())]
    assert {case: answer for case, answer in answers.items() if not all(part in answer for part in safe)} == {}
    assert served.get("/healthz").status_code == 200
    assert caplog.messages == []


def test_a_body_that_is_broken_from_its_start_gets_the_same_answer_and_reaches_no_route(caplog: pytest.LogCaptureFixture) -> None:
    with Served() as served:
        answer = served.send(GET.replace(b"/healthz", b"/status")[:-2] + b"Transfer-Encoding: chunked\r\n\r\nno chunk\r\n")
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert served.get("/healthz").status_code == 200
    assert served.live.asked == 0
    assert caplog.messages == []


def test_a_client_that_asks_whether_to_send_its_body_is_told_to() -> None:
    with Served(token=b"0123456789abcdef") as served, served.connect() as connection:
        head = b"POST /control/stop HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer 0123456789abcdef\r\n"
        connection.sendall(head + b"Content-Length: 2\r\nConnection: close\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"{}")
        assert read_all(connection).startswith(b"HTTP/1.1 202 ")


def test_heads_are_bounded(served: Served) -> None:
    for sent in (b"GET /" + b"a" * 20_000, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000):
        assert served.send(sent).startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")


def test_a_broken_body_in_mid_answer_is_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    with Served() as served:
        served.live.tick()
        with served.connect() as connection:
            connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
            connection.sendall(b"no chunk\r\n")
            read_all(connection)
        assert served.get("/healthz").status_code == 200
    assert caplog.messages == []


def test_requests_that_come_at_once_are_answered_in_turn(served: Served) -> None:
    last = GET[:-2] + b"Connection: close\r\n\r\n"
    assert served.send(GET + GET + last).count(b"HTTP/1.1 200 OK") == 3
