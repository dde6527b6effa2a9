"""What NVIDIA GPUs since Hopper count of their own work (GPM), through NVML: two samples in, rates and ratios between them out.

A sample is memory of the library: each is freed, the newest at `close`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LEAST_SECONDS = 1.0
"""Between two samples that are compared: below it the counters are too coarse, and the figures of before are given again."""
MOST_SECONDS = 600.0
"""Figures over a longer time, after a suspended machine say, would be about the past."""

PER_CENT, PER_MIB = 100.0, 2.0**-20

# Field of `Device`, metric of GPM, its units in a base unit.
_ASKED = (
    ("sm_active_ratio", "NVML_GPM_METRIC_SM_UTIL", PER_CENT),
    ("sm_occupancy_ratio", "NVML_GPM_METRIC_SM_OCCUPANCY", PER_CENT),
    ("tensor_active_ratio", "NVML_GPM_METRIC_ANY_TENSOR_UTIL", PER_CENT),
    ("dram_active_ratio", "NVML_GPM_METRIC_DRAM_BW_UTIL", PER_CENT),
    ("pcie_receive_bytes_per_second", "NVML_GPM_METRIC_PCIE_RX_PER_SEC", PER_MIB),
    ("pcie_transmit_bytes_per_second", "NVML_GPM_METRIC_PCIE_TX_PER_SEC", PER_MIB),
    ("nvlink_receive_bytes_per_second", "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", PER_MIB),
    ("nvlink_transmit_bytes_per_second", "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", PER_MIB),
)


@dataclass(frozen=True, slots=True)
class _Sample:
    taken: Any
    at: float


class Gpm:
    """Of one GPU, or of its MIG instance number `mig`; `handle` is the whole GPU's. Raises what the library raises."""

    def __init__(self, nvml: Any, handle: Any, mig: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml, self._handle, self._mig, self._clock = nvml, handle, mig, clock
        self._before: _Sample | None = None
        self._figures: dict[str, float] = {}

    def supported(self) -> bool:
        return bool(self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)

    def read(self) -> dict[str, float]:
        """Figures by field of `Device`, of the time since the last sample; none after the first, nor of what is not counted."""
        before, at = self._before, self._clock()
        if before is not None and at - before.at < LEAST_SECONDS:
            return self._figures
        self._figures = {}
        try:
            now = _Sample(self._take(), at)
        except Exception:
            self.close()
            raise
        self._before = now
        if before is None:
            return {}
        try:
            if at - before.at <= MOST_SECONDS:
                self._figures = self._between(before, now)
        finally:
            self._nvml.nvmlGpmSampleFree(before.taken)
        return self._figures

    def close(self) -> None:
        """Forget the sample. Raises what the library raises."""
        before, self._before, self._figures = self._before, None, {}
        if before is not None:
            self._nvml.nvmlGpmSampleFree(before.taken)

    def _take(self) -> Any:
        nvml = self._nvml
        sample = nvml.nvmlGpmSampleAlloc()
        try:
            if self._mig is None:
                nvml.nvmlGpmSampleGet(self._handle, sample)
            else:
                nvml.nvmlGpmMigSampleGet(self._handle, self._mig, sample)
        except Exception:
            nvml.nvmlGpmSampleFree(sample)
            raise
        return sample

    def _between(self, before: _Sample, now: _Sample) -> dict[str, float]:
        nvml = self._nvml
        question = nvml.c_nvmlGpmMetricsGet_t()
        question.version = nvml.NVML_GPM_METRICS_GET_VERSION
        question.numMetrics = len(_ASKED)
        question.sample1, question.sample2 = before.taken, now.taken
        for slot, (_, metric, _) in zip(question.metrics, _ASKED, strict=False):
            slot.metricId = getattr(nvml, metric)
        nvml.nvmlGpmMetricsGet(question)
        return {
            field: slot.value / units
            for slot, (field, _, units) in zip(question.metrics, _ASKED, strict=False)
            if slot.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(slot.value)
        }
