import io
import re

import pytest
from rich.console import Console

import trainer.decoding.progress
from trainer.decoding.progress import AnswerProgress, show_progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    clock = Clock()
    progress = AnswerProgress(10, 0, clock)
    for second in range(100):
        clock.now += 1
        progress.advance(5 if second < 60 else 40, 0)
    assert progress.rate() == "40 tokens/s"


def test_what_is_left_goes_by_the_pace_of_this_process() -> None:
    clock = Clock()
    progress = AnswerProgress(100, 40, clock)
    assert progress.remaining() == ""
    clock.now += 30
    progress.advance(900, 10)
    assert progress.status(progress.rate()) == "30 tokens/s, about 2 min left"
    progress.advance(0, 50)
    assert progress.remaining() == ""


def test_elsewhere_than_on_a_terminal_a_line_appears_every_ten_seconds_and_a_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, heard = Clock(), io.StringIO()
    monkeypatch.setattr(trainer.decoding.progress.time, "monotonic", clock)
    progress = AnswerProgress(35, 0, clock)
    with show_progress(Console(file=heard, width=200), progress, lambda: progress.status(progress.rate())) as advance:
        for _ in range(35):
            clock.now += 1
            advance(10, 1)
    lines = heard.getvalue().splitlines()
    assert [line.split(" prompts")[0] for line in lines] == ["10 of 35", "20 of 35", "30 of 35", "35 of 35"]
    assert lines[1].endswith("prompts answered, 10 tokens/s, about 15 s left")
    assert lines[-1].endswith("prompts answered, 10 tokens/s")


def test_the_last_line_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, heard = Clock(), io.StringIO()
    monkeypatch.setattr(trainer.decoding.progress.time, "monotonic", clock)
    with show_progress(Console(file=heard), AnswerProgress(1, 0, clock), str) as advance:
        clock.now += 11
        advance(10, 1)
    assert heard.getvalue() == "1 of 1 prompts answered\n"


def test_what_breaks_off_has_no_last_line() -> None:
    heard = io.StringIO()
    with pytest.raises(KeyboardInterrupt), show_progress(Console(file=heard), AnswerProgress(4, 1), str):
        raise KeyboardInterrupt
    assert heard.getvalue() == ""


def test_a_terminal_shows_a_bar() -> None:
    heard = io.StringIO()
    console = Console(file=heard, force_terminal=True, width=120)
    with show_progress(console, AnswerProgress(4, 1), lambda: "well") as advance:
        advance(10, 3)
    last = re.sub(r"\x1b\[[\d;?]*\w", "", heard.getvalue()).split("answering")[-1]
    assert "4/4 well" in last
