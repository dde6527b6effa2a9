"""docker/webhook/receive.py: alerts as lines; whatever else arrives does no harm."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import httpx
import pytest

from docker.webhook import receive
from docker.webhook.receive import Receiver, lines

STALLED = {
    "status": "firing",
    "labels": {"alertname": "DraftscopeStalled", "severity": "critical", "instance": "box:9400"},
    "annotations": {"summary": "A run has stopped making steps.", "description": "The run at box:9400 has made no step for 7m."},
}


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_each_alert_is_a_line(address, capsys):
    over = {**STALLED, "status": "resolved"}
    answer = httpx.post(address, json={"version": "4", "alerts": [STALLED, over]})
    assert (answer.status_code, answer.text) == (200, "ok\n")
    assert capsys.readouterr().out.splitlines() == [
        "FIRING   critical DraftscopeStalled box:9400: The run at box:9400 has made no step for 7m.",
        "RESOLVED critical DraftscopeStalled box:9400",
    ]


def test_an_alert_that_says_little_is_a_line_all_the_same():
    assert list(lines({"alerts": [{"status": "firing", "labels": {"alertname": "X"}, "annotations": {"summary": "Y."}}, {}]})) == [
        "FIRING   - X: Y.",
        "UNKNOWN  - an alert without a name: says nothing",
    ]


def test_a_terminal_gets_no_control_characters_and_no_endless_line(address, capsys):
    spoilt = {**STALLED, "annotations": {"description": "a\x1b[2Jb\nFIRING c\x9b" + "d" * 5000}}
    assert httpx.post(address, json={"alerts": [spoilt]}).status_code == 200
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isprintable()
    assert len(line) == receive.MOST_LETTERS


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"3",
        b"\xff\xfe",
        b"{}",
        b'{"alerts": 1}',
        b'{"alerts": [1]}',
        b'{"alerts": [{"labels": 3}]}',
        b"[" * 9999,
    ],
)
def test_what_is_no_message_is_refused(address, body, capsys):
    assert httpx.post(address, content=body).status_code == 400
    assert httpx.get(address).status_code == 200
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("length", "status"), [("1000001", 413), ("9" * 400, 413), ("", 411), ("-1", 411), ("²", 411), ("1_0", 411)]
)
def test_a_length_that_is_none_or_too_much_is_refused_before_anything_is_read(address, length, status):
    with socket.create_connection(("127.0.0.1", httpx.URL(address).port), timeout=5) as client:
        client.sendall(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
        assert client.recv(100).split()[1] == str(status).encode()


def test_a_client_that_is_silent_is_let_go(address, monkeypatch, capsys):
    monkeypatch.setattr(Receiver, "timeout", 0.2)
    with socket.create_connection(("127.0.0.1", httpx.URL(address).port), timeout=5) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12")
        assert client.recv(100) == b""
    assert httpx.post(address, content=json.dumps({"alerts": []})).status_code == 200
    assert capsys.readouterr().err == ""
