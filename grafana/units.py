"""Grafana's names for the units of the catalogue."""

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
# Seconds per second are a share of time, joules per second are watts.
_RATES = {"seconds": "percentunit", "joules": "watt", "bytes": "Bps"}


def unit_of(series: Series) -> str:
    """Grafana's unit for a value. `KeyError` for a unit without one."""
    return _UNITS[series.unit]


def rate_unit_of(series: Series) -> str:
    """Grafana's unit for a counter's rate."""
    return _RATES.get(series.unit, PER_SECOND)
