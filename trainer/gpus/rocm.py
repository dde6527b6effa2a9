"""Figures of the AMD GPUs that a run uses, from `torch.cuda`, which reads them from AMD SMI (package amdsmi, part of ROCm)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from trainer.gpus.device import Device, NotHereError, UsedGpu, sentence_of

MISSING = (
    "AMD GPUs: no power limit, energy, memory clock, throttle reasons, SM activity, occupancy, tensor-core and DRAM activity, "
    "link traffic and XID errors.",
)


class Rocm:
    """Owned by one thread, as `Nvml` is. Indices are torch's own, as in "cuda:1"."""

    name = "amdsmi"
    driver = ""  # torch does not know its version

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("torch")) -> None:
        self.notes: tuple[str, ...] = ()
        self._load = load
        self._cuda: Any = None
        self._used: tuple[UsedGpu, ...] = ()
        self._error = ""

    def open(self, used: Sequence[UsedGpu]) -> None:
        """Raises `NotHereError` unless the run uses GPUs and its torch is built for ROCm."""
        if not used:  # then nothing has loaded torch yet, and watching must not
            raise NotHereError("the run uses no GPU")
        torch = self._load()
        if torch.version.hip is None:
            raise NotHereError("torch is not built for ROCm")
        self._cuda, self._used, self.notes = torch.cuda, tuple(used), MISSING

    def read(self, *, costly: bool) -> tuple[tuple[Device, ...], str]:
        """Raises `RuntimeError` with a sentence if no GPU answers."""
        answering, silent = [], []
        for gpu in self._used:
            device = self._device(gpu)
            if device.has_no_figures():
                silent.append(f"GPU {gpu.number} does not answer: {self._error}.")
            else:
                answering.append(device)
        if not answering:
            raise RuntimeError(self._error)
        return tuple(answering), " ".join(silent)

    def close(self) -> None:
        """Nothing to do: torch owns the library."""

    def _device(self, gpu: UsedGpu) -> Device:
        self._error = "AMD SMI knows no figures of it"
        properties = self._cuda.get_device_properties(gpu.number)
        busy, clock = self._call("utilization", gpu), self._call("clock_rate", gpu)
        memory = self._call("device_memory_used", gpu)
        return Device(
            index=gpu.number,
            name=properties.name,
            uuid=gpu.uuid,
            kernel_active_ratio=None if busy is None else busy / 100,
            memory_used_bytes=None if memory is None else int(memory),
            memory_total_bytes=int(properties.total_memory),
            # Watts, as AMD SMI gives them, whatever torch's documentation says. Torch has 0 for what is not available.
            power_watts=self._call("power_draw", gpu) or None,
            temperature_celsius=self._call("temperature", gpu),
            sm_clock_hertz=clock * 1e6 if clock else None,
        )

    def _call(self, call: str, gpu: UsedGpu) -> float | None:
        """A number from `torch.cuda`; None if it fails, or passes on AMD SMI's "N/A"."""
        try:
            value = getattr(self._cuda, call)(gpu.number)
        except Exception as error:
            self._error = sentence_of(error)
            if isinstance(error, ImportError):
                self._error += ": install the package amdsmi of this machine's ROCm (docs/gpus.md)"
            return None
        return float(value) if isinstance(value, int | float) else None
