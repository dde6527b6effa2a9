"""A made-up `torch` for ROCm, as far as GPU figures go: values, "N/A" and errors as in the source of torch 2.13."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

UUIDS = ("63343536-6634-6663-3663-376432616531", "37333364-3161-3764-3266-316535356230")

FIGURES: dict[str, Any] = {
    "utilization": 88,
    "device_memory_used": 100 * 2**30,
    "power_draw": 640,
    "temperature": 71,
    "clock_rate": 2100,
}


class FakeTorch:
    def __init__(self, hip: str | None = "6.4.43484") -> None:
        self.version = SimpleNamespace(hip=hip)
        self.figures = [dict(FIGURES), dict(FIGURES)]
        properties = SimpleNamespace(name="AMD Instinct MI300X", total_memory=192 * 2**30)
        self.cuda = SimpleNamespace(
            get_device_properties=lambda number: properties, **{name: self._figure(name) for name in FIGURES}
        )

    def fail(self, gpu: int, error: Exception) -> None:
        self.figures[gpu] = dict.fromkeys(FIGURES, error)

    def _figure(self, name: str) -> Callable[[int], Any]:
        def figure(number: int) -> Any:
            value = self.figures[number][name]
            if isinstance(value, Exception):
                raise value
            return value

        return figure
