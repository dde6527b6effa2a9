"""A unit of the catalogue in, Grafana's name for it out."""

from __future__ import annotations

from grafana.queries import Series

NUMBER = "short"
PER_SECOND = "cps"
SCIENTIFIC = "sci"
TIME_OF_DAY = "dateTimeAsLocal"
AGO = "dateTimeFromNow"

_UNITS = {
    "": NUMBER,
    "seconds": "s",
    "bytes": "bytes",
    "ratio": "percentunit",
    "tokens": NUMBER,
    "celsius": "celsius",
    "watts": "watt",
    "joules": "joule",
    "hertz": "hertz",
    "bytes_per_second": "Bps",
}
# Seconds a second are a share of the time, joules a second are watts.
_RATES = {"seconds": "percentunit", "joules": "watt", "bytes": "Bps"}


def unit_of(series: Series) -> str:
    """For the value itself. `KeyError` for a unit that nobody has thought of."""
    return _UNITS[series.unit]


def rate_unit_of(series: Series) -> str:
    """For a counter's rise a second."""
    return _RATES.get(series.unit, PER_SECOND)
