"""Errors of NVML, and what to do about them."""

import pynvml
import pytest

from trainer.gpus.ways_out import WAYS_OUT, is_final, with_way_out


def test_ways_out_are_for_errors_that_there_are() -> None:
    assert all(str(pynvml.NVMLError(getattr(pynvml, name))) for name in WAYS_OUT)


@pytest.mark.parametrize(
    ("error", "sentence", "final"),
    [
        (pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST), "GPU is lost: it has fallen off the bus, restart the machine", False),
        (pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED), "Not Supported", True),
        (pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT), "Timeout", False),
        (RuntimeError("Two\nlines."), "Two lines", False),
        (ValueError(), "ValueError", False),
    ],
)
def test_an_error_in_words(error: Exception, sentence: str, final: bool) -> None:
    assert with_way_out(error, pynvml) == sentence
    assert is_final(error, pynvml) is final
