"""Figures of NVIDIA GPUs from the driver's library, NVML (package nvidia-ml-py, module pynvml).

A GPU that does not support one figure still reports the others. docs/gpus.md lists the call behind each figure.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from trainer.gpus.device import Device, NotHereError, UsedGpu, label_of, sentence_of
from trainer.gpus.gpm import Gpm
from trainer.gpus.nvml_codes import is_final, throttle_reasons, with_way_out
from trainer.gpus.selection import choose, choose_parts
from trainer.gpus.xid import XidCounter


class _Part(NamedTuple):
    """A MIG instance, with its number within the GPU; or a whole GPU, without a number."""

    number: int | None
    uuid: str
    handle: Any


class _Found(NamedTuple):
    """A GPU that answers, and the MIG instances that this process may see."""

    whole: _Part
    parts: list[_Part]

    @property
    def names(self) -> list[str]:
        return [part.uuid for part in (self.whole, *self.parts)]


@dataclass(slots=True)
class _Gpu:
    """What is sampled: a GPU, or its MIG instance `mig`. `handle` and `whole`, a UUID, are the whole GPU's."""

    index: int
    mig: int | None
    handle: Any
    part: Any
    """The handle of the MIG instance, else the same as `handle`."""
    uuid: str
    whole: str
    name: str
    gpm: Gpm | None = None
    uncounted: str = ""
    """Why GPM counts nothing."""
    pcie: dict[str, float | None] = field(default_factory=dict)
    """PCIe traffic, as of the last time that the slow question was asked."""
    unsupported: set[str] = field(default_factory=set)
    """Calls that this GPU does not support. They are not repeated: each costs a turn at the driver's lock."""
    error: str = ""


class Nvml:
    """Owned by one thread: calls wait for a lock in the driver, and no other thread should have to."""

    name = "nvml"

    def __init__(
        self,
        load: Callable[[], Any] = lambda: importlib.import_module("pynvml"),
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.driver = ""
        self._load, self._clock = load, clock
        self._visible = environ.get("CUDA_VISIBLE_DEVICES")
        self._nvml: Any = None
        self._gpus: list[_Gpu] = []
        self._silent: dict[int, str] = {}
        self._xids = XidCounter(wall)

    @property
    def notes(self) -> tuple[str, ...]:
        """Which figures these GPUs never report, and why; GPUs with the same note share a sentence."""
        found: dict[str, list[str]] = {}
        for gpu in self._gpus:
            for note in _notes(gpu):
                found.setdefault(note, []).append(label_of(gpu.index, gpu.mig))
        return tuple(f"GPU {', '.join(labels)}: {note}" for note, labels in found.items())

    def open(self, used: Sequence[UsedGpu]) -> None:
        """Raises `NotHereError` if there is no library, `RuntimeError` with a sentence if it does not work."""
        try:
            nvml = self._load()
        except Exception as error:
            raise NotHereError(sentence_of(error)) from error
        try:
            nvml.nvmlInit()
        except Exception as error:
            kind = NotHereError if getattr(error, "value", None) == nvml.NVML_ERROR_LIBRARY_NOT_FOUND else RuntimeError
            raise kind(with_way_out(error, nvml)) from error
        self._nvml = nvml
        try:
            self.driver = _text(nvml.nvmlSystemGetDriverVersion())
            found = self._find(nvml.nvmlDeviceGetCount())
            if not found:
                raise RuntimeError(_joined(self._silent) or "this machine has no GPU")
            names = [found[index].names if index in found else [] for index in range(max(found) + 1)]
            chosen = choose(used, self._visible, names)
            self._gpus = [gpu for index in chosen if index in found for gpu in self._in_use(index, found[index], used)]
            # A GPU that does not answer matters only if the run may be using it.
            self._silent = {index: why for index, why in self._silent.items() if index in chosen or len(chosen) < len(used)}
        except Exception as error:
            raise RuntimeError(with_way_out(error, nvml)) from error
        if not self._gpus:
            raise RuntimeError(_joined(self._silent) or f"CUDA_VISIBLE_DEVICES={self._visible} leaves none")
        self._watch_for_xids()
        for gpu in self._gpus:
            self._start_gpm(gpu)

    def read(self, *, costly: bool) -> tuple[tuple[Device, ...], str]:
        """Raises `RuntimeError` with a sentence if no GPU answers."""
        with contextlib.suppress(Exception):
            self._xids.drain()
        devices = [self._device(gpu, costly=costly) for gpu in self._gpus]
        answering = tuple(device for device in devices if not device.has_no_figures())
        if not answering:
            raise RuntimeError(self._gpus[0].error or "the driver knows none of them")
        silent = {device.label: gpu.error for device, gpu in zip(devices, self._gpus, strict=True) if device.has_no_figures()}
        return answering, _joined({**self._silent, **silent})

    def close(self) -> None:
        nvml, gpus, self._nvml, self._gpus, self._silent = self._nvml, self._gpus, None, [], {}
        if nvml is None:
            return
        for let_go in [*(gpu.gpm.close for gpu in gpus if gpu.gpm), self._xids.close, nvml.nvmlShutdown]:
            with contextlib.suppress(Exception):
                let_go()

    def _find(self, count: int) -> dict[int, _Found]:
        """Every GPU that answers, by index; `_silent` keeps why others do not."""
        found = {}
        for index in range(count):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                found[index] = _Found(_Part(None, _text(self._nvml.nvmlDeviceGetUUID(handle)), handle), self._parts(handle))
            except Exception as error:
                self._silent[index] = with_way_out(error, self._nvml)
        return found

    def _parts(self, handle: Any) -> list[_Part]:
        nvml, found = self._nvml, []
        with contextlib.suppress(Exception):
            if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
                return []
            for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with contextlib.suppress(Exception):  # numbers of instances have gaps
                    part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                    found.append(_Part(number, _text(nvml.nvmlDeviceGetUUID(part)), part))
        return found

    def _in_use(self, index: int, found: _Found, used: Sequence[UsedGpu]) -> list[_Gpu]:
        """The GPU, or its MIG instances that are to be sampled."""
        whole = found.whole
        chosen = [found.parts[place] for place in choose_parts(used, self._visible, [part.uuid for part in found.parts])]
        return [
            _Gpu(
                index,
                part.number,
                whole.handle,
                part.handle,
                part.uuid,
                whole.uuid,
                _text(self._nvml.nvmlDeviceGetName(part.handle)),
            )
            for part in chosen or [whole]
        ]

    def _watch_for_xids(self) -> None:
        with contextlib.suppress(Exception):
            self._xids.open(self._nvml)
        for gpu in self._gpus:
            with contextlib.suppress(Exception):
                self._xids.watch(gpu.handle, gpu.whole)

    def _start_gpm(self, gpu: _Gpu) -> None:
        try:
            number = None if gpu.mig is None else self._nvml.nvmlDeviceGetGpuInstanceId(gpu.part)
            gpm = Gpm(self._nvml, gpu.handle, number, self._clock)
            gpu.gpm, gpu.uncounted = (gpm, "") if gpm.supported() else (None, "they come with Hopper (compute capability 9.0)")
        except Exception as error:
            gpu.uncounted = sentence_of(error)

    def _device(self, gpu: _Gpu, *, costly: bool) -> Device:
        nvml, gpu.error = self._nvml, ""
        kernels = self._call(gpu, "nvmlDeviceGetUtilizationRates") if gpu.mig is None else None
        memory = self._memory(gpu)
        counted = self._counted(gpu, costly=costly)
        xids = self._xids.of(gpu.whole)
        sm, dram = (self._call(gpu, "nvmlDeviceGetClockInfo", kind) for kind in (nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM))
        device = Device(
            index=gpu.index,
            mig=gpu.mig,
            name=gpu.name,
            uuid=gpu.uuid,
            aliases=(gpu.whole,),
            kernel_active_ratio=None if kernels is None else kernels.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            memory_reserved_bytes=int(memory.reserved) if memory is not None and hasattr(memory, "reserved") else None,
            power_watts=_scaled(self._call(gpu, "nvmlDeviceGetPowerUsage"), 1e-3),
            power_limit_watts=_scaled(self._call(gpu, "nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            energy_joules=_scaled(self._call(gpu, "nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
            temperature_celsius=_scaled(self._temperature(gpu), 1.0),
            sm_clock_hertz=_scaled(sm, 1e6),
            memory_clock_hertz=_scaled(dram, 1e6),
            throttle_reasons=self._throttle(gpu),
            xid_errors=None if xids is None else xids.errors,
            xid_last_code=None if xids is None else xids.last_code,
            xid_last_time=None if xids is None else xids.last_time,
        )
        return replace(device, **counted)

    def _memory(self, gpu: _Gpu) -> Any:
        """Version 2 of the call has the driver's reserved memory apart; old drivers know only version 1."""
        answer = self._call(gpu, "nvmlDeviceGetMemoryInfo", self._nvml.nvmlMemory_v2, handle=gpu.part, name="v2")
        return answer if answer is not None else self._call(gpu, "nvmlDeviceGetMemoryInfo", handle=gpu.part)

    def _temperature(self, gpu: _Gpu) -> Any:
        """By the current call, or by the one of older drivers."""
        sensor = self._nvml.NVML_TEMPERATURE_GPU
        answer = self._call(gpu, "nvmlDeviceGetTemperatureV", sensor)
        return answer if answer is not None else self._call(gpu, "nvmlDeviceGetTemperature", sensor)

    def _throttle(self, gpu: _Gpu) -> tuple[str, ...] | None:
        bits = self._call(gpu, "nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # a driver before 535
            bits = self._call(gpu, "nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else throttle_reasons(bits, self._nvml)

    def _counted(self, gpu: _Gpu, *, costly: bool) -> dict[str, Any]:
        """Figures of GPM; without GPM only PCIe traffic, which NVML measures for 20 ms each way while we wait."""
        if gpu.gpm is not None:
            try:
                counted = gpu.gpm.read()
            except Exception as error:
                gpu.uncounted = sentence_of(error)
                gpu.gpm = None if is_final(error, self._nvml) else gpu.gpm
                return {}
            gpu.uncounted = ""
            return dict(counted)
        if costly and gpu.mig is None:
            ways = {"receive": self._nvml.NVML_PCIE_UTIL_RX_BYTES, "transmit": self._nvml.NVML_PCIE_UTIL_TX_BYTES}
            rates = {way: self._call(gpu, "nvmlDeviceGetPcieThroughput", counter) for way, counter in ways.items()}
            gpu.pcie = {f"pcie_{way}_bytes_per_second": _scaled(value, 1e3) for way, value in rates.items()}
        return gpu.pcie

    def _call(self, gpu: _Gpu, call: str, *arguments: Any, handle: Any = None, name: str = "") -> Any:
        """The answer, or None. `name` tells versions of one call apart."""
        if call + name in gpu.unsupported:
            return None
        try:
            return getattr(self._nvml, call)(gpu.handle if handle is None else handle, *arguments)
        except Exception as error:
            if is_final(error, self._nvml):
                gpu.unsupported.add(call + name)
            else:
                gpu.error = with_way_out(error, self._nvml)
            return None


def _notes(gpu: _Gpu) -> Iterator[str]:
    if gpu.mig is not None:
        yield "split (MIG): power, clocks and temperature are the whole GPU's, and there is no kernel-active."
    if gpu.uncounted:
        yield f"no SM activity, SM occupancy, tensor-core activity, DRAM activity and NVLink traffic: {gpu.uncounted}."


def _joined(silent: Mapping[Any, str]) -> str:
    return " ".join(f"GPU {gpu} does not answer: {why}." for gpu, why in silent.items())


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
