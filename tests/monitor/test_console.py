import errno
import io
import logging
import sys
import threading
import time

import pytest

from tests.support.fake_monitor import FakeMonitor
from trainer.monitor.console import Console, choose_mode

ADDRESSES = {"dashboard": "http://127.0.0.1:8400", "status": "http://127.0.0.1:9400/status"}
PATIENCE = 5.0


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    """A pipe whose reader has gone, or a terminal that was closed."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


class Stuck(io.StringIO):
    """A terminal that was stopped with Ctrl-S."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go_on = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.go_on.wait(PATIENCE)
        return len(text)


def wait_for(out, text):
    deadline = time.monotonic() + PATIENCE
    while text not in out.getvalue():
        assert time.monotonic() < deadline, f"{text!r} never came: {out.getvalue()!r}"
        time.sleep(0.01)


@pytest.fixture
def logger():
    logger = logging.Logger("test")
    logger.setLevel(logging.INFO)
    return logger


def test_auto_is_live_only_on_a_terminal_that_can_show_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert choose_mode("auto", Terminal()) == "live"
    assert choose_mode("auto", io.StringIO()) == "plain"
    monkeypatch.setenv("TERM", "dumb")
    assert choose_mode("auto", Terminal()) == "plain"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Terminal, "encoding", "ascii")
    assert choose_mode("auto", Terminal()) == "plain"


def test_a_setting_wins_and_no_stream_is_off():
    assert choose_mode("live", io.StringIO()) == "live"
    assert choose_mode("off", Terminal()) == "off"
    closed = io.StringIO()
    closed.close()
    assert choose_mode("auto", closed) == "off"
    assert choose_mode("plain", None) == "off"


def test_plain_prints_every_ten_seconds_and_at_changes_of_state():
    now, out, live = [100.0], io.StringIO(), FakeMonitor(state="running", step=1)
    console = Console(live, "plain", out, ADDRESSES, clock=lambda: now[0])
    console.start()
    wait_for(out, "step 1 ")
    live.tick(step=2)
    live.tick(step=3, state="paused")
    wait_for(out, "paused · step 3 ")
    now[0] += 10.0
    live.tick(step=4)
    wait_for(out, "paused · step 4 ")
    console.stop("Stopped at step 4.")
    lines = out.getvalue().splitlines()
    assert lines[0] == "dashboard http://127.0.0.1:8400 · status http://127.0.0.1:9400/status"
    assert lines[-1] == "Stopped at step 4."
    assert [line.split(" of ")[0].split("step ")[1] for line in lines[1:-1]] == ["1", "3", "4"]


def test_plain_survives_an_encoding_without_our_signs():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    console = Console(FakeMonitor(), "plain", out)
    console.start()
    console.stop("Fertig: ü")
    assert raw.getvalue().endswith(b"Fertig: ?\n")


def test_live_shows_the_run_and_leaves_the_last_state(logger):
    out, live = Terminal(), FakeMonitor(loss=7.0, step=1)
    console = Console(live, "live", out, ADDRESSES)
    logger.addHandler(console.log_handler())
    console.start()
    wait_for(out, "7.0000")
    logger.info("a line of the [bold]log[/bold]")
    logger.warning("careful \x1b[2J")
    wait_for(out, "WARNING careful  [2J")
    live.tick(loss=3.5, step=90, state="finished")
    console.stop("Finished: 90 steps.")
    text = out.getvalue()
    assert "INFO    a line of the [bold]log[/bold]" in text
    last = text[text.rindex("demo-x9f2") :]
    assert "from 7.0000 at step 1 (−50 %)" in last
    assert last.index("http://127.0.0.1:9400/status") < last.index("Finished: 90 steps.")
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is back"
    assert not any(thread.name == "console" for thread in threading.enumerate())


def test_a_traceback_keeps_its_lines(logger):
    out = io.StringIO()
    console = Console(FakeMonitor(), "plain", out)
    logger.addHandler(console.log_handler())
    console.start()
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logger.exception("the stage failed")
    console.stop()
    assert "ERROR   the stage failed\nTraceback (most recent call last):\n  File " in out.getvalue()


@pytest.mark.parametrize("error", [BrokenPipeError("nobody reads"), OSError(errno.EIO, "the terminal is gone")])
@pytest.mark.parametrize("mode", ["live", "plain"])
def test_a_broken_pipe_hurts_nobody(mode, error, logger):
    live = FakeMonitor()
    console = Console(live, mode, Broken(error), ADDRESSES)
    before = sys.stdout, sys.stderr
    logger.addHandler(console.log_handler())
    console.start()
    logger.info("nobody reads this")
    live.tick()
    console.stop("done")
    assert (sys.stdout, sys.stderr) == before


def test_a_stopped_terminal_holds_up_nobody(logger, monkeypatch):
    monkeypatch.setattr("trainer.monitor.console._STOP_SECONDS", 0.1)
    out = Stuck()
    console = Console(FakeMonitor(), "plain", out, ADDRESSES)
    logger.addHandler(console.log_handler())
    console.start()
    assert out.entered.wait(PATIENCE)
    began = time.monotonic()
    for number in range(5000):
        logger.info("line %d", number)
    console.stop("done")
    assert time.monotonic() - began < 2.0
    assert len(console._lines) == 1000, "what waits is bounded"
    out.go_on.set()
    console._thread.join(PATIENCE)


def test_a_failing_status_ends_only_the_console(caplog):
    live = FakeMonitor()
    live.status = lambda: 1 / 0
    console = Console(live, "live", Terminal())
    before = sys.stdout
    console.start()
    console._thread.join(PATIENCE)
    console.stop()
    assert "the console has died, training goes on: ZeroDivisionError" in caplog.text
    assert sys.stdout is before


def test_off_shows_nothing(logger):
    out = io.StringIO()
    console = Console(FakeMonitor(), "off", out, ADDRESSES)
    logger.addHandler(console.log_handler())
    console.start()
    logger.info("a line")
    console.stop("done")
    assert out.getvalue() == ""
