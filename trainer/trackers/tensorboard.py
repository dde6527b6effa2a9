"""Points in, event files out, by TensorBoard's own writer, which needs no torch: `tensorboard --logdir runs` shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.trackers.scalars import Point
from trainer.trackers.sink import unusable

# Events that wait for tensorboard's own writing thread; a full queue makes `send` wait, here, where nobody minds.
QUEUE = 1000


class EventFiles:
    """Writes into `folder`, which is made. Raises `TrackerError` where tensorboard cannot be imported, and `OSError`."""

    notice = ""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise unusable("tensorboard", error) from error
        self._events: Any = event_pb2
        self._summaries: Any = summary_pb2
        folder.mkdir(parents=True, exist_ok=True)
        self._writer: Any = EventFileWriter(str(folder), max_queue_size=QUEUE)

    def send(self, point: Point) -> None:
        value = self._summaries.Summary.Value
        values = [value(tag=name, simple_value=number) for name, number in point.values.items()]
        summary = self._summaries.Summary(value=values)
        self._writer.add_event(self._events.Event(wall_time=point.time, step=point.step, summary=summary))

    def restart(self, step: int) -> None:
        session = self._events.SessionLog(status=self._events.SessionLog.START)
        self._writer.add_event(self._events.Event(step=step, session_log=session))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
