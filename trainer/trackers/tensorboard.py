"""The tracker TensorBoard: writes event files with TensorBoard's own writer, which needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.trackers.scalars import Point, import_failure

# Events that may wait for the writer's thread. If the queue is full `send` blocks, in this process only.
QUEUE = 1000


class TensorBoard:
    """Writes into `folder`, which is made if needed. Raises `TrackerError` if tensorboard cannot be imported, and `OSError`."""

    notice = ""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise import_failure("tensorboard", error) from error
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
