"""GPU performance monitoring (GPM) of Hopper and newer, through NVML: rates and ratios between two samples of the counters.

A sample is memory of the library and has to be freed, the newest one by `close`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LEAST_SECONDS = 1.0
"""Shortest time between two samples: below it the counters are too coarse, and the last figures are returned again."""
MOST_SECONDS = 600.0
"""Longest time between two samples: after a suspend, say, figures would describe the past."""

PER_CENT, PER_MIB = 100.0, 2.0**-20

# Field of `Device`, GPM's metric, how many of its units make one of the field's.
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
    """One GPU, or its MIG instance `mig`; `handle` is the whole GPU's. Methods raise what the library raises."""

    def __init__(self, nvml: Any, handle: Any, mig: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml, self._handle, self._mig, self._clock = nvml, handle, mig, clock
        self._before: _Sample | None = None
        self._figures: dict[str, float] = {}

    def supported(self) -> bool:
        return bool(self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)

    def read(self) -> dict[str, float]:
        """Figures since the last sample, by field of `Device`; empty after the first, without what the GPU does not count."""
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
        """Free the newest sample."""
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
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_ASKED)
        request.sample1, request.sample2 = before.taken, now.taken
        for slot, (_, metric, _) in zip(request.metrics, _ASKED, strict=False):
            slot.metricId = getattr(nvml, metric)
        nvml.nvmlGpmMetricsGet(request)
        return {
            field: slot.value / units
            for slot, (field, _, units) in zip(request.metrics, _ASKED, strict=False)
            if slot.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(slot.value)
        }
