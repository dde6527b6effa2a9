"""What NVML's numbers mean: its errors as sentences with the way out, its throttle bits as reasons of the catalogue."""

from __future__ import annotations

from typing import Any

from trainer.gpus.device import sentence_of
from trainer.metrics.catalogue.gpus import GPU_THROTTLE_REASONS

# By NVML's name of an error: what to do about it.
WAYS_OUT = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "there is no NVIDIA driver here, or this container was not given it (docs/gpus.md)",
    "NVML_ERROR_DRIVER_NOT_LOADED": "load the kernel module nvidia, or install the driver",
    "NVML_ERROR_NO_PERMISSION": "this user may not open the GPU's device files",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the driver was updated while it was loaded: restart the machine",
    "NVML_ERROR_UNKNOWN": "in a container this follows a reload of systemd, which takes its GPUs away: recreate the container",
    "NVML_ERROR_GPU_IS_LOST": "it has fallen off the bus: restart the machine",
}
# By NVML's name of a bit: the reason of the catalogue, or "" for what is no throttling: an idle GPU, clocks set by a person.
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
# These set the bit HwSlowdown as well, and say more.
_MORE_SPECIFIC = ("nvmlClocksThrottleReasonHwPowerBrakeSlowdown", "nvmlClocksThrottleReasonHwThermalSlowdown")


def is_final(error: BaseException, nvml: Any) -> bool:
    """Whether the same call will fail for good."""
    never = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_NO_PERMISSION)
    return getattr(error, "value", None) in never


def with_way_out(error: BaseException, nvml: Any) -> str:
    """The error's sentence, and what to do about it if that is known."""
    sentence, code = sentence_of(error), getattr(error, "value", None)
    ways_out = [way_out for name, way_out in WAYS_OUT.items() if code is not None and getattr(nvml, name) == code]
    return f"{sentence}: {ways_out[0]}" if ways_out else sentence


def throttle_reasons(bits: int, nvml: Any) -> tuple[str, ...]:
    """In the order of the catalogue. A bit newer than `THROTTLE_BITS` counts as "other"."""
    values = {name: int(getattr(nvml, name)) for name in THROTTLE_BITS}
    found = {THROTTLE_BITS[name] for name, value in values.items() if bits & value}
    if any(bits & values[name] for name in _MORE_SPECIFIC):
        found.discard("hardware")
    if bits & ~sum(values.values()):
        found.add("other")
    return tuple(reason for reason in GPU_THROTTLE_REASONS if reason in found)
