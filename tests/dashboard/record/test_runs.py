"""Runs: the list, growth, resumes, endings, NaN, and folders that are late, replaced or not to be reached."""

import time

import pytest

from dashboard.record import run as run_module
from dashboard.record.run import Run
from dashboard.record.runs import Runs, list_entry
from dashboard.views import range_series, summary
from tests.support.fake_run import FakeRun


@pytest.fixture
def opened(tmp_path):
    def open_run(fake):
        run = Run(fake.folder)
        run.open()
        return run

    return open_run


def losses(run):
    segments = range_series(run, "loss", "step", None, None)["segments"]
    return [(segment["attempt"], segment["axes"]["step"].tolist()) for segment in segments]


def test_follows_a_growing_run(tmp_path, opened):
    fake = FakeRun(tmp_path / "a")
    run = opened(fake)
    assert summary(run)["head"]["state"] == "starting"
    assert summary(run)["head"]["step"] == 0
    fake.play(20)
    assert not run.advance()
    head = summary(run)["head"]
    assert (head["state"], head["step"], head["newest_step"]["step"]) == ("running", 20, 20)
    assert head["max_steps"] == 4000


def test_progress_is_the_trainers_own_word(tmp_path, opened):
    fake = FakeRun(tmp_path / "a")
    fake.steps(4)
    fake.tick(max_steps=100, progress_ratio=0.75, eta_seconds=12.5)
    head = summary(opened(fake))["head"]
    assert (head["step"], head["max_steps"], head["progress_ratio"], head["eta_seconds"]) == (4, 100, 0.75, 12.5)
    fake.tick(max_steps=None, progress_ratio=None, eta_seconds=None)
    head = summary(opened(fake))["head"]
    assert (head["max_steps"], head["progress_ratio"], head["eta_seconds"]) == (None, None, None)
    assert Runs(tmp_path).list()[0]["progress_ratio"] is None


def test_a_resume_keeps_what_it_overtook(tmp_path, opened):
    fake = FakeRun(tmp_path / "a")
    fake.steps(10)
    fake.resume(6)
    fake.steps(3)
    found = range_series(opened(fake), "loss", "step", None, None)["segments"]
    assert [segment["overtaken_from"] for segment in found] == [7, None]
    assert found[0]["axes"]["step"].tolist() == list(range(1, 11))
    assert found[1]["axes"]["step"].tolist() == [7, 8, 9]


def test_nan_and_infinity_are_flagged_not_hidden(tmp_path, opened):
    fake = FakeRun(tmp_path / "a")
    fake.steps(1)
    fake.steps(1, loss=float("nan"))
    fake.steps(1, loss=float("-inf"))
    run = opened(fake)
    column = range_series(run, "loss", "step", None, None)["segments"][0]["series"]["loss"]
    assert column["nan"] == {"1": 1}
    assert column["infinite"] == {"2": 1}
    head = summary(run)["head"]
    assert head["newest_step"]["loss"] is None
    assert head["not_finite"] == {"loss": "-Infinity"}


def test_a_line_torn_by_a_crash_is_counted_and_left_out(tmp_path, opened):
    fake = FakeRun(tmp_path / "a")
    fake.steps(2)
    with (fake.folder / "steps.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "lo')
    fake.resume(2)
    fake.steps(2)  # its first line is glued to the torn one
    run = opened(fake)
    assert losses(run) == [(0, [1, 2]), (1, [4])]
    assert summary(run)["head"]["unreadable_lines"] == 1


def test_rows_that_break_the_contract_are_said_and_do_not_stop_the_reading(tmp_path, opened):
    fake = FakeRun(tmp_path / "a")
    fake.append("telemetry", {"attempt": 0, "time": 1.0, "step": 0, "stages": ["oops"]})
    run = opened(fake)
    assert "docs/record.md" in summary(run)["head"]["trouble"]
    fake.steps(2)
    run.advance()
    assert losses(run) == [(0, [1, 2])]


def test_one_strange_line_costs_one_line(tmp_path, opened):
    fake = FakeRun(tmp_path / "a")
    fake.steps(20)
    for strange in ({"attempt": 1e30, "step": 21}, {"step": 2**62, "attempt": 0}, {"step": 22, "time": "noon"}):
        fake.append("steps", strange)
    fake.steps(20)
    run = opened(fake)
    assert losses(run) == [(0, list(range(1, 41)))]
    assert "docs/record.md" in summary(run)["head"]["trouble"]


def test_a_run_that_cannot_be_read_is_no_others_trouble(tmp_path, monkeypatch):
    for name in ("bad", "good"):
        FakeRun(tmp_path / name).steps(2)
    with Runs(tmp_path, look_every=0.01) as runs:
        bad, good = runs.run("bad"), runs.run("good")
        before = bad.version
        monkeypatch.setattr(bad, "_take", lambda fresh: 1 / 0)
        wait_until(lambda: "ZeroDivisionError" in bad.trouble)
        wait_until(lambda: bad.version == before + 1)  # an idle stream hears of it
        FakeRun(tmp_path / "good").steps(3)
        wait_until(lambda: len(good.steps) == 5)
        assert bad.version == before + 1  # once


def test_an_endless_line_is_said(tmp_path, opened, monkeypatch):
    monkeypatch.setattr("trainer.record.reader.LONGEST_LINE_BYTES", 100)
    fake = FakeRun(tmp_path / "a")
    fake.steps(2)
    (fake.folder / "telemetry.jsonl").write_bytes(b"x" * (9 << 20))
    run = opened(fake)
    assert "does not end" in summary(run)["head"]["trouble"]
    assert len(run.steps) == 2


@pytest.mark.parametrize("event", ["finished", "failed"])
def test_an_ending_outlives_the_last_tick_and_a_resume_outlives_the_ending(tmp_path, opened, event):
    fake = FakeRun(tmp_path / "a")
    fake.play(8)
    fake.event(event, "Over.")
    run = opened(fake)
    head = summary(run)["head"]
    assert (head["state"], head["ended"], head["ending"]) == (event, True, "Over.")
    fake.resume(6)
    run.advance()
    head = summary(run)["head"]
    assert (head["state"], head["ended"], head["newest_tick"], head["step"]) == ("starting", False, None, 6)
    assert Runs(tmp_path).list()[0]["state"] == "starting"
    fake.tick()
    run.advance()
    assert summary(run)["head"]["state"] == "running"


def test_a_long_record_is_first_looked_at_then_read(tmp_path, opened, monkeypatch):
    monkeypatch.setattr(run_module, "PREVIEW_FROM_BYTES", 1000)
    monkeypatch.setattr(run_module, "PREVIEW_PLACES", 3)
    fake = FakeRun(tmp_path / "a")
    fake.steps(400)
    run = opened(fake)
    first = range_series(run, "loss", "step", None, None)
    assert first["loading"]["ratio"] == 0
    assert 3 <= first["rows"] < 100
    assert summary(run)["head"]["step"] == 400
    while run.advance():
        pass
    whole = range_series(run, "loss", "step", None, None)
    assert (whole["loading"], whole["rows"]) == (None, 400)


@pytest.mark.parametrize("name", ["steps", "telemetry"])
def test_one_long_file_is_enough_for_a_first_look_and_the_newest_state_is_shown(tmp_path, opened, monkeypatch, name):
    fake = FakeRun(tmp_path / "a")
    fake.play(40)
    monkeypatch.setattr(run_module, "PREVIEW_FROM_BYTES", 100_000)
    with (fake.folder / f"{name}.jsonl").open("ab") as file:
        file.write(b"\n" * 100_000)
    fake.steps(1)
    fake.tick()
    run = opened(fake)
    assert summary(run)["head"]["newest_tick"]["step"] == 41
    assert run.loading()
    assert range_series(run, "process.cpu_cores", "step", None, None)["rows"] > 0
    fake.steps(1)
    fake.tick()
    while run.advance():
        pass
    head = summary(run)["head"]
    assert (head["loading"], head["newest_step"]["step"], head["newest_tick"]["step"]) == (None, 42, 42)


def test_an_age_needs_no_clock_but_ours_once_a_line_has_come(tmp_path, opened):
    fake = FakeRun(tmp_path / "a", started=time.time() + 3600)
    fake.play(8)
    run = opened(fake)
    assert summary(run)["head"]["clock_ahead_seconds"] == pytest.approx(3602, abs=3)
    run._whole_since -= 30
    assert summary(run)["head"]["last_tick_age_seconds"] == pytest.approx(30, abs=2)
    fake.tick()
    run.advance()
    head = summary(run)["head"]
    assert head["clock_ahead_seconds"] is None
    assert head["last_tick_age_seconds"] < 2


def test_a_range_in_tokens_and_in_time_is_the_same_rows(tmp_path, opened):
    fake = FakeRun(tmp_path / "a", started=1000.0)
    fake.play(200, seconds=1.0)
    run = opened(fake)
    axes = range_series(run, "loss", "step", None, None)["segments"][0]["axes"]
    for axis in ("step", "tokens", "time"):
        low, high = float(axes[axis][50]), float(axes[axis][60])
        found = range_series(run, "loss", axis, low, high)["segments"][0]["axes"]["step"].tolist()
        assert found == list(range(50, 63))  # one more on each side


def test_telemetry_knows_its_tokens(tmp_path, opened):
    fake = FakeRun(tmp_path / "a")
    fake.play(40)
    run = opened(fake)
    ticks = range_series(run, "process.cpu_cores", "step", None, None)["segments"][0]["axes"]
    steps = range_series(run, "loss", "step", None, None)["segments"][0]["axes"]
    known = dict(zip(steps["step"].tolist(), steps["tokens"].tolist(), strict=True))
    assert [known[step] for step in ticks["step"].tolist()] == ticks["tokens"].tolist()


def test_the_list_has_the_newest_line_first(tmp_path):
    now = time.time()
    for name, age in (("old", 500), ("new", 5), ("middle", 50)):
        FakeRun(tmp_path / name, started=now - age).steps(1)
    (tmp_path / "not a run").mkdir()
    (tmp_path / "empty").mkdir()
    found = Runs(tmp_path).list()
    assert [run["id"] for run in found] == ["new", "middle", "old"]
    assert 4 < found[0]["last_line_age_seconds"] < 15
    assert found[0]["loss"] > 0
    assert Runs(tmp_path / "none").list() == []


def test_a_run_that_is_deleted_while_it_is_looked_at_is_no_error(tmp_path):
    assert list_entry(tmp_path / "gone")["last_line_time"] == 0


def test_a_run_that_leads_out_of_the_folder_is_named(tmp_path):
    root = tmp_path / "root"
    FakeRun(root / "own")
    FakeRun(tmp_path / "elsewhere")
    (root / "outside").symlink_to(tmp_path / "elsewhere")
    assert [run["id"] for run in Runs(root).list()] == ["own"]
    assert Runs(root).outside() == ["outside"]


def test_watched_runs_are_never_forgotten_and_idle_ones_are(tmp_path):
    for number in range(9):
        FakeRun(tmp_path / f"run{number}")
    runs = Runs(tmp_path)
    with runs.watched("run0") as watched:
        for number in range(1, 9):
            idle = runs.run(f"run{number}")
        assert runs.run("run0") is watched
        assert runs.run("run8") is idle
        assert len(runs._open) == 5
    assert watched.viewers == 0


def test_a_run_whose_folder_was_renamed_is_named(tmp_path):
    for name in ("good", "my run", "good (copy)", "lauf-ä", "a+b", "x" * 65):
        FakeRun(tmp_path / name).play(2)
    (tmp_path / "no run").mkdir()
    (tmp_path / "a file +").touch()
    (tmp_path / ".hidden").mkdir()
    runs = Runs(tmp_path)
    assert [entry["id"] for entry in runs.list()] == ["good"]
    assert runs.misnamed() == sorted(["my run", "good (copy)", "lauf-ä", "a+b", "x" * 65])


@pytest.mark.parametrize("run_id", ["..", ".", "a/b", "", "a b", "a%2fb", "nobody", "outside"])
def test_ids_that_lead_nowhere(tmp_path, run_id):
    root = tmp_path / "root"
    root.mkdir()
    FakeRun(tmp_path / "elsewhere")
    (root / "outside").symlink_to(tmp_path / "elsewhere")
    assert Runs(root).run(run_id) is None


def test_the_reader_keeps_an_opened_run_up_to_date_and_notices_another_run(tmp_path):
    fake = FakeRun(tmp_path / "a")
    fake.steps(50)
    with Runs(tmp_path, look_every=0.01) as runs:
        run = runs.run("a")
        fake.steps(1)
        wait_until(lambda: len(run.steps) == 51)
        for path in fake.folder.glob("*.jsonl"):
            path.unlink()
        FakeRun(tmp_path / "a").steps(2)
        wait_until(lambda: run.replaced)
        assert len(runs.run("a").steps) == 2


def wait_until(true, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("torn", [False, True])
def test_a_record_of_the_older_form_is_read_and_so_is_one_that_was_resumed_since(tmp_path, opened, torn):
    fake = FakeRun(tmp_path / "a")
    for _ in range(2):
        fake.steps(4)
        fake.tick()
    (fake.folder / "telemetry.jsonl").rename(fake.folder / "samples.jsonl")
    if torn:
        with (fake.folder / "samples.jsonl").open("ab") as file:
            file.write(b'{"step": 9, "st')
    run = opened(fake)
    assert (len(run.telemetry), summary(run)["head"]["newest_tick"]["step"]) == (2, 8)
    assert Runs(tmp_path).list()[0]["progress_ratio"] == 8 / 4000
    fake.resume(8)
    fake.steps(4)
    fake.tick()
    run.advance()
    for known in (run, opened(fake)):
        assert known.telemetry.axis("step").tolist() == [4, 8, 12], "old lines first"
        assert summary(known)["head"]["newest_tick"]["attempt"] == 1
    assert Runs(tmp_path).list()[0]["progress_ratio"] == 12 / 4000
