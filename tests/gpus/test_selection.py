"""Which GPUs a run is meant to see."""

import pytest

from trainer.gpus.device import UsedGpu
from trainer.gpus.selection import choose, choose_parts, visible

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


PARTS = ["MIG-aa1", "MIG-aa2", "MIG-aa3"]


@pytest.mark.parametrize(
    ("uuids", "setting", "found"),
    [
        ([], None, [0]),
        ([], "MIG-aa3,MIG-aa2", [1]),
        ([], "MIG-bb", [0]),
        (["aa3"], "MIG-aa2", [2]),
        (["aa3", "AA1"], None, [0, 2]),
        (["aa"], "MIG-aa2", [1]),
    ],
)
def test_of_a_split_gpu_the_parts_in_use(uuids: list[str], setting: str | None, found: list[int]) -> None:
    used = [UsedGpu(number, uuid) for number, uuid in enumerate(uuids)]
    assert choose_parts(used, setting, PARTS) == found
    assert choose_parts(used, setting, []) == [], "a GPU that is not split"
