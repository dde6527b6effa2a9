"""Evaluations out of events.jsonl: points for the chart, the newest one whole, and what a resume makes of them."""

import pytest

from dashboard.live import Cursor, tick
from dashboard.record.evaluations import points_of
from dashboard.record.run import Run
from dashboard.record.runs import Runs
from dashboard.views import summary
from tests.support.fake_run import FakeRun

WIDTHS = {"steps": 1, "telemetry": 1}


@pytest.fixture
def fake(tmp_path):
    return FakeRun(tmp_path / "a")


def opened(fake):
    run = Run(fake.folder)
    run.open()
    return run


def standing(run):
    return [(point["attempt"], point["step"], point["overtaken"]) for point in summary(run)["evaluations"]]


def test_every_evaluation_is_a_point_and_the_newest_is_whole(fake):
    fake.play(40, evaluate_every=20)
    run = opened(fake)
    assert [point["step"] for point in summary(run)["evaluations"]] == [20, 40]
    newest = summary(run)["head"]["newest_evaluation"]
    point = summary(run)["evaluations"][1]
    assert point.keys() == {"attempt", "step", "time", "measured_length", "held_out_estimated_length", "overtaken"}
    assert (newest["step"], newest["measured_length"]) == (40, point["measured_length"])
    assert len(newest["acceptance_by_position"]) == 7
    assert not {"message", "event", "overtaken"} & newest.keys()


def test_before_the_first_there_is_none(fake):
    fake.play(8)
    found = summary(opened(fake))
    assert (found["evaluations"], found["head"]["newest_evaluation"]) == ([], None)
    assert found["head"]["evaluate"]["every"] == 500
    assert found["head"]["evaluate"]["held_out"] == 16


def test_a_resume_overtakes_later_evaluations_and_the_newest_is_one_that_stands(fake):
    fake.play(40, evaluate_every=10)
    fake.resume(25)
    run = opened(fake)
    assert standing(run) == [(0, 10, False), (0, 20, False), (0, 30, True), (0, 40, True)]
    assert summary(run)["head"]["newest_evaluation"]["step"] == 20
    assert Runs(fake.folder.parent).list()[0]["measured_length"] == summary(run)["evaluations"][1]["measured_length"]
    fake.play(5, evaluate_every=30)
    run.advance()
    assert standing(run)[-1] == (1, 30, False)
    assert summary(run)["head"]["newest_evaluation"]["attempt"] == 1


def test_what_is_asked_for_is_what_the_newest_attempt_says(fake):
    fake.resume(0)
    run = opened(fake)
    assert summary(run)["head"]["evaluate"]["every"] == 500
    fake.event("resumed", "Resumed.", config={"evaluate": {"every": 0}})
    run.advance()
    assert summary(run)["head"]["evaluate"] == {"every": 0, "held_out": 16}


def test_a_new_evaluation_comes_with_a_tick(fake):
    fake.play(20)
    run = opened(fake)
    start = tick(run, Cursor(len(run.steps), len(run.telemetry), run.events_seen), WIDTHS)
    assert start.message["evaluations"] == []
    fake.evaluate(measured_length=1.5)
    run.advance()
    news = tick(run, start.cursor, WIDTHS)
    assert [(point["step"], point["measured_length"]) for point in news.message["evaluations"]] == [(20, 1.5)]
    assert news.message["head"]["newest_evaluation"]["measured_length"] == 1.5
    assert tick(run, news.cursor, WIDTHS).message["evaluations"] == []


@pytest.mark.parametrize("strange", [{"step": None}, {"step": "7"}, {"step": True}])
def test_an_evaluation_without_a_place_is_left_out(fake, strange):
    fake.evaluate(**strange)
    run = opened(fake)
    assert standing(run) == []
    assert run.events_seen == 2


def test_numbers_that_are_none_are_not_drawn(fake):
    fake.evaluate(measured_length="NaN", held_out_estimated_length=None, acceptance_by_position=[0.5, "Infinity", None])
    found = summary(opened(fake))
    assert found["evaluations"][0]["measured_length"] is None
    assert found["head"]["newest_evaluation"]["acceptance_by_position"] == [0.5, None, None]
    raw = {"event": "evaluated", "step": 1, "measured_length": "NaN"}
    assert points_of([raw, {"event": "warning"}])[0]["measured_length"] is None


def test_more_evaluations_than_events_are_kept(fake, monkeypatch):
    monkeypatch.setattr("dashboard.record.run.EVENTS_KEPT", 5)
    for _ in range(12):
        fake.steps(1)
        fake.evaluate()
    assert len(standing(opened(fake))) == 12


def test_a_config_that_is_none_is_no_trouble(fake):
    (fake.folder / "run.json").write_text('{"id": "a", "config": 7, "data": null}')
    fake.event("resumed", "Resumed.", config="text")
    assert summary(opened(fake))["head"]["evaluate"] == {"held_out": None}
