import json
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.support.fake_live import sample_status
from tests.support.served import SERVER_SECONDS, Served
from trainer.server import events
from trainer.server.events import STREAMS, Ticks, compact


@pytest.fixture
def served() -> Iterator[Served]:
    with Served() as served:
        yield served


def read_message(lines: Iterator[str]) -> tuple[int, dict]:
    """The next event: its id and its data."""
    number = -1
    for line in lines:
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("data: "):
            return number, json.loads(line[6:])
    raise AssertionError("the stream has ended")


def test_events_bring_the_newest_tick_at_once_and_then_each_one(served):
    served.live.tick()
    with served.client.stream("GET", "/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        number, status = read_message(lines)
        assert (number, status["step"]) == (1, 1240)
        assert "versions" not in status
        assert "command" not in status["run"]
        served.live.tick(step=1241)
        number, status = read_message(lines)
        assert (number, status["step"]) == (2, 1241)


def test_streams_share_one_message_a_tick(served):
    with served.client.stream("GET", "/events") as first, served.client.stream("GET", "/events") as second:
        for answer in (first, second):
            read_message(answer.iter_lines())
    assert served.live.asked == 1


def test_streams_are_bounded_and_give_their_place_back(served):
    answers = [served.client.stream("GET", "/events") for _ in range(STREAMS)]
    for answer in answers:
        answer.__enter__()
    refused = served.get("/events")
    assert refused.status_code == 503
    assert refused.text.startswith("16 event streams are open, which is the limit")
    assert served.get("/status").status_code == 200
    for answer in answers:
        answer.__exit__(None, None, None)
    deadline = time.monotonic() + SERVER_SECONDS
    while served.app.state.ticks.open_streams and time.monotonic() < deadline:
        time.sleep(0.01)
    with served.client.stream("GET", "/events") as answer:
        assert answer.status_code == 200


def test_a_quiet_run_still_gets_heartbeats(served, monkeypatch):
    monkeypatch.setattr(events, "_WAIT_SECONDS", 0.02)
    served.app.state.ticks = Ticks(served.live, heartbeat_seconds=0.05)
    with served.client.stream("GET", "/events") as answer:
        assert any(line == ": heartbeat" for line in answer.iter_lines())


def test_a_tick_stays_small():
    nasty = "x" * 10_000
    status = sample_status(warnings=[nasty] * 1000, last_error=nasty, phase=nasty)
    status["acceptance"]["position_accuracy"] = [0.123456789] * 1000
    status["gpu_sampler"] |= {"reason": nasty, "notes": [nasty] * 1000}
    [device] = status["devices"]
    status["devices"] = [{key: 0.12345678901234567 if value is None else value for key, value in device.items()}] * 1000
    assert len(json.dumps(compact(status))) < 50_000
    assert len(compact(status)["devices"]) == 16, "as many as the largest machines have"
    newest = compact(sample_status(warnings=[str(number) for number in range(100)]))["warnings"]
    assert newest[-1] == "99"


def test_stop_ends_open_streams_within_a_second(served):
    with served.client.stream("GET", "/events") as answer:
        lines = answer.iter_lines()  # kept: httpx closes the stream of an iterator that nobody holds
        read_message(lines)
        began = time.monotonic()
        served.server.stop()
        assert time.monotonic() - began < 1.0
        assert not any(thread.name == "status" for thread in threading.enumerate())
        with pytest.raises(httpx.HTTPError):
            served.get("/healthz")
        served.server.stop()
