"""Run records as training leaves them, and what other trackers made of them: TensorBoard's files and W&B's, read back."""

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.fake_monitor import sample_status
from tests.support.lines import step_of
from trainer.record.format import TelemetryLine, field_names
from trainer.record.writer import RunRecord, write_run_json

NAN = float("nan")


def make_folder(folder: Path, **facts: Any) -> Path:
    """A run's folder with an identity and nothing else."""
    folder.mkdir(parents=True)
    write_run_json(folder, {"id": folder.name, "config": {"seed": 1, "watch": {"token_file": "a secret place"}}, **facts})
    return folder


def tick(**changed: Any) -> TelemetryLine:
    """A telemetry tick that says what `/status` does."""
    status = sample_status(**changed)
    return TelemetryLine(**{name: status[name] for name in field_names(TelemetryLine)})


def go_on(folder: Path, steps: Sequence[int], *, attempt: int = 0, loss: float = 2.0, clock: float = 1000.0) -> None:
    """One attempt: how it began, its steps one second apart, a telemetry tick and an evaluation at the end."""
    times = iter(clock + 100_000 * attempt + 0.5 * tick for tick in range(10_000))
    record = RunRecord(folder, attempt, lambda: next(times))
    record.event("resumed" if attempt else "started", "So it goes.", steps[0] - 1)
    for step in steps:
        record.step(step_of(step, loss=loss * step), step * 1.0)
    record.telemetry(tick(step=steps[-1]))
    record.event("evaluated", "Measured.", steps[-1], measured_length=1.5, acceptance_by_position=[0.4, None], seconds=3.0)
    record.close()


def read_event_files(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar in TensorBoard's files, as TensorBoard itself reads them: tag → (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def read_wandb_files(folder: Path) -> list[dict[str, Any]]:
    """Every row that was logged to W&B offline, oldest file first."""
    return [row for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")) for row in _rows(path.read_bytes())]


def wandb_records(content: bytes, kind: str) -> list[Any]:
    """The protocol buffers of one kind in a `.wandb` file."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for block in _logged(content):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(block)
        if record.WhichOneof("record_type") == kind:
            found.append(getattr(record, kind))
    return found


def _rows(content: bytes) -> Iterator[dict[str, Any]]:
    for history in wandb_records(content, "history"):
        yield {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in history.item}


def _logged(content: bytes, size: int = 32_768) -> Iterator[bytes]:
    """The records of a log in LevelDB's form: 7 bytes of W&B, then blocks of records that may go on in the next block."""
    at, whole = 7, b""
    while at + 7 <= len(content):
        if size - at % size < 7:
            at += size - at % size
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield whole
            whole = b""
