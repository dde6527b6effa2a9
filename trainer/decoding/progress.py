"""Progress of `prepare` and `evaluate` for people: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from trainer import formatting

LINE_SECONDS = 10.0
# Prompts are answered longest first, so that the rate changes over time: only the newest stretch of this length counts.
RATE_SECONDS = 30.0


def print_line(console: Console, sentence: str) -> None:
    """Print a sentence on a line of its own, without markup, highlighting or wrapping."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


class AnswerProgress:
    """Counts prompts and tokens. `clock` is in seconds."""

    def __init__(self, total: int, done: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.done = done
        self._clock = clock
        self._began = clock()
        self._done_before = done
        self._tokens = 0
        self._marks: list[tuple[float, int]] = [(self._began, 0)]

    def advance(self, tokens: int, prompts: int) -> None:
        """Count one pass: tokens generated and prompts completed."""
        self._tokens += tokens
        self.done += prompts
        now = self._clock()
        if now - self._marks[-1][0] >= 1:
            self._marks.append((now, self._tokens))
            while self._marks[1][0] <= now - RATE_SECONDS:
                self._marks.pop(0)

    def rate(self) -> str:
        """Tokens per second over the last `RATE_SECONDS`."""
        since, tokens = self._marks[0]
        seconds = self._clock() - since
        return f"{(self._tokens - tokens) / seconds:,.0f} tokens/s" if seconds > 0 else ""

    def remaining(self) -> str:
        """Estimated time that is left, from the prompts per second since this process began; "" while unknown or done."""
        answered = self.done - self._done_before
        if not answered or self.done >= self.total:
            return ""
        seconds = (self._clock() - self._began) / answered * (self.total - self.done)
        return f"about {formatting.duration(seconds)} left"

    def status(self, *first: str) -> str:
        """One line: `first`, then the time that is left."""
        return ", ".join(part for part in (*first, self.remaining()) if part)


@contextmanager
def show_progress(console: Console, progress: AnswerProgress, status: Callable[[], str]) -> Iterator[Callable[[int, int], None]]:
    """Show the progress and the `status` beside it while the block runs; a block that ends well ends with a last line or full bar.

    Yields the function to call after each pass in place of `progress.advance`.
    """
    columns = (TextColumn("answering"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[status]}"))
    last_line, last_done = time.monotonic(), -1

    def print_status() -> None:
        nonlocal last_line, last_done
        last_line, last_done = time.monotonic(), progress.done
        print_line(console, f"{progress.done:,} of {progress.total:,} prompts answered, {status()}".removesuffix(", "))

    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=progress.total, completed=progress.done, status="")

        def advance(tokens: int, prompts: int) -> None:
            progress.advance(tokens, prompts)
            if console.is_terminal:
                bar.update(task, completed=progress.done, status=status())
            elif time.monotonic() - last_line >= LINE_SECONDS:
                print_status()

        yield advance
        if not console.is_terminal and last_done != progress.done:
            print_status()
