"""How far `prepare` or `evaluate` is, for people: answers in; a bar on a terminal, a line now and then elsewhere, out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from trainer import formatting

LINE_SECONDS = 10.0
# The rate is that of the last stretch of this length: prompts are answered longest first, so that it changes.
RATE_SECONDS = 30.0


def say(console: Console, sentence: str) -> None:
    """A sentence of its own, as it is."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


class AnswerProgress:
    """Counts prompts and tokens. `clock` is in seconds."""

    def __init__(self, total: int, done: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.done = done
        self._clock = clock
        self._began = clock()
        self._before = done
        self._tokens = 0
        self._marks: list[tuple[float, int]] = [(self._began, 0)]

    def advance(self, tokens: int, prompts: int) -> None:
        """One pass: tokens said, and prompts that are done with."""
        self._tokens += tokens
        self.done += prompts
        now = self._clock()
        if now - self._marks[-1][0] >= 1:
            self._marks.append((now, self._tokens))
            while self._marks[1][0] <= now - RATE_SECONDS:
                self._marks.pop(0)

    def rate(self) -> str:
        """Tokens said per second, lately."""
        since, tokens = self._marks[0]
        seconds = self._clock() - since
        return f"{(self._tokens - tokens) / seconds:,.0f} tokens/s" if seconds > 0 else ""

    def left(self) -> str:
        """About how long it still takes, from the pace of prompts since this process began."""
        answered = self.done - self._before
        if not answered or self.done >= self.total:
            return ""
        seconds = (self._clock() - self._began) / answered * (self.total - self.done)
        return f"about {formatting.duration(seconds)} left"

    def told(self, *first: str) -> str:
        """`first` and then what is left, on one line."""
        return ", ".join(part for part in (*first, self.left()) if part)


@contextmanager
def shown(console: Console, progress: AnswerProgress, told: Callable[[], str]) -> Iterator[Callable[[int, int], None]]:
    """Show the progress, and what is `told` beside it, while the block runs.

    Yields what to call, in place of `progress.advance`, after each pass. A block that ends well ends with a last line or full bar.
    """
    columns = (TextColumn("answering"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"))
    last, told_of = time.monotonic(), -1

    def tell() -> None:
        nonlocal last, told_of
        last, told_of = time.monotonic(), progress.done
        say(console, f"{progress.done:,} of {progress.total:,} prompts answered, {told()}".removesuffix(", "))

    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=progress.total, completed=progress.done, told="")

        def advance(tokens: int, prompts: int) -> None:
            progress.advance(tokens, prompts)
            if console.is_terminal:
                bar.update(task, completed=progress.done, told=told())
            elif time.monotonic() - last >= LINE_SECONDS:
                tell()

        yield advance
        if not console.is_terminal and told_of != progress.done:
            tell()
