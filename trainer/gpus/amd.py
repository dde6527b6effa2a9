"""Figures of AMD GPUs from the driver's own library, AMD SMI (package amdsmi, which ROCm brings; none of our requirements)."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.gpus.device import Device, NotHereError, UsedGpu, sentence_of
from trainer.gpus.selection import choose

# Fields of amdsmi_get_violation_status, and the reason of the catalogue that each stands for.
VIOLATIONS = {
    "active_ppt_pwr": "power_cap",
    "active_prochot_thrm": "thermal",
    "active_socket_thrm": "thermal",
    "active_vr_thrm": "thermal",
    "active_hbm_thrm": "thermal",
}


@dataclass(slots=True)
class _Gpu:
    index: int
    handle: Any
    names: tuple[str, ...]
    """What the driver, HIP and torch call it."""
    name: str
    throttle_reasons: tuple[str, ...] | None = None
    unsupported: set[str] = field(default_factory=set)
    error: str = ""


def load() -> Any:
    """The module. Without ROCm its import prints, and raises nearly anything."""
    with contextlib.redirect_stdout(io.StringIO()):
        return importlib.import_module("amdsmi")


class Amd:
    """Owned by one thread, as `Nvml` is."""

    name = "amdsmi"

    def __init__(self, load: Callable[[], Any] = load, environ: Mapping[str, str] = os.environ) -> None:
        self.driver = ""
        self.notes: tuple[str, ...] = ()
        self._load = load
        self._visible = environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES"))
        self._missing = ""
        self._amd: Any = None
        self._gpus: list[_Gpu] = []

    def open(self, used: Sequence[UsedGpu]) -> None:
        """Raises `NotHereError` where there is no library, else `RuntimeError` with a sentence."""
        if self._missing:  # an import that failed once fails again, and is slow to
            raise NotHereError(self._missing)
        try:
            amd = self._load()
        except Exception as error:
            self._missing = sentence_of(error)
            raise NotHereError(self._missing) from error
        try:
            amd.amdsmi_init()
            self._amd = amd
            handles = list(amd.amdsmi_get_processor_handles())
            if not handles:
                raise RuntimeError("this machine has no AMD GPU")
            names = [_identities(amd, handle) for handle in handles]
            self._gpus = [self._gpu(index, handles[index], names[index]) for index in choose(used, self._visible, names)]
            self.driver = str(amd.amdsmi_get_gpu_driver_info(handles[0])["driver_version"])
        except Exception as error:
            raise RuntimeError(sentence_of(error)) from error
        if not self._gpus:
            raise RuntimeError(f"HIP_VISIBLE_DEVICES={self._visible} leaves none")
        self.notes = ("AMD GPUs tell no occupancy, tensor-core activity, DRAM activity, link traffic and XID errors.",)

    def read(self, *, costly: bool) -> tuple[tuple[Device, ...], str]:
        """Raises `RuntimeError` with a sentence where no GPU answers."""
        devices = [self._device(gpu, costly=costly) for gpu in self._gpus]
        told = tuple(device for device in devices if not device.says_nothing())
        if not told:
            raise RuntimeError(self._gpus[0].error or "the driver knows none of them")
        silent = [gpu for device, gpu in zip(devices, self._gpus, strict=True) if device.says_nothing()]
        return told, " ".join(f"GPU {gpu.index} does not answer: {gpu.error}." for gpu in silent)

    def close(self) -> None:
        amd, self._amd, self._gpus = self._amd, None, []
        if amd is not None:
            with contextlib.suppress(Exception):
                amd.amdsmi_shut_down()

    def _gpu(self, index: int, handle: Any, names: Sequence[str]) -> _Gpu:
        name = str(self._amd.amdsmi_get_gpu_asic_info(handle)["market_name"])
        return _Gpu(index=index, handle=handle, names=tuple(names), name=name)

    def _device(self, gpu: _Gpu, *, costly: bool) -> Device:
        amd, gpu.error = self._amd, ""
        if costly:
            gpu.throttle_reasons = _reasons(self._ask(gpu, "amdsmi_get_violation_status"))
        hotspot = (amd.AmdSmiTemperatureType.HOTSPOT, amd.AmdSmiTemperatureMetric.CURRENT)
        vram, energy = amd.AmdSmiMemoryType.VRAM, self._ask(gpu, "amdsmi_get_energy_count")
        gfx, mem = (self._ask(gpu, "amdsmi_get_clock_info", kind) for kind in (amd.AmdSmiClkType.GFX, amd.AmdSmiClkType.MEM))
        accumulated = _number(energy, "energy_accumulator", _number(energy, "counter_resolution", 1.0) or 0.0)
        return Device(
            index=gpu.index,
            name=gpu.name,
            uuid=gpu.names[0],
            aliases=gpu.names[1:],
            kernel_active_ratio=_number(self._ask(gpu, "amdsmi_get_gpu_activity"), "gfx_activity", 0.01),
            memory_used_bytes=self._ask(gpu, "amdsmi_get_gpu_memory_usage", vram),
            memory_total_bytes=self._ask(gpu, "amdsmi_get_gpu_memory_total", vram),
            power_watts=_power(self._ask(gpu, "amdsmi_get_power_info")),
            power_limit_watts=_number(self._ask(gpu, "amdsmi_get_power_cap_info"), "power_cap", 1e-6),
            energy_joules=None if accumulated is None else accumulated * 1e-6,
            temperature_celsius=self._ask(gpu, "amdsmi_get_temp_metric", *hotspot),
            sm_clock_hertz=_number(gfx, "clk", 1e6),
            memory_clock_hertz=_number(mem, "clk", 1e6),
            throttle_reasons=gpu.throttle_reasons,
        )

    def _ask(self, gpu: _Gpu, call: str, *about: Any) -> Any:
        """An answer, or None; a call that this GPU does not support is not asked again."""
        if call in gpu.unsupported:
            return None
        try:
            return getattr(self._amd, call)(gpu.handle, *about)
        except Exception as error:
            gpu.error = sentence_of(error)
            if isinstance(error, self._amd.AmdSmiLibraryException) and "NOT_SUPPORTED" in str(error):
                gpu.unsupported.add(call)
            return None


def _identities(amd: Any, handle: Any) -> list[str]:
    """All names of one GPU: the driver's, and HIP's, which torch spells as the hexadecimal digits of its letters."""
    names = [str(amd.amdsmi_get_gpu_device_uuid(handle))]
    with contextlib.suppress(Exception):
        hip = str(amd.amdsmi_get_gpu_enumeration_info(handle)["hip_uuid"])
        letters = hip.removeprefix("GPU-").encode().hex()
        names += [hip, "-".join((letters[:8], letters[8:12], letters[12:16], letters[16:20], letters[20:]))]
    return names


def _number(told: Mapping[str, Any] | None, key: str, factor: float) -> float | None:
    """AMD SMI says "N/A" for what it does not know."""
    value = told.get(key) if told else None
    return value * factor if isinstance(value, int | float) and not isinstance(value, bool) else None


def _power(told: Mapping[str, Any] | None) -> float | None:
    """In watts, from the first field that says something: which one it is differs between generations of GPUs."""
    fields = ("current_socket_power", "average_socket_power", "socket_power")
    return next((watts for field in fields if (watts := _number(told, field, 1.0))), None)


def _reasons(told: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    states = {key: told.get(key) for key in VIOLATIONS} if told else {}
    if not any(isinstance(state, bool) for state in states.values()):
        return None
    found = {VIOLATIONS[key] for key, state in states.items() if state is True}
    return tuple(reason for reason in ("power_cap", "thermal") if reason in found)
