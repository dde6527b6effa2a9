"""GPU figures from a made-up library that can do all that the real one does wrong."""

from types import SimpleNamespace

import pytest

from trainer.gpus import RETRY_SECONDS, Gpus, visible


class NVMLError(Exception):
    pass


class FakeNvml:
    """Two GPUs. `broken` names calls that raise."""

    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *broken: str, count: int = 2) -> None:
        self.broken = set(broken)
        self.count = count
        self.started = self.ended = 0

    def __getattribute__(self, name: str):
        found = object.__getattribute__(self, name)
        if not name.startswith("nvml") or name not in self.broken:
            return found

        def fail(*_: object) -> None:
            raise NVMLError("Unknown Error")

        return fail

    def nvmlInit(self) -> None:  # noqa: N802
        self.started += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.ended += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802
        return b"GPU-%d%d" % (handle, handle)

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return f"H{200 + handle}"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=90 + handle)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=10 + handle, total=100)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return 300_500

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        return 50


def gpus(library: FakeNvml, visible: str | None = None, now: list[float] | None = None) -> Gpus:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return Gpus(lambda: library, lambda: (now or [0.0])[0], environ)


def test_figures_in_base_units() -> None:
    reading = gpus(FakeNvml()).read()
    assert (reading.up, reading.reason) == (True, "")
    assert reading.devices[1].shown() == {
        "index": 1,
        "name": "H201",
        "kernel_active_ratio": 0.91,
        "memory_used_bytes": 11,
        "memory_total_bytes": 100,
        "power_watts": 300.5,
        "temperature_celsius": 50.0,
    }


def test_a_figure_that_is_not_supported_is_none() -> None:
    [first, _] = gpus(FakeNvml("nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryInfo")).read().devices
    assert (first.power_watts, first.memory_used_bytes, first.temperature_celsius) == (None, None, 50.0)


@pytest.mark.parametrize(
    "call", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName"]
)
def test_a_library_that_does_not_start_is_a_state(call: str) -> None:
    reading = gpus(FakeNvml(call)).read()
    assert (reading.devices, reading.up, reading.reason) == ((), False, "No GPU figures: Unknown Error.")


def test_a_missing_library_is_a_state() -> None:
    def load() -> None:
        raise ModuleNotFoundError("No module named 'pynvml'")

    assert Gpus(load).read().reason == "No GPU figures: No module named 'pynvml'."


def test_a_machine_without_a_gpu() -> None:
    assert gpus(FakeNvml(count=0)).read().reason == "No GPU figures: this machine has no GPU."


FIGURES = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature")


def test_a_driver_that_is_lost_is_tried_again_after_a_while() -> None:
    library, now = FakeNvml(), [0.0]
    sampled = gpus(library, now=now)
    assert sampled.read().up
    library.broken.update(FIGURES)
    assert sampled.read().reason == "No GPU figures: Unknown Error."
    assert library.ended == 1
    library.broken.clear()
    now[0] = RETRY_SECONDS - 1
    assert not sampled.read().up
    assert library.started == 1, "not tried again before its time"
    now[0] = RETRY_SECONDS
    assert sampled.read().up
    assert library.started == 2


def test_close_never_raises() -> None:
    library = FakeNvml("nvmlShutdown")
    sampled = gpus(library)
    sampled.read()
    sampled.close()
    sampled.close()


def test_only_visible_gpus_are_read() -> None:
    assert [device.index for device in gpus(FakeNvml(), "1").read().devices] == [1]
    assert gpus(FakeNvml(), "").read().reason == "No GPU figures: CUDA_VISIBLE_DEVICES= leaves none."


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        (" 1 , 1", [1]),
        ("GPU-bb", [1]),
        ("GPU-bb,GPU-c", [1, 2]),
        ("0,7,1", [0]),
        ("-1", []),
        ("MIG-bb", []),
    ],
)
def test_visible_devices(setting: str | None, found: list[int]) -> None:
    assert visible(setting, ["GPU-aa", "GPU-bb", "GPU-cc"]) == found
