import logging
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fake_live import FakeLive, sample_status
from tests.served import SERVER_SECONDS, Served, exposition
from trainer.config import ConfigError
from trainer.status import StatusServer, create_app, readiness

DOCS = Path(__file__).parent.parent / "docs" / "status.md"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One server for all tests that leave it as it is."""
    with Served() as served:
        yield served


def test_status_is_json_of_everything_known(served):
    answer = served.get("/status")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == sample_status()


def test_status_as_text(served):
    answer = served.get("/status?format=text")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.startswith("The target holds the run back: busy 97 %.")


def test_an_unknown_format_is_refused_with_a_sentence(served):
    answer = served.get("/status?format=xml")
    assert (answer.status_code, answer.text) == (400, "format must be json or text, got 'xml'\n")


def test_metrics_in_the_format_that_was_asked_for(served):
    assert served.get("/metrics").headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert served.get("/metrics").text == "draftscope_loss 3.4\n"
    assert served.get("/metrics", accept="application/openmetrics-text").text == "# EOF\n"


def test_no_redirects_no_docs_pages_no_control(served):
    for path in ("/metrics/", "/docs", "/redoc", "/control/stop", "/nope"):
        assert served.get(path).status_code == 404, path
    assert served.client.post("/control/stop").status_code == 404
    refused = served.client.post("/status")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
    assert refused.text == "POST /status: method not allowed; GET / lists what there is\n"


def test_the_index_and_the_schema_list_the_routes(served):
    paths = {"/", "/status", "/metrics", "/healthz", "/readyz", "/events"}
    assert set(served.get("/openapi.json").json()["paths"]) == paths
    assert all(path in served.get("/").text for path in paths)


def test_every_answer_is_safe_for_a_browser(served):
    for answer in (served.get("/status"), served.get("/nope"), served.get("/status", host="evil.example")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


def test_only_known_hosts_are_let_in():
    with Served(allow_hosts=("Trainer",)) as served:
        for host in ("localhost", "LocalHost:9400", "127.0.0.1:1", "[::1]:9400", "[::1]", "trainer:9400", "trainer"):
            assert served.get("/healthz", host=host).status_code == 200, host
        for host in ("evil.example", "localhost.evil.example:9400", "127.0.0.1.evil.example", "[::2]:9400", "", "10.0.0.1"):
            answer = served.get("/healthz", host=host)
            assert answer.status_code == 400, host
            assert "is not allowed; ask for localhost or 127.0.0.1" in answer.text


@pytest.mark.parametrize(
    ("changed", "ready", "sentence"),
    [
        ({}, True, "ready: the run is running"),
        ({"state": "paused"}, True, "ready: the run is paused"),
        ({"state": "finishing"}, True, "ready: the run is finishing"),
        ({"state": "starting", "phase": "loading the target"}, False, "not ready: the run is starting: loading the target"),
        (
            {"state": "stalled", "verdict": {"sentence": "The target is stuck."}},
            False,
            "not ready: the run is stalled: The target is stuck.",
        ),
        ({"state": "failed", "last_error": "boom"}, False, "not ready: the run has failed: boom"),
        ({"state": "finished", "verdict": None}, False, "not ready: the run is finished"),
    ],
)
def test_readiness(changed, ready, sentence):
    assert readiness(sample_status(**changed)) == (ready, sentence)


def test_readyz_follows_the_run():
    with Served() as served:
        assert served.get("/readyz").status_code == 200
        served.live.tick(state="starting", phase="loading the target")
        answer = served.get("/readyz")
        assert (answer.status_code, answer.text) == (503, "not ready: the run is starting: loading the target\n")


def test_a_slow_scrape_delays_nobody():
    entered, leave = threading.Event(), threading.Event()

    def slow(accept: str | None) -> tuple[bytes, str]:
        entered.set()
        leave.wait(6 * SERVER_SECONDS)
        return exposition(accept)

    with Served(exposition=slow) as served:
        scrape = threading.Thread(target=httpx.get, args=(f"{served.server.address}/metrics",), kwargs={"trust_env": False})
        scrape.start()
        try:
            assert entered.wait(SERVER_SECONDS)
            assert served.get("/healthz").text == "ok\n", "httpx would time out first"
            assert served.get("/status").status_code == 200
        finally:
            leave.set()
            scrape.join()


def test_what_fails_is_one_sentence_and_one_log_line(caplog):
    def broken(accept: str | None) -> tuple[bytes, str]:
        raise RuntimeError("no numbers")

    with Served(exposition=broken) as served:
        for _ in range(3):
            answer = served.get("/metrics")
            assert (answer.status_code, answer.text) == (500, "/metrics failed: RuntimeError: no numbers\n")
        assert served.get("/healthz").status_code == 200
    messages = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert messages == ["/metrics failed, training goes on: RuntimeError: no numbers"]


def test_the_cost_of_answers_is_told():
    spent: list[float] = []
    with Served(spent=spent.append) as served:
        served.get("/status")
        served.get("/metrics")
    assert len(spent) == 2
    assert all(0 < seconds < 1 for seconds in spent)


def test_signal_handlers_stay_the_trainers():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Served() as served:
        served.get("/healthz")
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_dead_server_hurts_nobody(caplog):
    sock = StatusServer.bind("127.0.0.1", 0)
    server = StatusServer(sock)
    sock.close()
    server.start(create_app(FakeLive(), exposition))
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
    with pytest.raises(ConfigError, match=r"^port 9400 on 192\.0\.2\.1 can't be opened: Cannot assign requested address; change"):
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
    server.start(create_app(FakeLive(), exposition))
    assert httpx.get(f"{server.address}/healthz", trust_env=False).text == "ok\n"
    server.stop()


def test_no_server_takes_every_call():
    server = StatusServer(None)
    server.start(create_app(FakeLive(), exposition))
    server.stop()


def test_a_server_that_never_started_frees_its_port():
    sock = StatusServer.bind("127.0.0.1", 0)
    address = sock.getsockname()
    StatusServer(sock).stop()
    with socket.create_server(address):
        pass


def field_names(value: object) -> Iterator[str]:
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from field_names(inner)
    if isinstance(value, dict):
        yield from value


def test_every_field_is_documented():
    documented = set(re.findall(r"`([a-z_]+)(?:\[\])?`", DOCS.read_text()))
    versions = set(sample_status()["versions"])
    assert set(field_names(sample_status())) - versions - documented == set()
