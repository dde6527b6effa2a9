"""How fast a run gets on: from steps and their times to rates over the last minute."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from trainer.monitor.moments import Base, Rates, Stepped

WINDOW_SECONDS = 60.0
# From so many steps on, the first one is left out: it holds the filling of the queues.
_SETTLED_MARKS = 3


@dataclass(frozen=True, slots=True)
class _Mark:
    """What had been done at the end of a step."""

    at: float
    step: int
    context_tokens: int
    draft_tokens: int
    progress: float | None


class Pace:
    """Remembers where the run was over the last minute, and at least at two steps, however slow they are."""

    def __init__(self, window_seconds: float = WINDOW_SECONDS) -> None:
        self._window_seconds = window_seconds
        self._marks: deque[_Mark] = deque()
        self._has_start = False

    def add(self, newest: Stepped, base: Base, progress: float | None) -> None:
        """Note the newest step; one that is known already changes nothing."""
        facts = newest.facts
        mark = _Mark(newest.at, facts.step, facts.context_tokens, facts.draft_tokens, progress)
        if not self._marks:
            self._marks.append(_start(newest, base, progress))
            self._has_start = True
        if mark.step > self._marks[-1].step:
            self._marks.append(mark)
        if self._has_start and len(self._marks) > _SETTLED_MARKS:
            self._marks.popleft()
            self._has_start = False

    def rates(self, now: float) -> Rates:
        """Per second, from one step's end to another's, so that a window never cuts a step.

        A step that is overdue counts as being late: in a stall the rates sink instead of standing still.
        """
        marks = self._marks
        while len(marks) > 2 and marks[1].at < now - self._window_seconds:
            marks.popleft()
        if len(marks) < 2:
            return Rates()
        first, last = marks[0], marks[-1]
        took, steps = last.at - first.at, last.step - first.step
        seconds = max(took, now - first.at - took / steps)
        if seconds <= 0:
            return Rates()
        known = first.progress is not None and last.progress is not None
        return Rates(
            context_tokens_per_second=(last.context_tokens - first.context_tokens) / seconds,
            draft_tokens_per_second=(last.draft_tokens - first.draft_tokens) / seconds,
            steps_per_second=steps / seconds,
            progress_per_second=(last.progress - first.progress) / seconds if known else None,  # type: ignore[operator]
        )


def _start(newest: Stepped, base: Base, progress: float | None) -> _Mark:
    """Where the attempt was before its first step, as far as that step tells."""
    facts = newest.facts
    at = newest.at - facts.step_seconds * (facts.step - base.step)
    before = None if progress is None else progress * base.step / facts.step
    return _Mark(at, base.step, base.context_tokens, base.draft_tokens, before)
