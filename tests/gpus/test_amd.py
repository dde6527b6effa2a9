"""Figures of AMD GPUs from a made-up library."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_amdsmi import UUIDS, FakeAmdSmi
from trainer.gpus.amd import Amd
from trainer.gpus.device import Device, NotHereError, UsedGpu


def opened(fake: FakeAmdSmi, used: tuple[UsedGpu, ...] = (), **environ: str) -> Amd:
    amd = Amd(lambda: fake, environ)
    amd.open(used)
    return amd


def devices(amd: Amd, *, costly: bool = True) -> tuple[Device, ...]:
    return amd.read(costly=costly)[0]


def test_figures_in_base_units() -> None:
    amd = opened(FakeAmdSmi())
    first, second = devices(amd)
    known = {name: value for name, value in first.shown().items() if value is not None}
    assert known == {
        "index": 0,
        "name": "AMD Instinct MI300X",
        "uuid": UUIDS[0],
        "stages": (),
        "kernel_active_ratio": 0.88,
        "memory_used_bytes": 100 * 2**30,
        "memory_total_bytes": 192 * 2**30,
        "power_watts": 640.0,
        "power_limit_watts": 750.0,
        "energy_joules": pytest.approx(30_600.0),
        "temperature_celsius": 71,
        "sm_clock_hertz": 2.1e9,
        "memory_clock_hertz": 1.3e9,
        "throttle_reasons": ("power_cap",),
    }
    assert (second.index, amd.driver, len(amd.notes)) == (1, "6.12.12", 1)


def test_what_it_calls_not_available_is_none() -> None:
    fake = FakeAmdSmi(1)
    fake.changed = {
        "amdsmi_get_gpu_activity": {"gfx_activity": "N/A"},
        "amdsmi_get_power_info": {"current_socket_power": "N/A", "average_socket_power": 300, "socket_power": 0},
        "amdsmi_get_violation_status": {"active_ppt_pwr": "N/A", "active_socket_thrm": "N/A"},
        "amdsmi_get_clock_info": {"clk": "N/A"},
    }
    [device] = devices(opened(fake))
    told = (device.kernel_active_ratio, device.power_watts, device.throttle_reasons, device.sm_clock_hertz)
    assert told == (None, 300.0, None, None)


def test_what_is_not_supported_is_not_asked_again_and_costly_calls_are_rare() -> None:
    fake = FakeAmdSmi(1)
    fake.fail("NOT_SUPPORTED - Feature not supported", "amdsmi_get_energy_count")
    amd = opened(fake)
    told = [devices(amd, costly=costly)[0] for costly in (True, False, False)]
    assert [device.energy_joules for device in told] == [None] * 3
    assert [device.throttle_reasons for device in told] == [("power_cap",)] * 3
    assert [fake.asked.count(f"amdsmi_get_{call}") for call in ("energy_count", "violation_status", "power_info")] == [1, 1, 3]


@pytest.mark.parametrize("used", ["c456f4fc6c7d2ae1", "63343536-6634-6663-3663-376432616531", UUIDS[0]])
def test_torch_may_spell_the_identity_in_three_ways(used: str) -> None:
    [device] = devices(opened(FakeAmdSmi(), (UsedGpu(0, used),), HIP_VISIBLE_DEVICES="1"))
    assert device.index == 0
    assert device.is_called(used)


def test_visible_devices() -> None:
    assert [device.index for device in devices(opened(FakeAmdSmi(), HIP_VISIBLE_DEVICES="1"))] == [1]
    assert [device.index for device in devices(opened(FakeAmdSmi(), CUDA_VISIBLE_DEVICES="1"))] == [1]
    with pytest.raises(RuntimeError, match="HIP_VISIBLE_DEVICES= leaves none"):
        opened(FakeAmdSmi(), HIP_VISIBLE_DEVICES="")


def test_a_gpu_that_vanishes_is_named_and_the_others_stay() -> None:
    fake = FakeAmdSmi()
    amd = opened(fake)
    fake.fail("NOT_FOUND - Device Not found", "", gpu=1)
    told, reason = amd.read(costly=False)
    assert [device.index for device in told] == [0]
    assert reason == "GPU 1 does not answer: Error code: 2 | AMDSMI_STATUS_NOT_FOUND - Device Not found."
    fake.fail("NOT_FOUND - Device Not found", "", gpu=0)
    with pytest.raises(RuntimeError, match="NOT_FOUND"):
        amd.read(costly=False)


def test_without_rocm_its_import_fails_oddly_and_only_once() -> None:
    tried: list[Any] = []

    def load() -> None:
        tried.append(None)
        raise KeyError("ROCM_PATH")

    amd = Amd(load, {})
    for _ in range(3):
        with pytest.raises(NotHereError, match="ROCM_PATH"):
            amd.open(())
    assert len(tried) == 1


def test_what_its_import_prints_is_kept_off_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "amdsmi.py").write_text('print("Unable to find libamd_smi.so")\nraise KeyError("ROCM_PATH")\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NotHereError, match="ROCM_PATH"):
        Amd().open(())
    assert capsys.readouterr().out == ""


def test_a_driver_that_does_not_start_and_a_machine_without_a_gpu() -> None:
    fake = FakeAmdSmi()
    fake.fail("DRIVER_NOT_LOADED", "amdsmi_init")
    with pytest.raises(RuntimeError, match="DRIVER_NOT_LOADED"):
        opened(fake)
    with pytest.raises(RuntimeError, match=r"^this machine has no AMD GPU$"):
        opened(FakeAmdSmi(0))
    amd = opened(FakeAmdSmi())
    amd.close()
    amd.close()
