"""A hand-made monitor: one believable status, and ticks that a test makes itself."""

import threading
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from trainer.gpus.device import Allocated, Device
from trainer.monitor.status import Status

STARTED_AT = "2026-11-30T10:21:03+00:00"
STARTED = 1796034063.0
NOW = STARTED + 745.0


class FakeMonitor:
    """Also a source of its status. What a control asks of it lies in `told`: events by name and counted metrics."""

    def __init__(self, **changed: Any) -> None:
        self.changed = changed
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.record = self.exporter = self
        self.ticks = 0
        self.asked = 0
        self._changed = threading.Condition()

    def tick(self, **changed: Any) -> None:
        with self._changed:
            self.changed |= changed
            self.ticks += 1
            self._changed.notify_all()

    def wait_tick(self, last: int, timeout: float) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self.ticks != last, timeout)
            return self.ticks

    @property
    def state(self) -> Any:
        return SimpleNamespace(state=self.changed.get("state", "running"), step=self.changed.get("step", 1240))

    def enter(self, state: str, *, only_from: str | None = None) -> bool:
        if only_from in (None, self.state.state):
            self.changed["state"] = state
        return self.state.state == state

    def event(self, name: str, message: str, step: int, **fields: Any) -> None:
        self.told.append((name, {"message": message, "step": step, **fields}))

    def add(self, metric: Any, amount: float, *labels: str) -> None:
        self.told.append((metric.name, {"amount": amount, "labels": labels}))

    def status(self) -> Status:
        self.asked += 1
        return a_status(**self.changed)


def a_status(**changed: Any) -> Status:
    """`sample_status` as the model; a dictionary changes only the fields of an object that it names."""
    sample = sample_status()
    merged = {name: sample[name] | value if isinstance(value, dict) else value for name, value in changed.items()}
    return Status.model_validate(sample | merged)


def sample_status(**changed: Any) -> dict[str, Any]:
    """The JSON of `GET /status`, every field of it, of a run that the target holds back; `changed` fields replace it."""
    status: dict[str, Any] = {
        "run": {"id": "demo-x9f2", "name": "demo-x9f2", "started_at": STARTED_AT, "command": ["python", "-m", "trainer", "train"]},
        "state": "running",
        "phase": None,
        "step": 1240,
        "max_steps": 5000,
        "epoch": 1.5,
        "progress_ratio": 0.248,
        "eta_seconds": 7805.0,
        "loss": 3.4123,
        "loss_unit": "nats per draft token",
        "learning_rate": 5.9e-4,
        "grad_norm": 0.812,
        "newest_step": None,
        "rates": {"context_tokens_per_second": 410.2, "draft_tokens_per_second": 12345.0, "steps_per_second": 0.4},
        "acceptance": {
            "estimated_length": 2.31,
            "position_accuracy": [0.61, 0.4, 0.28, None],
            "measured_length": None,
            "measured_at_step": None,
            "measured_by_position": [],
            "held_out_estimated_length": None,
        },
        "stages": [
            _stage("dataset", 0.01, 0.0, 0.99),
            _stage("batches", 0.02, 0.01, 0.97),
            _stage("target", 0.97, 0.0, 0.03),
            _stage("drafter", 0.72, 0.28, 0.0),
        ],
        "queues": [_queue("samples", 256, 256), _queue("batches", 4, 4), _queue("features", 1, 4)],
        "verdict": {
            "state": "stage_holds",
            "stage": "target",
            "sentence": "The target holds the run back: busy 97 %. Without it: up to +34 %, then the drafter holds.",
            "since": NOW - 730,
            "headroom_ratio": 0.34,
            "next_stage": "drafter",
            "lost_device_hours": 0.012,
        },
        "devices": [
            asdict(
                Device(
                    index=0,
                    name="NVIDIA H200",
                    kernel_active_ratio=0.9,
                    memory_used_bytes=81_000_000_000,
                    memory_total_bytes=150_000_000_000,
                    power_watts=412.3,
                    temperature_celsius=51.0,
                    throttle_reasons=("power_cap",),
                    allocator=Allocated(allocated_bytes=10, reserved_bytes=20, peak_bytes=15, retries=0, out_of_memory=0),
                )
            )
        ],
        "process": {"cpu_cores": 1.9, "memory_bytes": 2_147_483_648},
        "checkpoint": {"step": 1000, "path": "runs/demo-x9f2/checkpoints/step-000001000", "age_seconds": 190.0},
        "last_error": None,
        "warnings": ["3 conversations were dropped: the chat template refused them"],
        "watching": {"seconds": 2.3, "ratio": 0.0031},
        "gpu_sampler": {
            "up": True,
            "reason": "",
            "notes": [],
            "backend": "nvml",
            "driver": "580.65.06",
            "age_seconds": 0.4,
            "errors": 0,
        },
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
    }
    del status["devices"][0]["aliases"]
    return status | changed


def _stage(name: str, busy: float, waiting_input: float, waiting_output: float) -> dict[str, Any]:
    return {
        "name": name,
        "threads": 1,
        "items": 1240,
        "busy_ratio": busy,
        "waiting_input_ratio": waiting_input,
        "waiting_output_ratio": waiting_output,
        "seconds_since_progress": 0.4,
    }


def _queue(name: str, items: int, capacity: int) -> dict[str, Any]:
    return {
        "name": name,
        "items": items,
        "capacity_items": capacity,
        "bytes": items * 2_949_120,
        "capacity_bytes": 4_000_000_000,
        "fill_ratio": items / capacity,
    }
