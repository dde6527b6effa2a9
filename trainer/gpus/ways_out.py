"""An error of NVML in; what it says, with the way out, and whether to ask again is in vain, out."""

from __future__ import annotations

from typing import Any

from trainer.gpus.device import sentence_of

# What to do about an error, by NVML's name for it.
WAYS_OUT = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "there is no NVIDIA driver here, or it was not given to this container (docs/gpus.md)",
    "NVML_ERROR_DRIVER_NOT_LOADED": "load the kernel module nvidia, or install the driver",
    "NVML_ERROR_NO_PERMISSION": "this user may not open the GPU's device files",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the driver was replaced while it was loaded, restart the machine",
    "NVML_ERROR_UNKNOWN": "in a container this follows a reload of systemd, which takes its GPUs away: recreate the container",
    "NVML_ERROR_GPU_IS_LOST": "it has fallen off the bus, restart the machine",
}


def is_final(error: BaseException, nvml: Any) -> bool:
    """Whether to ask again is in vain."""
    never = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_NO_PERMISSION)
    return getattr(error, "value", None) in never


def with_way_out(error: BaseException, nvml: Any) -> str:
    why, code = sentence_of(error), getattr(error, "value", None)
    outs = [out for name, out in WAYS_OUT.items() if code is not None and getattr(nvml, name) == code]
    return f"{why}: {outs[0]}" if outs else why
