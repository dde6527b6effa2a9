"""GPU figures from NVIDIA's library. Every way in which it can be missing or break is a state with its reason, never an error.

One thread owns a `Gpus` and calls `read`: the library waits for a lock of the driver, so nobody else may have to wait with it.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

RETRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU at one moment; None where the GPU or its driver does not tell. `index` counts as `nvidia-smi` does."""

    index: int
    name: str
    kernel_active_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None

    def shown(self) -> dict[str, Any]:
        """As in `/status` and `samples.jsonl`."""
        return asdict(self)

    def says_nothing(self) -> bool:
        figures = (self.kernel_active_ratio, self.memory_used_bytes, self.power_watts, self.temperature_celsius)
        return all(figure is None for figure in figures)


@dataclass(frozen=True, slots=True)
class GpuReading:
    devices: tuple[Device, ...]
    up: bool
    reason: str
    """One sentence when `up` is false, else empty."""


class Gpus:
    """Reads the GPUs that CUDA_VISIBLE_DEVICES leaves. After a failure it tries again every `RETRY_SECONDS`."""

    def __init__(
        self,
        load: Callable[[], Any] = lambda: importlib.import_module("pynvml"),
        clock: Callable[[], float] = time.monotonic,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._load = load
        self._clock = clock
        self._visible = environ.get("CUDA_VISIBLE_DEVICES")
        self._library: Any = None
        self._handles: dict[int, Any] = {}
        self._names: dict[int, str] = {}
        self._down: GpuReading | None = None
        self._retry_at = float("-inf")
        self._last_error = ""

    def read(self) -> GpuReading:
        """The figures now. Never raises."""
        if self._down is not None and self._clock() < self._retry_at:
            return self._down
        try:
            if self._library is None:
                self._open()
            devices = tuple(self._read(index, handle) for index, handle in self._handles.items())
            if all(device.says_nothing() for device in devices):
                raise RuntimeError(self._last_error)
        except Exception as error:
            return self._failed(str(error) or type(error).__name__)
        self._down = None
        return GpuReading(devices, True, "")

    def close(self) -> None:
        """Let the library go. Never raises."""
        library, self._library, self._handles = self._library, None, {}
        if library is not None:
            self._ask(library.nvmlShutdown)

    def _open(self) -> None:
        library = self._load()
        library.nvmlInit()
        self._library = library
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
        identities = [_text(library.nvmlDeviceGetUUID(handle)) for handle in handles]
        self._handles = {index: handles[index] for index in visible(self._visible, identities)}
        self._names = {index: _text(library.nvmlDeviceGetName(handle)) for index, handle in self._handles.items()}
        if not self._handles:
            raise RuntimeError("this machine has no GPU" if not handles else f"CUDA_VISIBLE_DEVICES={self._visible} leaves none")

    def _read(self, index: int, handle: Any) -> Device:
        nvml = self._library
        kernels = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        return Device(
            index=index,
            name=self._names[index],
            kernel_active_ratio=kernels,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_watts=self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            temperature_celsius=self._ask(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        )

    def _ask(self, question: Callable[[], Any]) -> Any:
        """An answer, or None: a GPU that does not support one figure still tells the others."""
        try:
            return question()
        except Exception as error:
            self._last_error = str(error) or type(error).__name__
            return None

    def _failed(self, why: str) -> GpuReading:
        self.close()
        self._down = GpuReading((), False, f"No GPU figures: {' '.join(why.split()).rstrip('.')}.")
        self._retry_at = self._clock() + RETRY_SECONDS
        return self._down


def visible(setting: str | None, identities: list[str]) -> list[int]:
    """The indices that CUDA_VISIBLE_DEVICES names, by number or by the beginning of an identity ("GPU-…"); None names all.

    As in CUDA, the list ends at the first word that fits no device.
    """
    return list(range(len(identities))) if setting is None else list(dict.fromkeys(_found(setting, identities)))


def _found(setting: str, identities: list[str]) -> Iterator[int]:
    for word in map(str.strip, setting.split(",")):
        by_name = word.startswith("GPU-")
        fits = [index for index, identity in enumerate(identities) if word == str(index) or (by_name and identity.startswith(word))]
        if not fits:
            return
        yield fits[0]


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
