import io

import pytest
from rich.console import Console

import trainer.answer_progress
from trainer.answer_progress import AnswerProgress, shown


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
    assert progress.left() == ""
    clock.now += 30
    progress.advance(900, 10)
    assert progress.line() == "50 of 100 prompts answered, 30 tokens/s, about 2 min left"
    progress.advance(0, 50)
    assert progress.left() == ""


def test_elsewhere_than_on_a_terminal_a_line_appears_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, heard = Clock(), io.StringIO()
    monkeypatch.setattr(trainer.answer_progress.time, "monotonic", clock)
    with shown(Console(file=heard, width=200), AnswerProgress(100, 0, clock)) as advance:
        for _ in range(35):
            clock.now += 1
            advance(10, 1)
    lines = heard.getvalue().splitlines()
    assert [line.split(" prompts")[0] for line in lines] == ["10 of 100", "20 of 100", "30 of 100"]
    assert "10 tokens/s, about 1 min left" in lines[1]


def test_a_terminal_shows_a_bar() -> None:
    heard = io.StringIO()
    console = Console(file=heard, force_terminal=True, width=120)
    with shown(console, AnswerProgress(4, 1)) as advance:
        advance(10, 3)
    assert "4/4" in heard.getvalue()
    assert "tokens/s" in heard.getvalue()
