"""A made-up NVML that replays figures and faults.

Its structures, constants and errors are those of the real binding, which can be imported without a driver. The figures are modelled
on two H200; nobody has read them from one.
"""

import ctypes
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pynvml

UUIDS = ("GPU-8a3c5f10-1111-4d2e-9b77-0c5d3e2f1a00", "GPU-1b9d7e42-2222-4c1f-8e66-5a4b3c2d1e0f")
GIB, MIB = 2**30, 2**20

# A line is one GPU at one look.
BUSY = {
    "kernels": 97,
    "memory": (150_754_820_096, 627 * MIB, 98 * GIB),  # total, reserved, used
    "power": 612_345,  # mW
    "limit": 700_000,
    "energy": 81_234_567_890,  # mJ
    "temperature": 58,
    "clocks": {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201},
    "reasons": pynvml.nvmlClocksEventReasonSwPowerCap,
    "pcie": {pynvml.NVML_PCIE_UTIL_TX_BYTES: 120_000, pynvml.NVML_PCIE_UTIL_RX_BYTES: 3_400_000},  # KB/s
    "gpm": {
        pynvml.NVML_GPM_METRIC_SM_UTIL: 91.5,
        pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: 33.25,
        pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 47.0,
        pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 62.5,
        pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 3200.0,
        pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: 110.0,
        pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: 20_000.0,
        pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: 19_000.0,
    },
}
IDLE = BUSY | {"kernels": 0, "power": 77_000, "temperature": 31, "reasons": pynvml.nvmlClocksEventReasonGpuIdle}


def error(code: int) -> pynvml.NVMLError:
    return pynvml.NVMLError(code)


class FakeNvml:
    """`fail` makes calls raise, `hang` makes the next call wait for the event it returns."""

    def __init__(self, *gpus: dict[str, Any], gpm: bool = True, mig: tuple[str, ...] = ()) -> None:
        self.gpus = list(gpus or (BUSY, IDLE))
        self.gpm, self.mig = gpm, mig
        self.faults: dict[tuple[str, int | None], int] = {}
        self.events: list[tuple[int, int, int]] = []
        self.asked: list[str] = []
        self.samples: dict[int, int] = {}
        self.mig_samples: list[int] = []
        self.started = self.ended = 0
        self.hanging = False
        self._made = 0
        self._hang: threading.Event | None = None

    def fail(self, code: int, *calls: str, gpu: int | None = None) -> None:
        """On one GPU, or on each; every call that names a GPU, where none is named."""
        self.faults |= {(call, gpu): code for call in calls or ("",)}

    def hang(self) -> threading.Event:
        self._hang = threading.Event()
        return self._hang

    def __getattr__(self, name: str) -> Any:
        if name in _ANSWERS:
            return partial(self._answer, name)
        if callable(real := getattr(pynvml, name)) and not isinstance(real, type):
            raise AttributeError(f"the fake has no {name}")  # noqa: TRY004
        return real

    def _answer(self, name: str, *arguments: Any) -> Any:
        self.asked.append(name)
        if self._hang is not None:
            self.hanging = True
            self._hang.wait()
            self.hanging, self._hang = False, None
        gpu = _index(arguments[0]) if arguments and isinstance(arguments[0], pynvml.c_nvmlDevice_t) else None
        if name == "nvmlDeviceGetHandleByIndex":
            gpu = arguments[0]
        for key in [(name, gpu), (name, None)] + ([("", gpu), ("", None)] if gpu is not None else []):
            if key in self.faults:
                raise error(self.faults[key])
        return _ANSWERS[name](self, *arguments)

    def _alloc(self) -> Any:
        self._made += 1
        self.samples[self._made] = -1
        return ctypes.cast(self._made, pynvml.c_nvmlGpmSample_t)

    def _take(self, device: Any, sample: Any) -> None:
        self.samples[_address(sample)] = _index(device)

    def _take_mig(self, device: Any, number: int, sample: Any) -> None:
        self.mig_samples.append(number)
        self._take(device, sample)

    def _free(self, sample: Any) -> None:
        del self.samples[_address(sample)]

    def _metrics(self, question: Any) -> Any:
        assert question.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        before, now = (self.samples[_address(sample)] for sample in (question.sample1, question.sample2))
        assert before == now >= 0, "two samples of one GPU"
        known = self.gpus[now]["gpm"]
        for slot in question.metrics[: question.numMetrics]:
            slot.nvmlReturn = pynvml.NVML_SUCCESS if slot.metricId in known else pynvml.NVML_ERROR_NOT_SUPPORTED
            slot.value = known.get(slot.metricId, 0.0)
        return question

    def _memory(self, device: Any, version: int | None = None) -> Any:
        total, reserved, used = self.gpus[_index(device)]["memory"]
        if version is None:
            return pynvml.c_nvmlMemory_t(total=total, free=total - reserved - used, used=reserved + used)
        return pynvml.c_nvmlMemory_v2_t(version=version, total=total, reserved=reserved, free=total - reserved - used, used=used)

    def _event(self, events: Any, timeout: int) -> Any:
        assert timeout == 0, "a look waits for nothing"
        if not self.events:
            raise error(pynvml.NVML_ERROR_TIMEOUT)
        gpu, kind, code = self.events.pop(0)
        return pynvml.c_nvmlEventData_t(device=_handle(gpu), eventType=kind, eventData=code)

    def _mig_handle(self, device: Any, number: int) -> Any:
        if number >= len(self.mig) or _index(device) != 0:
            raise error(pynvml.NVML_ERROR_NOT_FOUND)
        return _handle(MIG_BASE + number)

    def _uuid(self, device: Any) -> str:
        index = _index(device)
        return self.mig[index - MIG_BASE] if index >= MIG_BASE else UUIDS[index]

    def _start(self) -> None:
        self.started += 1

    def _end(self) -> None:
        self.ended += 1


MIG_BASE = 100


def _handle(index: int) -> Any:
    return ctypes.cast(0x1000 + index, pynvml.c_nvmlDevice_t)


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def _index(device: Any) -> int:
    return _address(device) - 0x1000


def _figure(name: str) -> Callable[[FakeNvml, Any], Any]:
    return lambda fake, device: fake.gpus[_index(device)][name]


_ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlInit": FakeNvml._start,
    "nvmlShutdown": FakeNvml._end,
    "nvmlSystemGetDriverVersion": lambda fake: "570.86.15",
    "nvmlDeviceGetCount": lambda fake: len(fake.gpus),
    "nvmlDeviceGetHandleByIndex": lambda fake, index: _handle(index),
    "nvmlDeviceGetUUID": FakeNvml._uuid,
    "nvmlDeviceGetName": lambda fake, device: "NVIDIA H200" + (" MIG 3g.71gb" if _index(device) >= MIG_BASE else ""),
    "nvmlDeviceGetUtilizationRates": lambda fake, device: pynvml.c_nvmlUtilization_t(gpu=fake.gpus[_index(device)]["kernels"]),
    "nvmlDeviceGetMemoryInfo": lambda fake, device, *version: (
        pynvml.c_nvmlMemory_v2_t(total=70 * GIB, reserved=0, used=5 * GIB)
        if _index(device) >= MIG_BASE
        else fake._memory(device, *version)
    ),
    "nvmlDeviceGetPowerUsage": _figure("power"),
    "nvmlDeviceGetEnforcedPowerLimit": _figure("limit"),
    "nvmlDeviceGetTotalEnergyConsumption": _figure("energy"),
    "nvmlDeviceGetTemperatureV": lambda fake, device, sensor: fake.gpus[_index(device)]["temperature"],
    "nvmlDeviceGetTemperature": lambda fake, device, sensor: fake.gpus[_index(device)]["temperature"],
    "nvmlDeviceGetClockInfo": lambda fake, device, kind: fake.gpus[_index(device)]["clocks"][kind],
    "nvmlDeviceGetCurrentClocksEventReasons": _figure("reasons"),
    "nvmlDeviceGetCurrentClocksThrottleReasons": _figure("reasons"),
    "nvmlDeviceGetPcieThroughput": lambda fake, device, counter: fake.gpus[_index(device)]["pcie"][counter],
    "nvmlDeviceGetMigMode": lambda fake, device: [int(bool(fake.mig) and _index(device) == 0)] * 2,
    "nvmlDeviceGetMaxMigDeviceCount": lambda fake, device: 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": FakeNvml._mig_handle,
    "nvmlDeviceGetGpuInstanceId": lambda fake, device: _index(device) - MIG_BASE + 1,
    "nvmlEventSetCreate": lambda fake: object(),
    "nvmlDeviceRegisterEvents": lambda fake, device, kinds, events: None,
    "nvmlEventSetWait_v2": FakeNvml._event,
    "nvmlEventSetFree": lambda fake, events: None,
    "nvmlGpmQueryDeviceSupport": lambda fake, device: pynvml.c_nvmlGpmSupport_t(isSupportedDevice=int(fake.gpm)),
    "nvmlGpmSampleAlloc": FakeNvml._alloc,
    "nvmlGpmSampleGet": FakeNvml._take,
    "nvmlGpmMigSampleGet": FakeNvml._take_mig,
    "nvmlGpmSampleFree": FakeNvml._free,
    "nvmlGpmMetricsGet": FakeNvml._metrics,
}
