"""All that watches one rank, made up: each number that a run at block size 16 can tell has been told, on as many GPUs as wanted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from trainer.config import WatchConfig
from trainer.gpus.device import Allocated, Device, GpuSnapshot
from trainer.metrics.catalogue.stages import QUEUES, STAGE_ITEM_SECONDS, STAGES
from trainer.metrics.exporter import Exporter
from trainer.monitor.acceptance import Evaluations
from trainer.monitor.collectors import log_samples, run_samples
from trainer.monitor.monitor import Monitor
from trainer.monitor.sampler import Sampler
from trainer.pipeline.queues import QueueStats
from trainer.pipeline.stages import StageStats
from trainer.record.format import EvaluationLine, StepLine
from trainer.record.writer import RunRecord

BLOCK_SIZE = 16
POSITIONS = tuple(0.9**place for place in range(1, BLOCK_SIZE))
COUNTS = tuple(range(1, len(STAGE_ITEM_SECONDS.buckets) + 2))
FACTS = {
    "id": "20261130-102103-x9f2",
    "max_steps": 5000,
    "target": {"name": "Qwen3-8B"},
    "git_commit": "0f3c9a1d2b4e5f60718293a4b5c6d7e8f9012345",
    "versions": {"draftscope": "0.4.0", "python": "3.11.7", "torch": "2.13.0"},
    "config": {"checkpoint": {"every": 500}},
}
STEP = StepLine(
    step=1240,
    epoch=1.5,
    loss=3.4123,
    learning_rate=5.9e-4,
    grad_norm=0.812,
    position_accuracy=POSITIONS,
    estimated_acceptance_length=6.1,
    context_tokens=10_158_080,
    draft_tokens=10_158_080,
    samples=4960,
    step_seconds=0.31,
    seq=1239,
)
EVALUATION = EvaluationLine(
    step=1000,
    measured_length=5.2,
    acceptance_by_position=POSITIONS,
    held_out_estimated_length=5.4,
    prompts=16,
    rounds=1730,
    tokens=9000,
    seconds=41.2,
    tokens_per_second=210.0,
)


@contextmanager
def full_rank(folder: Path, gpus: int = 0, *, begun: bool = True) -> Iterator[Monitor]:
    """A rank in the midst of its run, or before anything has happened; only the record's writer goes on by itself."""
    exporter, record = Exporter(CollectorRegistry(), str(FACTS["id"])), RunRecord(folder, 0)
    monitor = Monitor(FACTS, exporter, record)
    stages, figures = SimpleNamespace(read=_stages, read_queues=_queues), _gpus(gpus)
    sampler = Sampler(monitor, WatchConfig(), gpus=SimpleNamespace(snapshot=figures))  # type: ignore[arg-type]
    exporter.register(lambda: run_samples(monitor.state, record))
    exporter.register(lambda: log_samples(3, 0))
    if begun:
        sampler.attach(stages)  # type: ignore[arg-type]
        monitor.begin()
        monitor.step(STEP)
        Evaluations(monitor).evaluated(EVALUATION)
        monitor.checkpointed(1000, folder / "checkpoints" / "step-000001000", 1_234_567_890, 2.5)
        sampler.tick()
    while record.disk is None:
        time.sleep(0.001)
    yield monitor
    record.close()


def _stages() -> list[StageStats]:
    more: dict[str, Any] = {"item_counts": COUNTS, "item_busy_seconds": 40.0}
    return [StageStats(name, 1, 1240, 410.2, 20.1, 3.3, 0.1, 0.1, 1, **more) for name in STAGES]


def _queues() -> list[QueueStats]:
    return [QueueStats(name, 2, 4, 11_796_480, 536_870_912) for name in QUEUES]


def _gpus(count: int) -> GpuSnapshot:
    devices = tuple(_gpu(index) for index in range(count))
    return GpuSnapshot(devices, count > 0, "", "nvml" if count else "none", "580.1", time=time.time(), seconds=0.004)


def _gpu(index: int) -> Device:
    return Device(
        index=index,
        name="NVIDIA H200",
        uuid=f"GPU-0000000{index}-1111-2222-3333-444444444444",
        stages=("target", "drafter") if index == 0 else ("target",),
        kernel_active_ratio=0.97,
        sm_active_ratio=0.81,
        sm_occupancy_ratio=0.33,
        tensor_active_ratio=0.41,
        dram_active_ratio=0.52,
        memory_used_bytes=81_000_000_000,
        memory_total_bytes=150_754_820_096,
        memory_reserved_bytes=600_000_000,
        power_watts=612.3,
        power_limit_watts=700.0,
        energy_joules=1.2345e9,
        temperature_celsius=61.0,
        sm_clock_hertz=1.98e9,
        memory_clock_hertz=3.2e9,
        throttle_reasons=("power_cap",),
        pcie_receive_bytes_per_second=1.1e9,
        pcie_transmit_bytes_per_second=2.2e8,
        nvlink_receive_bytes_per_second=3.3e9,
        nvlink_transmit_bytes_per_second=3.2e9,
        xid_errors=0,
        xid_last_code=0,
        xid_last_time=0.0,
        allocator=Allocated(allocated_bytes=1, reserved_bytes=2, peak_bytes=3, retries=0, out_of_memory=0),
    )
