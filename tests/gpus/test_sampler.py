"""The thread that owns the GPU library: what it makes of everything that a library does, on a made-up clock."""

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest
from prometheus_client import CollectorRegistry

from tests.monitor.test_sampler import FakeStages
from tests.support.fake_nvml import BUSY, IDLE, UUIDS, FakeNvml
from tests.support.fake_rocm import FakeTorch
from tests.support.watched import RUN, STEP, shown
from trainer.config import WatchConfig
from trainer.gpus.device import NO_TORCH_GPUS, Allocated, NotHereError, TorchGpus, UsedGpu
from trainer.gpus.nvml import Nvml
from trainer.gpus.rocm import Rocm
from trainer.gpus.sampler import COSTLY_EVERY, GIVE_UP_SECONDS, RETRY_SECONDS, GpuSampler
from trainer.metrics.catalogue.watching import WATCH_ERRORS, WATCH_SECONDS
from trainer.metrics.exporter import Exporter
from trainer.monitor.monitor import Monitor
from trainer.monitor.sampler import Sampler
from trainer.monitor.status import MonitorStatus, gpu_sampler
from trainer.record.writer import RunRecord

GIVEN = UsedGpu(0, UUIDS[1].removeprefix("GPU-"), ("drafter",)), UsedGpu(1, UUIDS[0].removeprefix("GPU-"), ("target",))
STATS = {
    "allocated_bytes.all.current": 100,
    "allocated_bytes.all.peak": 300,
    "reserved_bytes.all.current": 200,
    "num_alloc_retries": 2,
    "num_ooms": 1,
}


class Bench:
    def __init__(self, fake: FakeNvml | None = None, torch: TorchGpus = NO_TORCH_GPUS, rocm: FakeTorch | None = None) -> None:
        self.fake, self.now, self.step = fake or FakeNvml(), 100.0, 0
        self.exporter = Exporter(CollectorRegistry())
        self.gpus = GpuSampler(
            self.exporter,
            2.0,
            torch,
            progress=lambda: self.step,
            backends=(Nvml(lambda: self.fake, {}, self.clock, self.wall), Rocm(lambda: rocm or FakeTorch(hip=None))),
            clock=self.clock,
            wall=self.wall,
        )

    def clock(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1796034063.0 + self.now

    def sample(self, after: float = 2.0) -> Any:
        self.now += after
        self.gpus.sample()
        return self.gpus.snapshot

    @property
    def counted(self) -> tuple[int, float]:
        return self.gpus.snapshot.errors, self.exporter.total(WATCH_ERRORS, "gpu")


def test_a_sampling() -> None:
    bench = Bench()
    assert gpu_sampler(bench.gpus.snapshot, 5.0).model_dump() == {
        "up": False,
        "reason": "No GPU figures yet.",
        "notes": (),
        "backend": "none",
        "driver": "",
        "age_seconds": None,
        "errors": 0,
    }
    reading = bench.sample()
    assert ([device.index for device in reading.devices], reading.up, reading.reason, reading.warning) == ([0, 1], True, "", "")
    assert (reading.time, reading.seconds) == (bench.wall(), 0.0)
    said = gpu_sampler(reading, bench.now + 1.25)
    assert (said.backend, said.driver, said.age_seconds) == ("nvml", "570.86.15", 1.2)
    assert bench.counted == (0, 0)
    assert bench.exporter.total(WATCH_SECONDS, "gpu") > 0


def test_a_machine_without_a_library_is_a_state_and_no_error() -> None:
    fake = FakeNvml()
    fake.fail(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "nvmlInit")
    bench = Bench(fake)
    snapshot = bench.sample()
    assert (snapshot.up, snapshot.backend, snapshot.warning) == (False, "none", "")
    assert snapshot.reason.startswith("No GPU figures: NVML Shared Library Not Found: there is no NVIDIA driver here")
    bench.sample(RETRY_SECONDS)
    assert bench.counted == (0, 0)


def test_a_run_on_a_gpu_that_cannot_be_watched_is_told() -> None:
    fake = FakeNvml()
    fake.fail(pynvml.NVML_ERROR_UNKNOWN, "nvmlInit")
    bench = Bench(fake, TorchGpus(gpus=GIVEN))
    assert bench.sample().warning.startswith("No GPU figures: Unknown Error: in a container")
    assert bench.counted == (1, 1)


def test_a_driver_that_is_lost_is_tried_again_after_a_while() -> None:
    bench = Bench()
    seen_at = bench.sample().time
    bench.fake.fail(pynvml.NVML_ERROR_UNKNOWN)
    snapshot = bench.sample()
    assert (snapshot.devices, snapshot.up, snapshot.backend, snapshot.notes) == ((), False, "none", ())
    way_out = "in a container this follows a reload of systemd, which takes its GPUs away: recreate the container"
    assert snapshot.reason == f"No GPU figures: Unknown Error: {way_out}."
    assert snapshot.warning == f"{snapshot.reason} Training goes on without them."
    assert (snapshot.time, bench.fake.ended) == (seen_at, 1), "the age is that of the last figures"
    bench.fake.faults.clear()
    assert not bench.sample(RETRY_SECONDS - 1).up
    assert bench.fake.started == 1, "not tried again before its time"
    assert bench.sample(1).up
    assert (bench.fake.started, bench.counted) == (2, (1, 1))


def test_a_gpu_that_vanishes_takes_only_its_own_figures_away() -> None:
    bench = Bench()
    bench.sample()
    bench.fake.fail(pynvml.NVML_ERROR_GPU_IS_LOST, gpu=0)
    snapshot = bench.sample()
    assert ([device.index for device in snapshot.devices], snapshot.up) == ([1], True)
    assert snapshot.reason == "GPU 0 does not answer: GPU is lost: it has fallen off the bus: restart the machine."
    assert snapshot.warning == snapshot.reason


def test_an_amd_gpu_where_there_is_no_nvidia_driver() -> None:
    fake = FakeNvml()
    fake.fail(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "nvmlInit")
    assert not Bench(fake, rocm=FakeTorch()).sample().up, "it stays off while the run uses no GPU"
    snapshot = Bench(fake, TorchGpus(gpus=GIVEN), FakeTorch()).sample()
    assert (snapshot.up, snapshot.backend, snapshot.devices[0].name) == (True, "amdsmi", "AMD Instinct MI300X")
    assert [device.stages for device in snapshot.devices] == [("drafter",), ("target",)]


def test_an_amd_gpu_whose_library_is_not_installed_is_told_with_the_way_out() -> None:
    fake, rocm = FakeNvml(), FakeTorch()
    fake.fail(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "nvmlInit")
    for gpu in (0, 1):
        rocm.fail(gpu, ModuleNotFoundError("amdsmi does not seem to be installed"))
    warning = Bench(fake, TorchGpus(gpus=GIVEN), rocm).sample().warning
    assert "install the package amdsmi of this machine's ROCm" in warning
    assert warning.endswith("Training goes on without them.")


def test_of_two_libraries_the_one_that_should_work_gives_the_reason() -> None:
    class Broken(Rocm):
        def open(self, used: object) -> None:
            raise RuntimeError("driver not loaded.")

    fake = FakeNvml()
    fake.fail(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "nvmlInit")
    bench = Bench(fake)
    bench.gpus._backends = (bench.gpus._backends[0], Broken())
    assert bench.sample().reason == "No GPU figures: driver not loaded."


def test_even_a_bug_of_ours_is_a_state() -> None:
    class Buggy:
        name, driver, notes = "nvml", "", ()

        def open(self, used: object) -> None:
            raise NotHereError

        def close(self) -> None: ...

    bench = Bench()
    bench.gpus._backends = (Buggy(),)  # type: ignore[assignment]
    assert bench.sample().reason == "No GPU figures: NotHereError."


def test_costly_questions_are_rare() -> None:
    bench = Bench(FakeNvml(BUSY, gpm=False))
    for _ in range(2 * COSTLY_EVERY):
        bench.sample()
    assert bench.fake.asked.count("nvmlDeviceGetPcieThroughput") == 4


class Hanging:
    """A bench whose thread is inside a call that does not answer, until `release`."""

    def __init__(self, bench: Bench) -> None:
        self.release = bench.fake.hang()
        self._thread = threading.Thread(target=bench.gpus.sample, daemon=True)
        self._thread.start()
        waited = threading.Event()
        while not bench.fake.hanging and not waited.wait(0.01):
            pass

    def end(self) -> None:
        self.release.set()
        self._thread.join(10)
        assert not self._thread.is_alive()


def test_a_driver_that_does_not_answer_is_found_and_comes_back() -> None:
    bench = Bench()
    bench.sample()
    hanging = Hanging(bench)
    bench.now += GIVE_UP_SECONDS - 1
    assert bench.gpus.snapshot.up, "slow is not dead"
    bench.now += 3
    snapshot = bench.gpus.snapshot
    assert (snapshot.up, snapshot.devices, snapshot.errors) == (False, (), 1)
    assert snapshot.reason == "No GPU figures: the driver has not answered for 12 s."
    assert snapshot.seconds == 12
    bench.now += 30
    assert bench.gpus.snapshot.warning == snapshot.warning, "what a person is told does not change every second"
    hanging.end()
    snapshot = bench.gpus.snapshot
    assert (snapshot.up, len(snapshot.devices), snapshot.reason, snapshot.seconds) == (True, 2, "", 42)
    assert bench.counted == (1, 1), "counted once, while it hangs and after"


def test_a_driver_that_hangs_from_the_start() -> None:
    bench = Bench()
    hanging = Hanging(bench)
    bench.now += GIVE_UP_SECONDS
    assert bench.gpus.snapshot.reason == "No GPU figures: the driver has not answered for 10 s."
    hanging.end()
    assert bench.gpus.snapshot.up


def test_a_run_goes_on_being_watched_while_the_driver_hangs(tmp_path: Path) -> None:
    """Verdict, stall detection and `/metrics` know of the driver only what its own thread has left behind."""
    record, bench = RunRecord(tmp_path, 0), Bench()
    exporter, stages = bench.exporter, FakeStages()
    monitor = Monitor(RUN, exporter, record, bench.clock, bench.wall)
    config = WatchConfig(stall_seconds=30.0)
    sampler = Sampler(monitor, config, gpus=bench.gpus)
    sampler.attach(stages)  # type: ignore[arg-type]
    bench.sample()
    hanging = Hanging(bench)
    for number in range(1, 21):
        bench.now += 1
        stages.advance(1.0, busy=0.5, items=1)
        monitor.step(replace(STEP, step=number, context_tokens=1000 * number))
        sampler.tick()
    status = MonitorStatus(monitor).status().document()
    assert (status["verdict"]["state"], status["step"]) == ("stage_holds", 20)
    assert status["gpu_sampler"]["reason"] == "No GPU figures: the driver has not answered for 20 s."
    assert (status["devices"], status["gpu_sampler"]["age_seconds"]) == ([], 20.0)
    assert status["warnings"] == ["The GPU driver does not answer. Training goes on without figures of the GPUs."]
    lines = exporter.exposition(None)[0].decode().splitlines()
    assert {"draftscope_gpu_sampler_up 0.0", "draftscope_gpu_sample_duration_seconds 20.0"} <= set(lines)
    stages.on_item = 38.0
    bench.now += 38
    sampler.tick()
    assert monitor.state.state == "stalled"
    hanging.end()
    sampler.tick()
    assert [device["index"] for device in MonitorStatus(monitor).status().document()["devices"]] == [0, 1]
    record.close()


def test_stages_and_the_allocator_are_matched_by_identity() -> None:
    """Torch counts the other way round here."""
    asked: list[int] = []

    def stats(number: int) -> dict[str, int]:
        asked.append(number)
        return STATS if number == 0 else {}

    bench = Bench(torch=TorchGpus(gpus=GIVEN, memory_stats=stats))
    bench.sample()
    assert asked == [], "no step, no question"
    bench.step = 1
    first, second = bench.sample().devices
    assert (first.stages, first.allocator) == (("target",), None)
    held = Allocated(allocated_bytes=100, reserved_bytes=200, peak_bytes=300, retries=2, out_of_memory=1)
    assert (second.stages, second.allocator) == (("drafter",), held)
    assert shown(second)["allocator"]["peak_bytes"] == 300
    assert bench.sample().devices[1].allocator == held, "the last known figures stay"
    assert sorted(asked) == [0, 1], "torch is asked only once the run has got on"


def test_an_allocator_that_keeps_no_account_costs_no_other_figure() -> None:
    def stats(number: int) -> dict[str, int]:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    bench = Bench(torch=TorchGpus(gpus=GIVEN, memory_stats=stats))
    bench.step = 1
    snapshot = bench.sample()
    assert (snapshot.up, [device.allocator for device in snapshot.devices]) == (True, [None, None])


def test_switched_off_it_leaves_the_gpus_alone() -> None:
    fake = FakeNvml()
    gpus = GpuSampler(Exporter(CollectorRegistry()), 0, backends=(Nvml(lambda: fake, {}),))
    gpus.start()
    assert (gpus.snapshot.up, gpus.snapshot.reason) == (False, "GPU figures are switched off by --watch.gpu-seconds 0.")
    gpus.stop()
    assert fake.asked == []


def test_the_thread_looks_closes_the_library_and_ends() -> None:
    fake = FakeNvml(BUSY, IDLE)
    gpus = GpuSampler(Exporter(CollectorRegistry()), 0.01, backends=(Nvml(lambda: fake, {}),))
    gpus.start()
    waited = threading.Event()
    while fake.asked.count("nvmlDeviceGetPowerUsage") < 4 and not waited.wait(0.01):
        pass
    seen_at = gpus.snapshot.time
    gpus.stop()
    assert (fake.ended, fake.samples) == (1, {})
    assert "gpus" not in {thread.name for thread in threading.enumerate()}
    after = gpus.snapshot
    assert (after.devices, after.up, after.backend, after.warning) == ((), False, "none", "")
    assert after.reason == "The run has ended; its GPUs are no longer sampled."
    assert after.time >= seen_at > 0, "the age is that of the last figures"


def test_at_its_end_a_run_that_had_no_figures_still_says_why() -> None:
    fake = FakeNvml()
    fake.fail(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "nvmlInit")
    bench = Bench(fake)
    reason = bench.sample().reason
    bench.gpus.stop()
    assert bench.gpus.snapshot.reason == reason
    assert "NVML Shared Library Not Found" in reason


def test_an_ended_run_shows_no_figures_of_the_present_and_keeps_those_of_its_record(tmp_path: Path) -> None:
    record, bench = RunRecord(tmp_path, 0), Bench()
    monitor = Monitor(RUN, bench.exporter, record, bench.clock, bench.wall)
    sampler = Sampler(monitor, WatchConfig(), gpus=bench.gpus)
    bench.sample()
    sampler.tick()
    sampler.stop()
    record.close()
    status = MonitorStatus(monitor).status().document()
    assert (status["devices"], status["gpu_sampler"]["up"]) == ([], False)
    assert status["gpu_sampler"]["reason"].startswith("The run has ended")
    lines = bench.exporter.exposition(None)[0].decode().splitlines()
    assert "draftscope_gpu_sampler_up 0.0" in lines
    assert [line for line in lines if line.startswith("draftscope_") and 'gpu="' in line] == []
    last = json.loads((tmp_path / "telemetry.jsonl").read_text().splitlines()[-1])
    assert [device["index"] for device in last["devices"]] == [0, 1]


def test_a_process_ends_while_the_library_hangs() -> None:
    code = """
import threading
from prometheus_client import CollectorRegistry
from tests.support.fake_nvml import FakeNvml
from trainer.gpus.nvml import Nvml
from trainer.gpus.rocm import Rocm
from trainer.gpus.sampler import GpuSampler
from trainer.metrics.exporter import Exporter
fake = FakeNvml()
fake.hang()
gpus = GpuSampler(Exporter(CollectorRegistry()), 1.0, backends=(Nvml(lambda: fake, {}),))
gpus.start()
while not fake.hanging: threading.Event().wait(0.01)
gpus.stop()
print(gpus.snapshot.up, [thread.name for thread in threading.enumerate()])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "False ['MainThread', 'gpus']\n"


def test_a_reading_that_is_old_shows_its_age() -> None:
    bench = Bench()
    reading = bench.sample()
    assert gpu_sampler(reading, bench.now + 90).age_seconds == pytest.approx(90)
