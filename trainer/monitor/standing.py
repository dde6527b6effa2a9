"""How the run stands: which state it is in, what it does while it starts or finishes, and what it failed of."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainer.metrics.catalogue.run import RUN_STATES


class Standing:
    """Every method may be called from any thread, and touches memory only. `clock` counts seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changing = threading.Lock()
        self._phase_since = clock()
        self._ended: float | None = None
        self.state = "starting"
        """One of RUN_STATES."""
        self.phase = ""
        """What it does, or last did, as in "loading the target"."""
        self.began = clock()
        self.failed_stage: str | None = None
        self.error: str | None = None
        """What it failed of, in one line."""

    @property
    def phase_seconds(self) -> float:
        return self._clock() - self._phase_since

    @property
    def elapsed(self) -> float:
        """Seconds since it began, up to its end."""
        return (self._clock() if self._ended is None else self._ended) - self.began

    def enter_phase(self, text: str) -> None:
        self.phase, self._phase_since = text, self._clock()

    def set(self, state: str) -> None:
        """Raises `ValueError` for what is none of RUN_STATES."""
        if state not in RUN_STATES:
            raise ValueError(f"state must be one of {', '.join(RUN_STATES)}, got {state!r}")
        with self._changing:
            self.state = state

    def change(self, before: str, after: str) -> bool:
        """From one state to another, if it is in the one; tells whether it was."""
        with self._changing:
            if self.state != before:
                return False
            self.state = after
            return True

    def stall(self) -> bool:
        """Nothing gets on any more; tells whether that is news."""
        with self._changing:
            if self.state not in ("starting", "running"):
                return False
            self.state = "stalled"
            return True

    def recover(self, stepped: bool) -> None:
        """It gets on again, if it had stalled; `stepped` says whether it has taken a step by now."""
        self.change("stalled", "running" if stepped else "starting")

    def end(self, state: str) -> None:
        self._ended = self._clock()
        self.set(state)
