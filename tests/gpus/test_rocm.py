"""Figures of AMD GPUs from a made-up `torch.cuda`."""

import inspect
import subprocess
import sys

import pytest
import torch

from tests.support.fake_rocm import FIGURES, UUIDS, FakeTorch
from tests.support.watched import shown
from trainer.gpus.device import Device, NotHereError, UsedGpu
from trainer.gpus.rocm import Rocm

USED = (UsedGpu(0, UUIDS[0], ("target",)), UsedGpu(1, UUIDS[1], ("drafter",)))
NO_AMDSMI = ModuleNotFoundError("amdsmi does not seem to be installed or it can't be imported.")


def opened(fake: FakeTorch) -> Rocm:
    rocm = Rocm(lambda: fake)
    rocm.open(USED)
    return rocm


def devices(fake: FakeTorch) -> tuple[Device, ...]:
    return opened(fake).read(costly=True)[0]


def test_figures_in_base_units() -> None:
    first, second = devices(FakeTorch())
    assert {name: value for name, value in shown(first).items() if value is not None} == {
        "index": 0,
        "name": "AMD Instinct MI300X",
        "uuid": UUIDS[0],
        "stages": (),
        "kernel_active_ratio": 0.88,
        "memory_used_bytes": 100 * 2**30,
        "memory_total_bytes": 192 * 2**30,
        "power_watts": 640.0,
        "temperature_celsius": 71.0,
        "sm_clock_hertz": 2.1e9,
    }
    assert second.index == 1
    assert second.has_uuid(USED[1].uuid), "so that stages and the allocator are matched"


def test_what_is_not_available_is_none() -> None:
    """AMD SMI says "N/A"; torch passes that on, multiplies it, or makes it 0."""
    fake = FakeTorch()
    fake.figures[0] = {**FIGURES, "utilization": "N/A", "device_memory_used": "N/A" * 1024, "power_draw": 0, "clock_rate": 0}
    first, _ = devices(fake)
    figures = (first.kernel_active_ratio, first.memory_used_bytes, first.power_watts, first.sm_clock_hertz)
    assert figures == (None, None, None, None)
    assert first.temperature_celsius == 71


def test_a_gpu_that_does_not_answer_is_named_and_the_others_stay() -> None:
    fake = FakeTorch()
    rocm = opened(fake)
    fake.fail(1, RuntimeError("Device\nnot found."))
    answering, reason = rocm.read(costly=False)
    assert [device.index for device in answering] == [0]
    assert reason == "GPU 1 does not answer: Device not found."
    fake.fail(0, NO_AMDSMI)
    fake.fail(1, NO_AMDSMI)
    with pytest.raises(RuntimeError, match="can't be imported: install the package amdsmi of this machine's ROCm"):
        rocm.read(costly=False)


def test_it_stays_off_where_it_is_not_needed() -> None:
    with pytest.raises(NotHereError, match="not built for ROCm"):
        opened(FakeTorch(hip=None))
    code = """
import sys
from trainer.gpus.rocm import Rocm
try:
    Rocm().open(())
except Exception as error:
    print(error, 'torch' in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "the run uses no GPU False\n"


def test_torch_has_every_function_and_takes_a_number() -> None:
    assert torch.version.hip is None, "so that the real torch of a test machine is refused"
    for name in FIGURES:
        assert list(inspect.signature(getattr(torch.cuda, name)).parameters) == ["device"]
