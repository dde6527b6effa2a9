import pytest

from trainer.formatting import count, duration, number, percent, plain, size, steps


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (840, "840"),
        (9999, "9999"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (4.56e6, "4.56M"),
    ],
)
def test_count(value, text):
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (1.2e9, "1.2 GB"), (150e9, "150 GB"), (999_999_999, "1.0 GB")],
)
def test_size(value, text):
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (-3, "0.0 s"),
        (0.004, "4 ms"),
        (0.42, "0.4 s"),
        (38, "38 s"),
        (59.7, "1 min"),
        (730, "12 min"),
        (3720, "1 h 02 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_duration(value, text):
    assert duration(value) == text


def test_numbers():
    assert (number(1.234, ".1f"), number(None), number("NaN", ".1f")) == ("1.2", "–", "NaN")
    assert (percent(0.974), percent(0.0031, 2), percent(12.5), percent(None)) == ("97 %", "0.31 %", "1,250 %", "–")
    assert steps(12_345) == "12,345"


def test_plain_text_cannot_move_a_cursor():
    assert plain("a\n\x1b[1mb") == "a [1mb"
