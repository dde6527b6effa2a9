"""A made-up AMD SMI: calls, keys and oddities ("N/A", text in errors) as in the source of amdsmi 7.0.2, not as read from a GPU."""

from enum import IntEnum
from functools import partial
from typing import Any

UUIDS = ("a4ff74a0-0000-1000-80c4-56f4fc6c7d2a", "a4ff74a0-0000-1000-8073-3d1a7d2f1e55")
HIP = ("GPU-c456f4fc6c7d2ae1", "GPU-733d1a7d2f1e55b0")


class AmdSmiLibraryException(Exception):  # noqa: N818 - its name
    def __init__(self, status: str) -> None:
        super().__init__(f"Error code:\n\t2 | AMDSMI_STATUS_{status}")


class AmdSmiMemoryType(IntEnum):
    VRAM = 0


class AmdSmiClkType(IntEnum):
    GFX = 0
    MEM = 4


class AmdSmiTemperatureType(IntEnum):
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


class FakeAmdSmi:
    AmdSmiLibraryException = AmdSmiLibraryException
    AmdSmiMemoryType = AmdSmiMemoryType
    AmdSmiClkType = AmdSmiClkType
    AmdSmiTemperatureType = AmdSmiTemperatureType
    AmdSmiTemperatureMetric = AmdSmiTemperatureMetric

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.faults: dict[tuple[str, int | None], str] = {}
        self.changed: dict[str, Any] = {}
        self.asked: list[str] = []

    def fail(self, status: str, call: str, gpu: int | None = None) -> None:
        self.faults[call, gpu] = status

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("amdsmi_"):
            raise AttributeError(name)
        return partial(self._answer, name)

    def _answer(self, name: str, *arguments: Any) -> Any:
        self.asked.append(name)
        gpu = arguments[0] if arguments else None
        for key in ((name, gpu), (name, None), ("", gpu)):
            if key in self.faults:
                raise AmdSmiLibraryException(self.faults[key])
        return self.changed.get(name, self._figures(gpu).get((name, *arguments[1:])))

    def _figures(self, gpu: int | None) -> dict[tuple[Any, ...], Any]:
        index = gpu or 0
        return {
            ("amdsmi_get_processor_handles",): range(self.count),
            ("amdsmi_get_gpu_device_uuid",): UUIDS[index],
            ("amdsmi_get_gpu_enumeration_info",): {"hip_id": index, "hip_uuid": HIP[index]},
            ("amdsmi_get_gpu_asic_info",): {"market_name": "AMD Instinct MI300X"},
            ("amdsmi_get_gpu_driver_info",): {"driver_version": "6.12.12"},
            ("amdsmi_get_gpu_activity",): {"gfx_activity": 88, "umc_activity": 40, "mm_activity": "N/A"},
            ("amdsmi_get_gpu_memory_usage", AmdSmiMemoryType.VRAM): 100 * 2**30,
            ("amdsmi_get_gpu_memory_total", AmdSmiMemoryType.VRAM): 192 * 2**30,
            ("amdsmi_get_power_info",): {"socket_power": 0, "current_socket_power": 640, "average_socket_power": "N/A"},
            ("amdsmi_get_power_cap_info",): {"power_cap": 750_000_000},
            ("amdsmi_get_energy_count",): {"energy_accumulator": 2_000_000_000, "counter_resolution": 15.3, "timestamp": 1},
            ("amdsmi_get_temp_metric", AmdSmiTemperatureType.HOTSPOT, AmdSmiTemperatureMetric.CURRENT): 71,
            ("amdsmi_get_clock_info", AmdSmiClkType.GFX): {"clk": 2100},
            ("amdsmi_get_clock_info", AmdSmiClkType.MEM): {"clk": 1300},
            ("amdsmi_get_violation_status",): {"active_ppt_pwr": True, "active_socket_thrm": False, "active_hbm_thrm": "N/A"},
        }
