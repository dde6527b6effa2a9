"""The sampler's ticks, on a made-up clock where time matters."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.lines import lines_of
from tests.support.watched import STEP, Clock, Watched
from trainer.config import WatchConfig
from trainer.gpus.device import Device, GpuSnapshot
from trainer.metrics.catalogue.watching import WATCH_ERRORS, WATCH_SECONDS
from trainer.monitor.sampler import Sampler, dump_stacks
from trainer.pipeline.queues import QueueStats
from trainer.pipeline.stages import StageStats
from trainer.record.writer import RunRecord


class FakeGpus:
    def __init__(self) -> None:
        self.snapshot = GpuSnapshot((Device(index=0, name="H200", memory_used_bytes=5),), True, "")
        self.running = False

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False


class FakeStages:
    """Stages whose times the test sets: `target` is always busy, `drafter` as told."""

    def __init__(self) -> None:
        self.drafter_busy = self.drafter_waiting = 0.0
        self.drafter_items = 0
        self.on_item = 0.0
        self.broken = False

    def advance(self, seconds: float, *, busy: float, items: int) -> None:
        self.drafter_busy += seconds * busy
        self.drafter_waiting += seconds * (1 - busy)
        self.drafter_items += items

    def read(self) -> list[StageStats]:
        if self.broken:
            raise RuntimeError("stages are broken")
        lifetime = self.drafter_busy + self.drafter_waiting
        return [
            StageStats("target", 1, self.drafter_items, lifetime, 0.0, 0.0, 0.1, self.on_item, 1),
            StageStats("drafter", 1, self.drafter_items, self.drafter_busy, self.drafter_waiting, 0.0, 0.1, 0.0, 1),
        ]

    def read_queues(self) -> list[QueueStats]:
        return [QueueStats("features", 1, 4, 100, 1000)]


class Bench:
    """Everything that a sampler needs, and the clock that it goes by."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.watched = Watched(folder, self.clock)
        self.exporter, self.record = self.watched.exporter, self.watched.record
        self.gpus = FakeGpus()
        self.stages = FakeStages()
        config = WatchConfig(stall_seconds=30.0, sample_seconds=0.05)
        self.sampler = Sampler(self.watched, config, gpus=self.gpus)  # type: ignore[arg-type]

    def run(self, seconds: int, busy: float = 0.5) -> None:
        """A step and a tick each second."""
        for _ in range(seconds):
            self.clock.now += 1
            self.stages.advance(1.0, busy=busy, items=1)
            number = self.stages.drafter_items
            self.watched.step(replace(STEP, step=number, context_tokens=1000 * number, draft_tokens=80 * number, step_seconds=1.0))
            self.sampler.tick()

    def exposed(self) -> str:
        return self.exporter.exposition(None)[0].decode()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.sampler.attach(bench.stages)  # type: ignore[arg-type]
    yield bench
    bench.record.close()


def test_a_tick_is_seen_everywhere(bench: Bench) -> None:
    bench.run(20)
    status = bench.watched.status()
    assert (
        status["verdict"]["sentence"]
        == "The target holds the run back: busy 100 %. Without it: up to +100 %, then the drafter holds."
    )
    assert status["rates"] == {"context_tokens_per_second": 1000.0, "draft_tokens_per_second": 80.0, "steps_per_second": 1.0}
    assert [stage["busy_ratio"] for stage in status["stages"]] == [1.0, 0.5]
    assert status["queues"][0]["fill_ratio"] == 0.25
    assert status["devices"][0]["memory_used_bytes"] == 5
    assert (status["gpu_sampler"]["up"], status["gpu_sampler"]["reason"]) == (True, "")
    assert status["process"]["memory_bytes"] > 1e6
    assert status["eta_seconds"] == pytest.approx(180, abs=0.1)
    bench.record.close()
    line = json.loads((bench.record.folder / "telemetry.jsonl").read_text().splitlines()[-1])
    assert (line["step"], line["state"], line["verdict"]) == (20, "running", status["verdict"])
    shared = ("rates", "stages", "queues", "devices", "process")
    assert {key: line[key] for key in shared} == {key: status[key] for key in shared}


def test_metrics_are_read_at_scrape_time(bench: Bench) -> None:
    bench.run(5)
    bench.stages.advance(10.0, busy=1.0, items=0)
    text = bench.exposed()
    for line in (
        'draftscope_stage_seconds_total{stage="drafter",state="busy"} 12.5',
        'draftscope_stage_seconds_total{stage="dataset",state="busy"} 0.0',
        'draftscope_queue_capacity_bytes{queue="features"} 1000.0',
        'draftscope_queue_items{queue="samples"} 0.0',
        'draftscope_gpu_memory_used_bytes{gpu="0"} 5.0',
        "draftscope_gpu_sampler_up 1.0",
    ):
        assert line in text
    assert "draftscope_gpu_power_watts{" not in text, "what the GPU does not tell is absent"
    assert "draftscope_process_cpu_seconds_total" in text


def test_the_whole_answer_is_small_and_quick(bench: Bench) -> None:
    bench.run(5)
    began = time.thread_time()
    text = bench.exposed()
    assert time.thread_time() - began < 0.05
    assert sum(not line.startswith("#") for line in text.splitlines()) <= 300


def test_shares_forget_what_is_older_than_a_minute(bench: Bench) -> None:
    bench.run(30, busy=0.1)
    bench.run(70, busy=0.8)
    assert bench.watched.status()["stages"][1]["busy_ratio"] == pytest.approx(0.8)


def test_shares_are_of_the_whole_minute(bench: Bench) -> None:
    bench.run(20, busy=0.2)
    bench.run(20, busy=0.8)
    assert bench.watched.status()["stages"][1]["busy_ratio"] == pytest.approx(0.5, abs=0.02)


def test_filling_the_queues_is_no_part_of_the_window(bench: Bench) -> None:
    for _ in range(30):
        bench.clock.now += 1
        bench.stages.advance(1.0, busy=0.0, items=0)
        bench.sampler.tick()
    bench.run(10, busy=0.9)
    assert bench.watched.status()["stages"][1]["busy_ratio"] == pytest.approx(0.9)


def test_lost_device_time_adds_up(bench: Bench) -> None:
    bench.sampler.tick()
    bench.run(100, busy=0.25)
    assert "draftscope_lost_device_seconds_total 75.0" in bench.exposed()
    assert bench.watched.status()["verdict"]["lost_device_hours"] == pytest.approx(75 / 3600, rel=1e-3)


def test_a_stall_is_found_named_dumped_once_and_over_with_progress(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.run(10)
    bench.stages.on_item = 38.0
    bench.clock.now += 38
    for _ in range(3):
        bench.sampler.tick()
    assert bench.watched.state.state == "stalled"
    assert bench.watched.status()["verdict"]["sentence"].startswith("The target is stalled: 38 s on one item")
    assert [path.name for path in bench.record.folder.glob("stacks-*")] == ["stacks-1.txt"]
    assert "stack of every thread is in stacks-1.txt" in caplog.text
    bench.stages.on_item = 0.0
    bench.run(2)
    assert bench.watched.state.state == "running"
    assert bench.watched.status()["verdict"]["state"] == "stage_holds"
    bench.record.close()
    [event] = [event for event in lines_of(bench.record.folder / "events.jsonl") if event["event"] == "stalled"]
    assert (event["stage"], event["seconds"]) == ("target", 38.0)


def test_a_stack_that_cannot_be_dumped_costs_nothing_else(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.run(5)
    bench.stages.on_item = 38.0
    bench.record.folder = bench.record.folder / "gone"
    bench.sampler.tick()
    assert bench.watched.status()["verdict"]["state"] == "stalled"
    assert "The stacks could not be written" in caplog.text


def test_the_wall_clock_may_jump(bench: Bench) -> None:
    bench.run(10)
    bench.clock.jump = -1e9
    bench.run(10)
    assert bench.watched.status()["rates"]["steps_per_second"] == pytest.approx(1.0)
    assert bench.watched.state.state == "running"


def test_an_error_is_counted_logged_once_and_passes(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.stages.broken = True
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            bench.sampler.tick()
    assert bench.exporter.total(WATCH_ERRORS, "sampler") == 3
    assert caplog.text.count("sampling failed, training continues: RuntimeError: stages are broken") == 1
    bench.stages.broken = False
    bench.run(1)
    assert bench.watched.status()["stages"]


def test_lost_gpus_and_a_record_with_gaps_become_warnings(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.run(2)
    reason = "No GPU figures: Unknown Error."
    bench.gpus.snapshot = GpuSnapshot((), False, reason, warning=f"{reason} Training goes on without them.")
    monkeypatch.setattr(RunRecord, "trouble", "steps.jsonl cannot be written: No space left on device")
    bench.run(3)
    assert bench.watched.status()["warnings"] == [
        "No GPU figures: Unknown Error. Training goes on without them.",
        "The run record cannot be written at present; training continues: steps.jsonl cannot be written: No space left on device.",
    ]
    assert "draftscope_gpu_sampler_up 0.0" in bench.exposed()
    bench.gpus.snapshot = GpuSnapshot((), True, "")
    bench.run(1)
    (left,) = bench.watched.status()["warnings"]
    assert left.startswith("The run record cannot be written"), "the GPUs are back"


def test_watching_is_booked(bench: Bench) -> None:
    bench.run(3)
    assert bench.exporter.total(WATCH_SECONDS, "sampler") > 0
    time.sleep(0.05)
    bench.sampler.tick()
    assert bench.exporter.total(WATCH_SECONDS, "writer") == bench.record.cpu_seconds > 0


def test_the_thread_ticks_until_it_is_stopped_and_looks_once_more(bench: Bench) -> None:
    bench.sampler.start()
    assert bench.gpus.running
    first = bench.watched.wait_tick(0, 5.0)
    assert bench.watched.wait_tick(first, 5.0) > first
    bench.watched.finish()
    bench.sampler.stop()
    bench.record.close()
    assert json.loads((bench.record.folder / "telemetry.jsonl").read_text().splitlines()[-1])["state"] == "finished"
    assert not bench.gpus.running


def test_stopping_without_a_start_is_nothing(bench: Bench) -> None:
    bench.sampler.stop()


def test_stacks_name_the_threads(tmp_path: Path) -> None:
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait, name="target-0")
    thread.start()
    text = dump_stacks(tmp_path).read_text()
    waiting.set()
    thread.join()
    assert f"Thread 0x{thread.ident:016x} is target-0\n" in text
    assert text.count("most recent call first") >= 2
    assert dump_stacks(tmp_path).name == "stacks-2.txt"
