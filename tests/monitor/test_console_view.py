import io

from rich.console import Console as RichConsole

from tests.support.fake_monitor import NOW, a_status
from trainer.monitor.console_view import LossStart, frame, loss_start, plain_line

ADDRESSES = {"dashboard": "http://127.0.0.1:8400", "status": "http://127.0.0.1:9400/status"}


def shown(status, *, start=None, width=80):
    console = RichConsole(file=io.StringIO(), width=width, height=24, force_terminal=False)
    console.print(frame(status, start, ADDRESSES, NOW))
    return console.file.getvalue()


def test_the_frame_says_everything_within_80_by_24():
    text = shown(a_status(warnings=["x" * 200, "newest"]), start=LossStart(3, 7.8123))
    for part in (
        "demo-x9f2 · running · 12 min",
        "1,240 of 5,000 (25 %) · ETA 2 h 10 min",
        "The target holds the run back: busy 97 %.",
        "3.4123  from 7.8123 at step 3 (−56 %)",
        "2.31 tokens per round, estimated",
        "410 context tokens/s · 12.3k draft tokens/s · 0.4 steps/s",
        "97 % busy · 3 % waiting for output",
        "72 % busy · 28 % waiting for input",
        *ADDRESSES.values(),
        "! newest",
    ):
        assert part in text
    lines = text.splitlines()
    assert len(lines) <= 20, "a few lines of the log stay in view"
    assert max(map(len, lines)) <= 80


def test_measured_acceptance_stands_whole_beside_the_estimate():
    acceptance = {"estimated_length": 12.31, "measured_length": 11.27, "measured_at_step": 123_456}
    said = "12.31 tokens per round, estimated · 11.27 measured at step 123,456"
    assert said in shown(a_status(acceptance=acceptance))
    assert f"acceptance {said}" in plain_line(a_status(acceptance=acceptance))


def test_the_frame_of_a_run_that_has_just_begun():
    warming = {"state": "warming_up", "sentence": "Warming up: loading the target, 3 s so far."}
    text = shown(a_status(state="starting", phase="loading the target", step=0, loss=None, verdict=warming, stages=[]))
    assert "starting (loading the target)" in text
    assert "Warming up: loading the target" in text
    assert "from" not in text


def test_names_cannot_move_the_cursor_or_speak_markup():
    text = shown(a_status(run={"name": "[bold]x[/bold]\x1b[2J"}, warnings=["\x1b[31mred"]))
    assert "[bold]x[/bold] [2J" in text
    assert "\x1b" not in text


def test_the_loss_starts_at_the_first_finite_one():
    assert loss_start(a_status(loss=None)) is None
    assert loss_start(a_status(loss="NaN")) is None
    assert loss_start(a_status()) == LossStart(1240, 3.4123)


def test_a_loss_that_is_none_has_no_share() -> None:
    text = shown(a_status(loss="NaN"), start=LossStart(3, 7.8123))
    assert "NaN  from 7.8123 at step 3" in text
    assert "nan %" not in text


def test_the_plain_line():
    assert plain_line(a_status()) == (
        "running · step 1,240 of 5,000 (25 %) · loss 3.4123 · acceptance 2.31 tokens per round, estimated · "
        "410 context tokens/s · 12.3k draft tokens/s · 0.4 steps/s · ETA 2 h 10 min · "
        "The target holds the run back: busy 97 %. Without it: up to +34 %, then the drafter holds."
    )
    starting = a_status(state="starting", phase="loading the target", step=0)
    assert plain_line(starting).startswith("starting (loading the target) · The target")
