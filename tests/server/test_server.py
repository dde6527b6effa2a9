"""trainer/server/server.py: a port taken early, answers from a thread of its own, and a clean end."""

import re
import signal
import socket

import httpx
import pytest

from tests.support.fake_monitor import FakeMonitor
from tests.support.served import SERVER_SECONDS, Served, exposition
from trainer.errors import ConfigError
from trainer.server.app import create_app
from trainer.server.server import StatusServer, on_this_machine


def test_signal_handlers_stay_the_trainers():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Served() as served:
        served.get("/healthz")
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_dead_server_hurts_nobody(caplog):
    sock = StatusServer.bind("127.0.0.1", 0)
    server = StatusServer(sock)
    sock.close()
    server.start(create_app(FakeMonitor(), exposition))
    server._thread.join(SERVER_SECONDS)
    assert "has died, training goes on" in caplog.text
    server.stop()


def test_a_port_in_use_is_an_error_with_the_way_out():
    with StatusServer.bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"^port {port} on 127\.0\.0\.1 is in use: .*; choose another with --watch\.port, or 0 for any"
        ):
            StatusServer.bind("127.0.0.1", port)


def test_an_address_that_is_not_here_is_an_error():
    with pytest.raises(ConfigError, match=r"^port 9400 on 192\.0\.2\.1 cannot be opened: Cannot assign requested address; change"):
        StatusServer.bind("192.0.2.1", 9400)


def test_addresses():
    assert StatusServer(StatusServer.bind("127.0.0.1", -1)).address is None
    with StatusServer.bind("127.0.0.1", 0) as sock:
        assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d+", StatusServer(sock).address)


def test_ipv6():
    try:
        sock = StatusServer.bind("::1", 0)
    except ConfigError as error:
        pytest.skip(str(error))
    server = StatusServer(sock)
    server.start(create_app(FakeMonitor(), exposition))
    assert httpx.get(f"{server.address}/healthz", trust_env=False).text == "ok\n"
    server.stop()


def test_no_server_takes_every_call():
    server = StatusServer(None)
    server.start(create_app(FakeMonitor(), exposition))
    server.stop()


def test_a_server_that_never_started_frees_its_port():
    sock = StatusServer.bind("127.0.0.1", 0)
    address = sock.getsockname()
    StatusServer(sock).stop()
    with socket.create_server(address):
        pass


def test_an_address_for_a_browser_on_this_machine():
    assert on_this_machine("http://0.0.0.0:9400") == "http://127.0.0.1:9400"
    assert on_this_machine("http://[::]:9400") == "http://[::1]:9400"
    assert on_this_machine("http://10.0.0.0:9400") == "http://10.0.0.0:9400"
