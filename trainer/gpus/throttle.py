"""Why a GPU slows its clocks: NVML's bits in, reasons of the catalogue out."""

from __future__ import annotations

from typing import Any

from trainer.metrics.catalogue.gpus import GPU_THROTTLE_REASONS

# NVML's name of a bit, and the reason that it stands for. What is wanted is none: an idle GPU, clocks that somebody has set.
THROTTLE_BITS = {
    "nvmlClocksThrottleReasonGpuIdle": "",
    "nvmlClocksThrottleReasonApplicationsClocksSetting": "",
    "nvmlClocksThrottleReasonDisplayClockSetting": "",
    "nvmlClocksThrottleReasonSwPowerCap": "power_cap",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power_brake",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "thermal",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "thermal",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware",
    "nvmlClocksThrottleReasonSyncBoost": "other",
    "nvmlClocksThrottleReasonBoardLimit": "other",
    "nvmlClocksThrottleReasonReliability": "other",
}
# They set the bit HwSlowdown as well.
_TOLD_APART = ("nvmlClocksThrottleReasonHwPowerBrakeSlowdown", "nvmlClocksThrottleReasonHwThermalSlowdown")


def reasons_of(bits: int, nvml: Any) -> tuple[str, ...]:
    """In the order of the catalogue. A bit that is newer than this list counts as "other"."""
    values = {name: int(getattr(nvml, name)) for name in THROTTLE_BITS}
    found = {THROTTLE_BITS[name] for name, value in values.items() if bits & value}
    if any(bits & values[name] for name in _TOLD_APART):
        found.discard("hardware")
    if bits & ~sum(values.values()):
        found.add("other")
    return tuple(reason for reason in GPU_THROTTLE_REASONS if reason in found)
