"""What a tracker has to be able to do, and how it says that it cannot."""

from __future__ import annotations

from typing import Protocol

from trainer.trackers.scalars import Point

INSTALL = "pip install -r requirements/trackers.txt"


class Sink(Protocol):
    """Takes points in the order in which they happened. Anything it raises ends its process, and only that."""

    notice: str
    """What a person should know of how it began; mostly empty."""

    def send(self, point: Point) -> None: ...

    def restart(self, step: int) -> None:
        """The run went on from a checkpoint: what was sent of `step` and later steps is overtaken."""

    def flush(self) -> None:
        """See to it that what was sent survives this process."""

    def close(self) -> None: ...


class TrackerError(Exception):
    """A tracker cannot work; the message says why and the way out."""


def unusable(library: str, error: ImportError) -> TrackerError:
    """Why importing it failed: it is not there, or it is broken."""
    if isinstance(error, ModuleNotFoundError) and error.name == library:
        return TrackerError(f"{library} is not installed ({INSTALL})")
    return TrackerError(f"{library} cannot be imported: {error} ({INSTALL})")
