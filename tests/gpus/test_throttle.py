"""NVML's bits → reasons of the catalogue."""

import pynvml
import pytest

from trainer.gpus.throttle import THROTTLE_BITS, reasons_of
from trainer.metrics.catalogue.gpus import GPU_THROTTLE_REASONS


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        ((), ()),
        (("nvmlClocksThrottleReasonGpuIdle",), ()),
        (("nvmlClocksThrottleReasonApplicationsClocksSetting", "nvmlClocksThrottleReasonDisplayClockSetting"), ()),
        (("nvmlClocksThrottleReasonSwPowerCap",), ("power_cap",)),
        (("nvmlClocksThrottleReasonHwSlowdown",), ("hardware",)),
        (("nvmlClocksThrottleReasonHwSlowdown", "nvmlClocksThrottleReasonHwThermalSlowdown"), ("thermal",)),
        (("nvmlClocksThrottleReasonHwSlowdown", "nvmlClocksThrottleReasonHwPowerBrakeSlowdown"), ("power_brake",)),
        (("nvmlClocksThrottleReasonSwThermalSlowdown", "nvmlClocksThrottleReasonSwPowerCap"), ("power_cap", "thermal")),
        (("nvmlClocksThrottleReasonSyncBoost",), ("other",)),
        (("nvmlClocksThrottleReasonReliability", "nvmlClocksThrottleReasonBoardLimit"), ("other",)),
    ],
)
def test_reasons(bits: tuple[str, ...], reasons: tuple[str, ...]) -> None:
    assert reasons_of(sum(getattr(pynvml, bit) for bit in bits), pynvml) == reasons


def test_a_bit_of_tomorrow_is_told_too() -> None:
    assert reasons_of(1 << 40, pynvml) == ("other",)


def test_every_bit_that_there_is_has_a_meaning() -> None:
    every = {name for name in vars(pynvml) if name.startswith("nvmlClocksThrottleReason")}
    values = {getattr(pynvml, name) for name in every} - {0, pynvml.nvmlClocksThrottleReasonAll}
    assert {getattr(pynvml, name) for name in THROTTLE_BITS} == values
    assert set(THROTTLE_BITS.values()) - {""} == set(GPU_THROTTLE_REASONS)
