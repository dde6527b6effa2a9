"""A run that is watched on a made-up clock, without anything that trains."""

from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from pydantic import TypeAdapter

from tests.support.lines import lines_of
from trainer.gpus.device import Device
from trainer.metrics.exporter import Exporter
from trainer.monitor.acceptance import Evaluations
from trainer.monitor.collectors import run_samples
from trainer.monitor.monitor import Monitor
from trainer.monitor.status import MonitorStatus
from trainer.record.format import EvaluationLine, StepLine
from trainer.record.writer import RunRecord

RUN = {
    "id": "one",
    "name": "one",
    "started_at": "2026-11-30T10:00:00+00:00",
    "command": ["train"],
    "max_steps": 200,
    "loss_unit": "nats per draft token",
}
STEP = StepLine(
    step=1,
    epoch=0.1,
    loss=10.8,
    learning_rate=6e-4,
    grad_norm=1.5,
    position_accuracy=(0.5, None),
    estimated_acceptance_length=1.5,
    context_tokens=1000,
    draft_tokens=80,
    samples=4,
    step_seconds=0.5,
    seq=0,
)
EPOCH = 1764497000.0
"""Unix time at 0 of the made-up clock."""
EVALUATION = EvaluationLine(
    step=1500,
    measured_length=2.0,
    acceptance_by_position=(0.5, 0.3, 0.2),
    held_out_estimated_length=2.1,
    training_estimated_length=2.2,
    prompts=16,
    rounds=1000,
    tokens=2000,
    seconds=40.0,
    tokens_per_second=60.0,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.jump = 0.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return EPOCH + self.now + self.jump


class Watched(Monitor):
    """A monitor with all that reads it: `status` is the JSON of /status, `exposed` the text of /metrics, `events` the record's."""

    def __init__(self, folder: Path, clock: Clock | None = None, *, attempt: int = 0, run: dict[str, Any] | None = None) -> None:
        record = RunRecord(folder, attempt, flush_seconds=0.01)
        self.clock_of_test = clock or Clock()
        super().__init__(run or RUN, Exporter(CollectorRegistry(), "one"), record, self.clock_of_test, self.clock_of_test.wall)
        self.evaluations = Evaluations(self)
        self.exporter.register(lambda: run_samples(self.state, self.record))

    def status(self) -> dict[str, Any]:
        return MonitorStatus(self).status().document()

    def exposed(self) -> str:
        return self.exporter.exposition(None)[0].decode()

    def events(self) -> list[dict[str, Any]]:
        self.record.close()
        return lines_of(self.record.folder / "events.jsonl")


def shown(device: Device) -> dict[str, Any]:
    """A GPU as /status and telemetry.jsonl show it."""
    return dict(TypeAdapter(Device).dump_python(device.rounded()))
