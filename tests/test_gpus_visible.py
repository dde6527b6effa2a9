"""Which GPUs a run is meant to see."""

import pytest

from trainer.gpus.device import UsedGpu
from trainer.gpus.visible import choose, visible

GPUS = [["GPU-aa", "MIG-aa1", "MIG-aa2"], ["GPU-bb"], ["GPU-cc"]]


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
        ("MIG-aa2", [0]),
        ("MIG-bb", []),
        ("bb", []),
    ],
)
def test_visible_devices(setting: str | None, found: list[int]) -> None:
    assert visible(setting, GPUS) == found


@pytest.mark.parametrize(
    ("uuids", "setting", "found"),
    [
        (["cc", "aa"], "1", [0, 2]),
        (["BB"], None, [1]),
        (["aa2"], None, [0]),
        (["dd"], "1", [1]),
        ([], "2", [2]),
    ],
)
def test_what_torch_sees_comes_before_the_setting(uuids: list[str], setting: str | None, found: list[int]) -> None:
    assert choose([UsedGpu(number, uuid) for number, uuid in enumerate(uuids)], setting, GPUS) == found
