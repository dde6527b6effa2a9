"""Numbers as people read them, the same in every sentence, table and display."""

from __future__ import annotations

import math
from typing import Any

UNKNOWN = "–"
_LONGEST = 500


def plain(value: object) -> str:
    """Text on one line, without control characters: a name or an error must not move a terminal's cursor."""
    text = UNKNOWN if value is None else str(value)
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def number(value: Any, form: str = "") -> str:
    """A number in a format; a dash for None; NaN and infinities as the words that JSON has for them."""
    if value is None:
        return UNKNOWN
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return plain(value) if isinstance(value, str) else format(value, form)


def steps(value: Any) -> str:
    """`12,345`: a step is a name, so that every digit counts."""
    return number(value, ",")


def count(value: Any) -> str:
    """`840`, `12.3k`, `4.56M`: three digits are enough to read."""
    if not isinstance(value, int | float):
        return number(value)
    for limit, unit in ((999.5e6, "G"), (999.5e3, "M"), (9999.5, "k")):
        if abs(value) >= limit:
            return _three_digits(value / {"G": 1e9, "M": 1e6, "k": 1e3}[unit]) + unit
    return str(value) if isinstance(value, int) else _three_digits(value)


def size(value: Any) -> str:
    """Bytes in decimal units: `1.2 GB`."""
    if not isinstance(value, int | float):
        return number(value)
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= 0.9995 * factor:
            return f"{value / factor:.1f} {unit}" if value < 99.95 * factor else f"{value / factor:.0f} {unit}"
    return f"{value:.0f} B"


def duration(seconds: Any) -> str:
    """`40 ms`, `0.4 s`, `38 s`, `12 min`, `1 h 02 min`, `3 d 4 h`."""
    if not isinstance(seconds, int | float):
        return number(seconds)
    seconds = max(0.0, seconds)
    if 0 < seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def percent(ratio: Any, digits: int = 0) -> str:
    """`97 %` of 0.97."""
    return f"{100 * ratio:,.{digits}f} %" if isinstance(ratio, int | float) else number(ratio)


def _three_digits(value: float) -> str:
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}"


def words(name: str) -> str:
    """A label as people say it: `no_answer` is `no answer`."""
    return name.replace("_", " ")


def one_line(text: str) -> str:
    """On one line, and not endless."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
