"""The newest look → numbers of the catalogue."""

from dataclasses import replace

import pynvml
from prometheus_client import CollectorRegistry

from tests.gpus.test_sampler import GIVEN, STATS, Bench
from trainer.gpus.collectors import gpu_samples
from trainer.gpus.device import TorchGpus
from trainer.metrics.catalogue.gpus import ALLOCATED, GPU_SM_ACTIVE, GPU_THROTTLED
from trainer.metrics.catalogue.index import CATALOGUE
from trainer.metrics.catalogue.stages import STAGE_DEVICE
from trainer.metrics.exporter import Exporter

OF_GPUS = {metric for metric in CATALOGUE if metric.name.startswith("gpu_")} | {STAGE_DEVICE}


def seen() -> Bench:
    bench = Bench(torch=TorchGpus(gpus=GIVEN, memory_stats=lambda _: STATS))
    for bench.step in range(1, 3):
        bench.sample()
    return bench


def exposed(bench: Bench) -> list[str]:
    exporter = Exporter(CollectorRegistry())
    exporter.register(lambda: gpu_samples(bench.gpus.snapshot))
    lines = exporter.exposition(None)[0].decode().splitlines()
    return [line.removeprefix("draftscope_") for line in lines if line.startswith(("draftscope_gpu_", "draftscope_stage_gpu_"))]


def test_every_number_about_gpus_is_told() -> None:
    readings = [reading for reading in gpu_samples(seen().gpus.snapshot) if reading.value is not None]
    assert {reading.metric for reading in readings} == OF_GPUS
    assert all(len(reading.labels) == len(reading.metric.labels) for reading in readings)
    assert len({(reading.metric.name, reading.labels) for reading in readings}) == len(readings), "no series twice"


def test_as_prometheus_sees_it() -> None:
    lines = exposed(seen())
    for line in (
        "gpu_sampler_up 1.0",
        'gpu_backend_info{backend="nvml"} 1.0',
        'gpu_info{driver="570.86.15",gpu="0",name="NVIDIA H200",uuid="GPU-8a3c5f10-1111-4d2e-9b77-0c5d3e2f1a00"} 1.0',
        'stage_gpu_info{gpu="0",stage="target"} 1.0',
        'stage_gpu_info{gpu="1",stage="drafter"} 1.0',
        'gpu_tensor_active_ratio{gpu="0"} 0.47',
        'gpu_clock_hertz{clock="memory",gpu="0"} 3.201e+09',
        'gpu_throttled{gpu="0",reason="power_cap"} 1.0',
        'gpu_throttled{gpu="0",reason="thermal"} 0.0',
        'gpu_nvlink_bytes_per_second{direction="receive",gpu="1"} 2.097152e+10',
        'gpu_xid_errors_total{gpu="0"} 0.0',
        'gpu_allocator_peak_bytes{gpu="1"} 300.0',
        "gpu_sample_errors_total 0.0",
    ):
        assert line in lines
    assert len(lines) == 5 + 2 * 33, "33 series for a GPU, as docs/gpus.md says"


def test_a_gpu_that_vanishes_takes_its_series_along() -> None:
    bench = seen()
    bench.fake.fail(pynvml.NVML_ERROR_GPU_IS_LOST, gpu=1)
    bench.sample()
    lines = exposed(bench)
    assert any('gpu="0"' in line for line in lines)
    assert not any('gpu="1"' in line for line in lines)


def test_without_figures_only_the_state_is_told() -> None:
    bench = seen()
    bench.fake.fail(pynvml.NVML_ERROR_UNKNOWN)
    bench.sample()
    names = {line.split()[0] for line in exposed(bench)}
    assert names == {
        "gpu_sampler_up",
        'gpu_backend_info{backend="none"}',
        "gpu_last_sample_timestamp_seconds",
        "gpu_sample_duration_seconds",
        "gpu_sample_errors_total",
    }
    assert "gpu_sampler_up 0.0" in exposed(bench)


def test_what_a_gpu_does_not_tell_is_absent() -> None:
    [first, _] = seen().gpus.snapshot.devices
    silent = replace(first, throttle_reasons=None, sm_active_ratio=None, allocator=None, stages=())
    bench = seen()
    told = {reading.metric for reading in gpu_samples(replace(bench.gpus.snapshot, devices=(silent,))) if reading.value is not None}
    assert told & {GPU_THROTTLED, GPU_SM_ACTIVE, ALLOCATED, STAGE_DEVICE} == set()
