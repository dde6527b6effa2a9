"""NVML's errors in words, its throttle bits as reasons of the catalogue."""

import pynvml
import pytest

from trainer.gpus.nvml_codes import THROTTLE_BITS, WAYS_OUT, is_final, throttle_reasons, with_way_out
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
    assert throttle_reasons(sum(getattr(pynvml, bit) for bit in bits), pynvml) == reasons


def test_a_bit_of_tomorrow_is_told_too() -> None:
    assert throttle_reasons(1 << 40, pynvml) == ("other",)


def test_every_bit_that_there_is_has_a_meaning() -> None:
    every = {name for name in vars(pynvml) if name.startswith("nvmlClocksThrottleReason")}
    values = {getattr(pynvml, name) for name in every} - {0, pynvml.nvmlClocksThrottleReasonAll}
    assert {getattr(pynvml, name) for name in THROTTLE_BITS} == values
    assert set(THROTTLE_BITS.values()) - {""} == set(GPU_THROTTLE_REASONS)


def test_ways_out_are_for_errors_that_there_are() -> None:
    assert all(str(pynvml.NVMLError(getattr(pynvml, name))) for name in WAYS_OUT)


@pytest.mark.parametrize(
    ("error", "sentence", "final"),
    [
        (pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST), "GPU is lost: it has fallen off the bus: restart the machine", False),
        (pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED), "Not Supported", True),
        (pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT), "Timeout", False),
        (RuntimeError("Two\nlines."), "Two lines", False),
        (ValueError(), "ValueError", False),
    ],
)
def test_an_error_in_words(error: Exception, sentence: str, final: bool) -> None:
    assert with_way_out(error, pynvml) == sentence
    assert is_final(error, pynvml) is final
