"""Ticks: what is new since a cursor, and no more than a message may hold."""

import orjson
import pytest

from dashboard import live
from dashboard.live import Cursor, tick, whole
from dashboard.record.run import Run
from tests.support.fake_run import FakeRun

WIDTHS = {"steps": 1, "telemetry": 1}


@pytest.fixture
def fake(tmp_path):
    return FakeRun(tmp_path / "a", gpus=2)


def opened(fake):
    run = Run(fake.folder)
    run.open()
    return run


def size(message):
    return len(orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY))


@pytest.mark.parametrize("text", ["", None, "1:2", "1:2:x", "-1:2:3", "1:2:3:4", "9" * 30 + ":0:0"])
def test_what_is_no_cursor(text):
    assert Cursor.parse(text) is None


def test_cursor_reads_what_it_writes():
    assert Cursor.parse(str(Cursor(5, 6, 7))) == Cursor(5, 6, 7)


def test_only_what_is_new_is_sent(fake):
    fake.play(100)
    run = opened(fake)
    start = tick(run, Cursor(len(run.steps), len(run.telemetry), run.events_seen), WIDTHS)
    assert (start.message["steps"], start.message["telemetry"], start.message["events"]) == (None, None, [])
    fake.steps(2)
    fake.event("checkpoint", "Written.")
    run.advance()
    news = tick(run, start.cursor, WIDTHS)
    assert news.message["steps"]["segments"][0]["start"].tolist() == [101, 102]
    assert [row["event"] for row in news.message["events"]] == ["checkpoint"]
    assert news.cursor.steps == 102
    assert not news.more


def test_an_open_bucket_is_sent_again_whole(fake):
    fake.steps(130)
    run = opened(fake)
    news = tick(run, Cursor(129, 0, 0), {"steps": 64, "telemetry": 1})
    part = news.message["steps"]["segments"][0]
    assert part["start"].tolist() == [128]
    assert part["series"]["loss"]["low"][0] <= part["series"]["loss"]["mean"][0] <= part["series"]["loss"]["high"][0]


def test_a_backlog_comes_in_messages_under_50_kb(fake):
    fake.play(300)
    run = opened(fake)
    at, messages = Cursor(), 0
    while True:
        news = tick(run, at, WIDTHS)
        assert size(news.message) <= 50_000
        at, messages = news.cursor, messages + 1
        if not news.more:
            break
    assert at == Cursor(300, len(run.telemetry), run.events_seen)
    assert messages > 1


@pytest.mark.parametrize("cursor", [Cursor(0, 0, 0), Cursor(10**9, 0, 0)])
def test_a_browser_too_far_away_is_told_to_load_anew(fake, cursor):
    fake.steps(live.GIVE_UP_AFTER + 1)
    assert tick(opened(fake), cursor, WIDTHS).message["steps"] == {"resync": True}


def test_a_cursor_of_another_run_is_told_to_load_anew(fake):
    fake.play(20)
    run = opened(fake)
    message = tick(run, Cursor(len(run.steps), len(run.telemetry), run.events_seen + 1), WIDTHS).message
    assert (message["steps"], message["telemetry"]) == ({"resync": True}, {"resync": True})


def test_buckets_that_have_become_too_fine_are_to_be_loaded_anew(fake):
    fake.steps(2001)
    run = opened(fake)
    assert tick(run, Cursor(2000, 0, 0), WIDTHS).message["steps"] == {"resync": True}
    assert whole(run, "steps")["width"] == 2
    assert whole(run, "steps")["cursor"] == 2001


def test_events_beyond_those_kept_are_not_sent_twice(fake, monkeypatch):
    monkeypatch.setattr("dashboard.record.run.EVENTS_KEPT", 5)
    run = opened(fake)
    for number in range(12):
        fake.event("warning", str(number))
        run.advance()
    seen = tick(run, Cursor(0, 0, 10), WIDTHS)
    assert [row["message"] for row in seen.message["events"]] == ["9", "10", "11"]
    assert seen.cursor.events == 13
