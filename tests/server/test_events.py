import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import anyio
import fastapi.routing
import httpx
import pytest

from tests.support.fake_monitor import FakeMonitor, sample_status
from tests.support.served import Served
from tests.support.threads import eventually
from trainer.server.events import MAX_STREAMS, TickEvents, compact


@pytest.fixture
def served() -> Iterator[Served]:
    with Served() as served:
        yield served


def read_message(lines: Iterator[str]) -> tuple[int, dict]:
    """The next event that has data: its id and its data."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            return int(fields["id"]), json.loads(fields["data"])
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
    answers = [served.client.stream("GET", "/events") for _ in range(MAX_STREAMS)]
    for answer in answers:
        answer.__enter__()
    refused = served.get("/events")
    assert refused.status_code == 503
    assert refused.text.startswith("16 event streams are open, which is the limit")
    assert served.get("/status").status_code == 200
    for answer in answers:
        answer.__exit__(None, None, None)
    eventually(lambda: served.app.state.events.open_streams == 0)
    with served.client.stream("GET", "/events") as answer:
        assert answer.status_code == 200


def test_a_quiet_run_still_gets_heartbeats_and_says_when_to_come_back(served, monkeypatch):
    monkeypatch.setattr(fastapi.routing, "_PING_INTERVAL", 0.05)
    with served.client.stream("GET", "/events") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "retry: 2000"
        assert any(line.startswith(":") for line in lines)


def test_a_slow_reader_misses_ticks():
    live, newest = FakeMonitor(), []

    async def read() -> None:
        events = TickEvents(live, lambda _: None, lambda _: None)
        async for event in events.stream():
            if event.raw_data is not None:
                newest.append(int(event.id))
                for _ in range(3):  # while it is busy with this one
                    live.tick()
            if len(newest) == 3:
                events.close()

    anyio.run(read)
    assert newest == [0, 3, 6]


def test_a_reader_that_never_reads_delays_nobody(served):
    with served.connect() as idle, served.client.stream("GET", "/events") as other:
        idle.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually(lambda: served.app.state.events.open_streams == 2)
        lines = other.iter_lines()
        for step in range(20):
            served.live.tick(step=step)
            while read_message(lines)[1]["step"] < step:
                pass


def test_a_status_that_fails_ends_the_stream_with_one_log_line(served, caplog):
    def fail() -> None:
        raise RuntimeError("no status at https://me:secret@host")

    served.live.status = fail
    for _ in range(2):
        with suppress(httpx.HTTPError):
            assert "secret" not in served.get("/events").text
    eventually(lambda: served.app.state.events.open_streams == 0)
    assert [message.splitlines()[0] for message in caplog.messages] == [
        "/events failed, training goes on: RuntimeError: no status at https://me:secret@host"
    ]


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
