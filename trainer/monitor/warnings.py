"""What the run tells people, in sentences: into the log, the record's events and, where it deserves a look, onto every page."""

from __future__ import annotations

import logging
import threading
from typing import Any

from trainer.formatting import one_line
from trainer.record.writer import RunRecord

log = logging.getLogger("trainer.monitor.live")

_SHOWN = 20


class Notices:
    """Every method may be called from any thread, and touches memory only."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._changing = threading.Lock()
        self._shown: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[str, ...]:
        """The warnings on the page, the newest last."""
        return self._shown

    def tell(self, level: int, event: str, message: str, step: int, **fields: Any) -> None:
        log.log(level, "%s", message)
        self._record.event(event, message, step, **fields)

    def warn(self, message: str, step: int) -> None:
        """Told and shown; said again, it is neither told nor shown twice."""
        sentence = one_line(message)
        if self.show(sentence):
            self.tell(logging.WARNING, "warning", sentence, step)

    def trouble(self, level: int, event: str, message: str, step: int) -> None:
        """Told each time, and shown."""
        self.show(one_line(message))
        self.tell(level, event, one_line(message), step)

    def show(self, sentence: str, instead_of: str = "") -> bool:
        """Put it among the warnings on the page; tells whether it is new there."""
        with self._changing:
            new = sentence not in self._shown
            self._shown = (*(known for known in self._shown if known not in (sentence, instead_of)), sentence)[-_SHOWN:]
        return new

    def withdraw(self, sentence: str) -> None:
        """Take it off the page: it no longer holds."""
        with self._changing:
            self._shown = tuple(known for known in self._shown if known != sentence)
