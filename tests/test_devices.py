"""trainer/devices.py on machines with made-up GPUs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.config import TrainConfig
from trainer.devices import choose_placement, choose_precision, default_device, find_device
from trainer.errors import ConfigError
from trainer.gpus.device import NO_TORCH_GPUS, TorchGpus, UsedGpu, torch_gpus

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Give this machine so many GPUs of a compute capability each."""

    def equip(*capabilities: tuple[int, int], usable: bool = True) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities) and usable)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities[device.index])
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Fake {device.index}")

    return equip


def config(**values: object) -> TrainConfig:
    return TrainConfig(target="tiny", data="demo", **values)


HOPPER, TURING = (9, 0), (7, 5)


@pytest.mark.parametrize(
    ("gpus", "targets", "drafter"),
    [
        (0, ["cpu"], "cpu"),
        (1, ["cuda:0"], "cuda:0"),
        (2, ["cuda:0"], "cuda:1"),
        (4, ["cuda:0", "cuda:1", "cuda:2"], "cuda:3"),
    ],
)
def test_auto_gives_the_last_gpu_to_the_drafter(machine: Machine, gpus: int, targets: list[str], drafter: str) -> None:
    machine(*[HOPPER] * gpus)
    placement = choose_placement(config())
    assert [str(device) for device in placement.targets] == targets
    assert str(placement.drafter) == drafter
    assert placement.precision == (torch.bfloat16 if gpus else torch.float32)
    assert placement.autocast == bool(gpus)


def test_gpus_that_cannot_be_used_are_none(machine: Machine) -> None:
    machine(HOPPER, HOPPER, usable=False)
    assert str(choose_placement(config()).drafter) == "cpu"
    with pytest.raises(ConfigError, match=r"this machine has cpu: name one of these, or leave drafter_device out$"):
        find_device("cuda:0", "drafter_device")


@pytest.mark.parametrize(("gpus", "first"), [(0, "cpu"), (1, "cuda:0"), (3, "cuda:0")])
def test_one_device_is_the_first_gpu_where_there_is_one(machine: Machine, gpus: int, first: str) -> None:
    machine(*[HOPPER] * gpus)
    assert default_device() == first


def test_devices_given_by_name(machine: Machine) -> None:
    machine(HOPPER, HOPPER)
    placement = choose_placement(config(target_devices=("cuda:1", "cpu", "cuda:1"), drafter_device="cuda"))
    assert [str(device) for device in placement.targets] == ["cuda:1", "cpu", "cuda:1"]
    assert str(placement.drafter) == "cuda:0"


def test_auto_beside_a_name(machine: Machine) -> None:
    machine(HOPPER, HOPPER, HOPPER)
    placement = choose_placement(config(target_devices=("auto", "cpu"), drafter_device="cpu"))
    assert [str(device) for device in placement.targets] == ["cuda:0", "cuda:1", "cuda:2", "cpu"]
    assert str(placement.drafter) == "cpu"


@pytest.mark.parametrize(
    ("named", "targets", "drafter"),
    [
        ({"drafter_device": "cuda:0"}, ["cuda:1"], "cuda:0"),
        ({"drafter_device": "cuda"}, ["cuda:1"], "cuda:0"),
        ({"target_devices": ("cuda",)}, ["cuda:0"], "cuda:1"),
        ({"target_devices": ("cuda:1",)}, ["cuda:1"], "cuda:0"),
        ({"target_devices": ("cuda:0", "cuda:1")}, ["cuda:0", "cuda:1"], "cuda:1"),
    ],
)
def test_what_is_named_leaves_the_rest_to_the_other_side(
    machine: Machine, named: dict[str, Any], targets: list[str], drafter: str
) -> None:
    machine(HOPPER, HOPPER)
    placement = choose_placement(config(**named))
    assert ([str(device) for device in placement.targets], str(placement.drafter)) == (targets, drafter)


@pytest.mark.parametrize("field", ["target_devices", "drafter_device"])
def test_a_device_that_is_not_there(machine: Machine, field: str) -> None:
    machine(HOPPER, HOPPER)
    for name in ("cuda:2", "cuda:-1", "cuda:x", "gpu", "CPU", "", "cpu:0", "mps", "meta"):
        with pytest.raises(ConfigError) as caught:
            choose_placement(config(**{field: ("cpu", name) if field == "target_devices" else name}))
        way = f"name one of these, or leave {field} out"
        assert str(caught.value) == f"{field} names {name!r}, but this machine has cpu, cuda:0, cuda:1: {way}"


@pytest.mark.parametrize(
    ("capabilities", "names", "precision"),
    [
        ([HOPPER, HOPPER], ["cuda:0", "cuda:1"], torch.bfloat16),
        ([(8, 0)], ["cuda:0"], torch.bfloat16),
        ([(12, 0)], ["cuda:0"], torch.bfloat16),
        ([HOPPER, TURING], ["cuda:0", "cuda:1"], torch.float32),
        ([HOPPER, TURING], ["cuda:0"], torch.bfloat16),
        ([HOPPER], ["cuda:0", "cpu"], torch.float32),
        ([], ["cpu"], torch.float32),
    ],
)
def test_auto_precision_is_what_every_device_can(
    machine: Machine, capabilities: list[tuple[int, int]], names: list[str], precision: torch.dtype
) -> None:
    machine(*capabilities)
    assert choose_precision("auto", tuple(torch.device(name) for name in names)) == precision


@pytest.mark.parametrize(("word", "precision"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_a_precision_that_is_asked_for_is_taken(machine: Machine, word: str, precision: torch.dtype) -> None:
    machine()
    placement = choose_placement(config(precision=word))
    assert placement.precision == precision
    assert placement.autocast == (precision == torch.bfloat16)


def test_each_device_is_described_once(machine: Machine) -> None:
    machine(HOPPER, HOPPER)
    assert choose_placement(config(target_devices=("cuda:0", "cpu", "cuda:0"))).describe() == [
        {"index": 0, "name": "Fake 0", "kind": "cuda"},
        {"index": None, "name": "CPU", "kind": "cpu"},
        {"index": 1, "name": "Fake 1", "kind": "cuda"},
    ]


@pytest.mark.parametrize(("cores", "asked", "threads"), [(16, None, 8), (1, None, 1), (16, 3, 3)])
def test_cpu_threads(machine: Machine, monkeypatch: pytest.MonkeyPatch, cores: int, asked: int | None, threads: int) -> None:
    machine()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert choose_placement(config(cpu_threads=asked)).cpu_threads == threads


def seen(**devices: Any) -> TorchGpus:
    placement = choose_placement(config(**devices))
    return torch_gpus(placement.targets, placement.drafter)


def test_what_torch_knows_of_the_gpus(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(HOPPER, HOPPER, HOPPER)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=f"uuid-{number}"))
    view = seen(target_devices=("cuda:2", "cuda:2", "cuda:0"), drafter_device="cuda:2")
    assert view.gpus == (UsedGpu(0, "uuid-0", ("target",)), UsedGpu(2, "uuid-2", ("target", "drafter"))), "the third is another's"
    assert view.memory_stats is torch.cuda.memory_stats


def test_a_run_on_the_cpu_wakes_no_gpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(HOPPER)
    monkeypatch.delattr(torch.cuda, "get_device_properties")
    assert seen(target_devices=("cpu",), drafter_device="cpu") is NO_TORCH_GPUS
