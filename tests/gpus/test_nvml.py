"""Figures of NVIDIA GPUs from a made-up library that can do all that the real one does wrong."""

import ast
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.fake_nvml import BUSY, GIB, IDLE, MIB, UUIDS, FakeNvml
from tests.support.sources import ROOT
from tests.support.watched import shown
from trainer.gpus.collectors import gpu_samples
from trainer.gpus.device import Device, GpuSnapshot, NotHereError, UsedGpu
from trainer.gpus.nvml import Nvml

BARE = [uuid.removeprefix("GPU-") for uuid in UUIDS]


class Look:
    """An opened backend over a fake, and a clock of seconds."""

    def __init__(self, fake: FakeNvml, visible: str | None = None, used: tuple[UsedGpu, ...] = ()) -> None:
        self.fake, self.now = fake, 0.0
        environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        self.nvml = Nvml(lambda: fake, environ, lambda: self.now, lambda: 1796034063.0 + self.now)
        self.nvml.open(used)

    def devices(self, *, costly: bool = True) -> tuple[Device, ...]:
        self.now += 2
        return self.nvml.read(costly=costly)[0]

    def reason(self) -> str:
        self.now += 2
        return self.nvml.read(costly=True)[1]


def test_figures_in_base_units() -> None:
    look = Look(FakeNvml())
    look.devices()
    first, second = look.devices()
    assert look.nvml.driver == "570.86.15"
    assert look.nvml.notes == ()
    assert shown(first) == {
        "index": 0,
        "mig": None,
        "name": "NVIDIA H200",
        "uuid": UUIDS[0],
        "stages": (),
        "kernel_active_ratio": 0.97,
        "sm_active_ratio": 0.915,
        "sm_occupancy_ratio": 0.3325,
        "tensor_active_ratio": 0.47,
        "dram_active_ratio": 0.625,
        "memory_used_bytes": 98 * GIB,
        "memory_total_bytes": 150_754_820_096,
        "memory_reserved_bytes": 627 * MIB,
        "power_watts": 612.345,
        "power_limit_watts": 700.0,
        "energy_joules": 81_234_567.89,
        "temperature_celsius": 58.0,
        "sm_clock_hertz": 1.98e9,
        "memory_clock_hertz": 3.201e9,
        "throttle_reasons": ("power_cap",),
        "pcie_receive_bytes_per_second": 3200.0 * MIB,
        "pcie_transmit_bytes_per_second": 110.0 * MIB,
        "nvlink_receive_bytes_per_second": 20_000.0 * MIB,
        "nvlink_transmit_bytes_per_second": 19_000.0 * MIB,
        "xid_errors": 0,
        "xid_last_code": 0,
        "xid_last_time": 0.0,
        "allocator": None,
    }
    assert (second.index, second.kernel_active_ratio, second.throttle_reasons) == (1, 0.0, ())


NOT_SUPPORTED, UNKNOWN, LOST = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_GPU_IS_LOST


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("nvmlDeviceGetUtilizationRates", ["kernel_active_ratio"]),
        ("nvmlDeviceGetMemoryInfo", ["memory_used_bytes", "memory_total_bytes", "memory_reserved_bytes"]),
        ("nvmlDeviceGetPowerUsage", ["power_watts"]),
        ("nvmlDeviceGetEnforcedPowerLimit", ["power_limit_watts"]),
        ("nvmlDeviceGetTotalEnergyConsumption", ["energy_joules"]),
        ("nvmlDeviceGetClockInfo", ["sm_clock_hertz", "memory_clock_hertz"]),
        ("nvmlEventSetCreate", ["xid_errors", "xid_last_code", "xid_last_time"]),
    ],
)
def test_a_figure_that_is_not_supported_is_none_and_all_others_are_told(call: str, fields: list[str]) -> None:
    whole = Look(FakeNvml())
    fake = FakeNvml()
    fake.fail(NOT_SUPPORTED, call)
    look = Look(fake)
    for _ in range(3):
        expected, [found, _] = shown(whole.devices()[0]), look.devices()
    assert {name for name, value in shown(found).items() if value != expected[name]} == set(fields)
    assert all(shown(found)[name] is None for name in fields)


def test_what_is_never_told_is_not_asked_again() -> None:
    fake = FakeNvml(BUSY)
    fake.fail(NOT_SUPPORTED, "nvmlDeviceGetPowerUsage")
    fake.fail(pynvml.NVML_ERROR_TIMEOUT, "nvmlDeviceGetEnforcedPowerLimit")
    look = Look(fake)
    for _ in range(4):
        look.devices()
    asked = [fake.asked.count(call) for call in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit")]
    assert asked == [1, 4], "what failed for another reason may come back"


def test_old_drivers_are_asked_in_their_own_words() -> None:
    fake = FakeNvml(BUSY)
    fake.fail(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons")
    [device] = Look(fake).devices()
    assert (device.temperature_celsius, device.throttle_reasons) == (58.0, ("power_cap",))


def test_memory_of_a_driver_that_does_not_tell_the_reserved_part_apart() -> None:
    class OldNvml(FakeNvml):
        def _memory(self, device: Any, version: int | None = None) -> Any:
            if version is not None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            return super()._memory(device)

    [device] = Look(OldNvml(BUSY)).devices()
    assert (device.memory_used_bytes, device.memory_reserved_bytes) == (98 * GIB + 627 * MIB, None)


def test_without_gpm_pcie_traffic_is_measured_now_and_then() -> None:
    fake = FakeNvml(BUSY, gpm=False)
    look = Look(fake)
    assert look.nvml.notes == (
        "GPU 0: no SM activity, SM occupancy, tensor-core activity, DRAM activity and NVLink traffic: "
        "they come with Hopper (compute capability 9.0).",
    )
    told = [look.devices(costly=costly)[0] for costly in (False, True, False, False, True)]
    assert [device.pcie_receive_bytes_per_second for device in told] == [None, *[3.4e9] * 4]
    assert told[-1].pcie_transmit_bytes_per_second == 120e6
    assert fake.asked.count("nvmlDeviceGetPcieThroughput") == 4, "two ways, two costly looks"
    assert (told[-1].sm_active_ratio, told[-1].nvlink_receive_bytes_per_second) == (None, None)


def test_gpm_that_may_not_be_used_is_told_and_replaced() -> None:
    fake = FakeNvml(BUSY)
    fake.fail(pynvml.NVML_ERROR_NO_PERMISSION, "nvmlGpmSampleGet")
    look = Look(fake)
    look.devices()
    assert look.devices()[0].pcie_receive_bytes_per_second == 3.4e9
    assert look.nvml.notes[0].endswith("DRAM activity and NVLink traffic: Insufficient Permissions.")
    assert fake.samples == {}


def test_gpm_that_fails_once_comes_back() -> None:
    fake = FakeNvml(BUSY)
    look = Look(fake)
    look.devices()
    fake.fail(UNKNOWN, "nvmlGpmSampleGet")
    assert look.devices()[0].sm_active_ratio is None
    assert "Unknown Error" in look.nvml.notes[0]
    fake.faults.clear()
    look.devices()
    assert look.devices()[0].sm_active_ratio == 0.915
    assert look.nvml.notes == ()


def test_no_sample_is_leaked() -> None:
    fake = FakeNvml()
    look = Look(fake)
    for _ in range(5):
        look.devices()
    assert len(fake.samples) == 2, "one of each GPU, for the next look"
    look.nvml.close()
    assert fake.samples == {}
    assert fake.ended == 1


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount", "nvmlDeviceGetName"])
def test_a_library_that_does_not_start_says_why_and_the_way_out(call: str) -> None:
    fake = FakeNvml()
    fake.fail(UNKNOWN, call)
    with pytest.raises(RuntimeError, match=r"^Unknown Error: in a container .* recreate the container$"):
        Look(fake)


def test_a_missing_library_is_another_thing() -> None:
    def load() -> None:
        raise ModuleNotFoundError("No module named 'pynvml'")

    with pytest.raises(NotHereError, match="No module named 'pynvml'"):
        Nvml(load).open(())
    fake = FakeNvml()
    fake.fail(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "nvmlInit")
    with pytest.raises(NotHereError, match=r"^NVML Shared Library Not Found: there is no NVIDIA driver here"):
        Look(fake)


def test_the_real_library_is_asked_and_not_here() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            pytest.skip(f"this machine has a driver that says {error}")
    else:
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(NotHereError, match="NVML Shared Library Not Found"):
        Nvml().open(())


def test_a_machine_without_a_gpu() -> None:
    fake = FakeNvml()
    fake.gpus = []
    with pytest.raises(RuntimeError, match=r"^this machine has no GPU$"):
        Look(fake)


def test_a_gpu_that_vanishes_is_named_and_the_others_stay() -> None:
    fake = FakeNvml()
    look = Look(fake)
    assert (len(look.devices()), look.reason()) == (2, "")
    fake.fail(LOST, gpu=1)
    assert [device.index for device in look.devices()] == [0]
    assert look.reason() == "GPU 1 does not answer: GPU is lost: it has fallen off the bus: restart the machine."
    fake.faults.clear()
    assert len(look.devices()) == 2


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_gpu_that_is_lost_from_the_start(call: str) -> None:
    fake = FakeNvml()
    fake.fail(LOST, call, gpu=0)
    look = Look(fake)
    assert [device.index for device in look.devices()] == [1]
    assert look.reason().startswith("GPU 0 does not answer: GPU is lost")
    others = Look(fake, used=(UsedGpu(0, BARE[1], ("target",)),))
    assert others.reason() == "", "somebody else's GPU is no news here"
    fake.fail(LOST, call)
    with pytest.raises(RuntimeError, match=r"^GPU 0 does not answer: GPU is lost.* GPU 1 does not answer"):
        Look(fake)


def test_all_lost() -> None:
    fake = FakeNvml()
    look = Look(fake)
    fake.fail(UNKNOWN)
    with pytest.raises(RuntimeError, match=r"^Unknown Error: in a container"):
        look.devices()


def test_which_gpus_are_looked_at() -> None:
    assert [device.index for device in Look(FakeNvml(), "1").devices()] == [1]
    with pytest.raises(RuntimeError, match=r"^CUDA_VISIBLE_DEVICES= leaves none$"):
        Look(FakeNvml(), "")
    # CUDA counts the fastest first: its GPU 0 is the driver's GPU 1 here.
    [device] = Look(FakeNvml(), "0", (UsedGpu(0, BARE[1]),)).devices()
    assert (device.index, device.uuid) == (1, UUIDS[1])


MIG = ("MIG-aaaa0000-0000-4000-8000-000000000001", "MIG-bbbb0000-0000-4000-8000-000000000002")


def test_of_a_gpu_that_is_split_the_instance_in_use_is_looked_at() -> None:
    fake = FakeNvml(mig=MIG)
    look = Look(fake, MIG[1])
    look.devices()
    [device] = look.devices()
    assert (device.label, device.uuid, device.name) == ("0:1", MIG[1], "NVIDIA H200 MIG 3g.71gb")
    assert (device.memory_total_bytes, device.kernel_active_ratio) == (70 * GIB, None)
    assert (device.sm_active_ratio, device.power_watts) == (0.915, 612.345)
    assert fake.mig_samples == [2, 2], "the number of the GPU instance"
    assert "nvmlGpmSampleGet" not in fake.asked
    [note] = look.nvml.notes
    assert note == "GPU 0:1: split (MIG): power, clocks and temperature are the whole GPU's, and there is no kernel-active."
    assert device.has_uuid(BARE[0]), "torch may call it by its GPU's name"


def test_of_a_gpu_that_is_split_cuda_takes_the_first_instance() -> None:
    first, whole = Look(FakeNvml(mig=MIG)).devices()
    assert [(device.uuid, device.label) for device in (first, whole)] == [(MIG[0], "0:0"), (UUIDS[1], "1")]


def test_parts_of_one_gpu_are_told_apart() -> None:
    """CUDA gives a process one part. Should it give more: Prometheus refuses a scrape in which a series is there twice."""
    fake = FakeNvml(mig=MIG)
    look = Look(fake, used=tuple(UsedGpu(number, uuid.removeprefix("MIG-")) for number, uuid in enumerate(MIG)))
    assert fake.asked.count("nvmlDeviceRegisterEvents") == 1
    fake.events = [(0, pynvml.nvmlEventTypeXidCriticalError, 31)]
    first, second = look.devices()
    assert [(device.label, device.uuid, device.xid_errors) for device in (first, second)] == [
        ("0:0", MIG[0], 1),
        ("0:1", MIG[1], 1),
    ]
    assert look.nvml.notes[0].startswith("GPU 0:0, 0:1: split (MIG)")
    series = [(reading.metric.name, reading.labels) for reading in gpu_samples(GpuSnapshot((first, second), True, ""))]
    assert len(series) == len(set(series))


def test_xid_errors_are_counted_for_their_gpu() -> None:
    fake = FakeNvml()
    look = Look(fake)
    critical = pynvml.nvmlEventTypeXidCriticalError
    fake.events = [(1, critical, 13), (1, critical, 79), (1, pynvml.nvmlEventTypeClock, 5), (7, critical, 31)]
    first, second = look.devices()
    assert (first.xid_errors, second.xid_errors) == (0, 2)
    assert (second.xid_last_code, second.xid_last_time) == (79, 1796034063.0 + look.now)
    look.nvml.close()
    look.nvml.open(())
    assert look.devices()[1].xid_errors == 2, "the count goes on when the library has to be started anew"


def test_a_storm_of_xid_errors_is_taken_in_over_several_looks() -> None:
    fake = FakeNvml(BUSY)
    look = Look(fake)
    fake.events = [(0, pynvml.nvmlEventTypeXidCriticalError, 31)] * 100
    assert [look.devices()[0].xid_errors for _ in range(3)] == [64, 100, 100]


def test_close_never_raises() -> None:
    fake = FakeNvml(BUSY, IDLE)
    look = Look(fake)
    look.devices()
    fake.fail(UNKNOWN, "nvmlShutdown", "nvmlGpmSampleFree", "nvmlEventSetFree")
    look.nvml.close()
    look.nvml.close()


def names_of(path: Path) -> set[str]:
    """All that a module asks the library for, by attribute or by a name in quotes."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {name for name in names if name.startswith(("nvml", "NVML", "c_nvml")) and name.isidentifier() and name != "nvml"}


@pytest.mark.parametrize("module", ["nvml", "gpm", "xid", "nvml_codes"])
def test_the_real_binding_has_everything_that_is_asked_for(module: str) -> None:
    names = names_of(ROOT / "trainer" / "gpus" / f"{module}.py")
    assert len(names) >= 6
    fields = {field for field, _ in pynvml.c_nvmlGpmMetric_t._fields_}
    assert {name for name in names if not hasattr(pynvml, name)} - fields == set()
