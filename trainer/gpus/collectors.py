"""The newest GPU snapshot as metric samples for `/metrics`; what a GPU does not report is absent."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.gpus.device import Device, GpuSnapshot
from trainer.metrics.catalogue import gpus as gpu_metrics
from trainer.metrics.catalogue.stages import STAGE_DEVICE
from trainer.metrics.exporter import MetricSample


def gpu_samples(gpus: GpuSnapshot) -> Iterator[MetricSample]:
    yield MetricSample(gpu_metrics.GPU_SAMPLER_UP, float(gpus.up))
    yield MetricSample(gpu_metrics.GPU_BACKEND, 1, (gpus.backend,))
    yield MetricSample(gpu_metrics.GPU_SAMPLE_TIME, gpus.time)
    yield MetricSample(gpu_metrics.GPU_SAMPLE_SECONDS, gpus.seconds)
    yield MetricSample(gpu_metrics.GPU_SAMPLE_ERRORS, gpus.errors)
    for device in gpus.devices:
        gpu = device.label
        yield MetricSample(gpu_metrics.GPU_INFO, 1, (gpu, device.uuid, device.name, gpus.driver))
        yield from (MetricSample(STAGE_DEVICE, 1, (stage, gpu)) for stage in device.stages)
        yield from _figures(device, gpu)
        yield from _allocator(device, gpu)


def _figures(device: Device, gpu: str) -> Iterator[MetricSample]:
    yield MetricSample(gpu_metrics.GPU_KERNEL_ACTIVE, device.kernel_active_ratio, (gpu,))
    yield MetricSample(gpu_metrics.GPU_SM_ACTIVE, device.sm_active_ratio, (gpu,))
    yield MetricSample(gpu_metrics.GPU_SM_OCCUPANCY, device.sm_occupancy_ratio, (gpu,))
    yield MetricSample(gpu_metrics.GPU_TENSOR_ACTIVE, device.tensor_active_ratio, (gpu,))
    yield MetricSample(gpu_metrics.GPU_DRAM_ACTIVE, device.dram_active_ratio, (gpu,))
    yield MetricSample(gpu_metrics.GPU_MEMORY_USED, device.memory_used_bytes, (gpu,))
    yield MetricSample(gpu_metrics.GPU_MEMORY_TOTAL, device.memory_total_bytes, (gpu,))
    yield MetricSample(gpu_metrics.GPU_MEMORY_RESERVED, device.memory_reserved_bytes, (gpu,))
    yield MetricSample(gpu_metrics.GPU_POWER, device.power_watts, (gpu,))
    yield MetricSample(gpu_metrics.GPU_POWER_LIMIT, device.power_limit_watts, (gpu,))
    yield MetricSample(gpu_metrics.GPU_ENERGY, device.energy_joules, (gpu,))
    yield MetricSample(gpu_metrics.GPU_TEMPERATURE, device.temperature_celsius, (gpu,))
    yield MetricSample(gpu_metrics.GPU_CLOCK, device.sm_clock_hertz, (gpu, "sm"))
    yield MetricSample(gpu_metrics.GPU_CLOCK, device.memory_clock_hertz, (gpu, "memory"))
    yield MetricSample(gpu_metrics.GPU_PCIE, device.pcie_receive_bytes_per_second, (gpu, "receive"))
    yield MetricSample(gpu_metrics.GPU_PCIE, device.pcie_transmit_bytes_per_second, (gpu, "transmit"))
    yield MetricSample(gpu_metrics.GPU_NVLINK, device.nvlink_receive_bytes_per_second, (gpu, "receive"))
    yield MetricSample(gpu_metrics.GPU_NVLINK, device.nvlink_transmit_bytes_per_second, (gpu, "transmit"))
    yield MetricSample(gpu_metrics.GPU_XIDS, device.xid_errors, (gpu,))
    yield MetricSample(gpu_metrics.GPU_XID_CODE, device.xid_last_code, (gpu,))
    yield MetricSample(gpu_metrics.GPU_XID_TIME, device.xid_last_time, (gpu,))
    reasons = device.throttle_reasons
    for reason in gpu_metrics.GPU_THROTTLE_REASONS:
        yield MetricSample(gpu_metrics.GPU_THROTTLED, None if reasons is None else float(reason in reasons), (gpu, reason))


def _allocator(device: Device, gpu: str) -> Iterator[MetricSample]:
    held = device.allocator
    if held is None:
        return
    yield MetricSample(gpu_metrics.ALLOCATED, held.allocated_bytes, (gpu,))
    yield MetricSample(gpu_metrics.RESERVED, held.reserved_bytes, (gpu,))
    yield MetricSample(gpu_metrics.ALLOCATED_PEAK, held.peak_bytes, (gpu,))
    yield MetricSample(gpu_metrics.ALLOCATOR_RETRIES, held.retries, (gpu,))
    yield MetricSample(gpu_metrics.ALLOCATOR_OOMS, held.out_of_memory, (gpu,))
