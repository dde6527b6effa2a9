"""How fast the run is: rates over the last minute, from the steps and their times."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

WINDOW_SECONDS = 60.0
# From the third step on the first one is left out: it includes the filling of the queues.
_SETTLED_MARKS = 3


@dataclass(frozen=True, slots=True)
class Counts:
    """What the run had done by some moment, earlier attempts included."""

    step: int = 0
    context_tokens: int = 0
    draft_tokens: int = 0
    samples: int = 0


NOTHING_DONE = Counts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Means over the last 60 s; None before the first step."""

    context_tokens_per_second: float | None = None
    """What the target reads."""
    draft_tokens_per_second: float | None = None
    """What the drafter drafts: anchors x block size."""
    steps_per_second: float | None = None
    """Optimizer steps."""
    progress_per_second: Annotated[float | None, Field(exclude=True)] = None
    """Share of the run that gets done. Not in `/status`, which has `eta_seconds`."""


NO_RATES = Rates()


@dataclass(frozen=True, slots=True)
class _Mark:
    """The end of a step, `at` on the monotonic clock."""

    at: float
    counts: Counts
    progress: float | None


class Pace:
    """Remembers the steps of the last minute, and at least two of them, however slow they are."""

    def __init__(self, window_seconds: float = WINDOW_SECONDS) -> None:
        self._window_seconds = window_seconds
        self._marks: deque[_Mark] = deque()
        self._has_start = False

    def add(self, at: float, counts: Counts, progress: float | None, *, step_seconds: float, base: Counts) -> None:
        """Add the newest step, which ended `at` and took `step_seconds`; one that is known already changes nothing.

        `base` is what the run had done before this attempt's first step.
        """
        if not self._marks:
            self._marks.append(_start(at, counts, progress, step_seconds, base))
            self._has_start = True
        if counts.step > self._marks[-1].counts.step:
            self._marks.append(_Mark(at, counts, progress))
        if self._has_start and len(self._marks) > _SETTLED_MARKS:
            self._marks.popleft()
            self._has_start = False

    def rates(self, now: float) -> Rates:
        """From the end of one step to the end of another, so that a window never cuts a step.

        An overdue step counts as late: in a stall the rates fall instead of standing still.
        """
        marks = self._marks
        while len(marks) > 2 and marks[1].at < now - self._window_seconds:
            marks.popleft()
        if len(marks) < 2:
            return NO_RATES
        first, last = marks[0], marks[-1]
        took, steps = last.at - first.at, last.counts.step - first.counts.step
        seconds = max(took, now - first.at - took / steps)
        if seconds <= 0:
            return NO_RATES
        known = first.progress is not None and last.progress is not None
        return Rates(
            context_tokens_per_second=round((last.counts.context_tokens - first.counts.context_tokens) / seconds, 4),
            draft_tokens_per_second=round((last.counts.draft_tokens - first.counts.draft_tokens) / seconds, 4),
            steps_per_second=round(steps / seconds, 4),
            progress_per_second=(last.progress - first.progress) / seconds if known else None,  # type: ignore[operator]
        )


def _start(at: float, counts: Counts, progress: float | None, step_seconds: float, base: Counts) -> _Mark:
    """Where the attempt stood before its first step, as far as that step tells."""
    before = None if progress is None else progress * base.step / counts.step
    return _Mark(at - step_seconds * (counts.step - base.step), base, before)
