"""Chooses a run's devices and precision. Raises `ConfigError` for a device that this machine does not have."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from trainer.config import Precision, TrainConfig
from trainer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Placement:
    """A device for each target thread, the drafter's device, the target's precision, and torch's threads within one stage."""

    targets: tuple[torch.device, ...]
    drafter: torch.device
    precision: torch.dtype
    cpu_threads: int

    @property
    def autocast(self) -> bool:
        """Whether the drafter's products run in bfloat16 (its weights stay float32)."""
        return self.precision == torch.bfloat16

    def describe(self) -> list[dict[str, Any]]:
        """Each device once, as in `run.json`."""
        return [
            {"index": device.index, "name": _name(device), "kind": device.type}
            for device in dict.fromkeys((*self.targets, self.drafter))
        ]


def choose_placement(config: TrainConfig) -> Placement:
    """Resolve `auto`: the drafter gets the last GPU and the target the others; a single GPU is shared; without a GPU, the CPU.

    Where only one side is named, the other takes the GPUs that are left, or shares if there are none.
    """
    gpus = _gpus() or ["cpu"]
    named = [_full_name(name) for name in config.target_devices if name != "auto"]
    drafter = _full_name(config.drafter_device)
    if drafter == "auto":
        drafter = ([gpu for gpu in gpus if gpu not in named] or gpus)[-1]
    rest = [gpu for gpu in gpus if gpu != drafter] or [drafter]
    names = [own for name in config.target_devices for own in (rest if name == "auto" else [name])]
    targets = tuple(find_device(name, "target_devices") for name in names)
    everywhere = (*targets, find_device(drafter, "drafter_device"))
    return Placement(
        targets=targets,
        drafter=everywhere[-1],
        precision=choose_precision(config.precision, everywhere),
        cpu_threads=config.cpu_threads or max(1, len(os.sched_getaffinity(0)) // 2),
    )


def find_device(name: str, field: str) -> torch.device:
    """The device called `name`. Raises `ConfigError`, which names `field`, where there is no such device."""
    available = ["cpu", *_gpus()]
    if _full_name(name) not in available:
        way = f"name one of these, or leave {field} out"
        raise ConfigError(f"{field} names {name!r}, but this machine has {', '.join(available)}: {way}")
    return torch.device(_full_name(name))


def default_device() -> str:
    """What `auto` means for a command that uses one device: the first GPU, else the CPU."""
    return next(iter(_gpus()), "cpu")


def choose_precision(precision: Precision, devices: tuple[torch.device, ...]) -> torch.dtype:
    """`auto` is bfloat16 where every device is a GPU that supports it, else float32."""
    if precision == "auto":
        modern = all(device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) for device in devices)
        return torch.bfloat16 if modern else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def precision_name(precision: torch.dtype) -> str:
    """The name that `--precision` takes: `float32`, `bfloat16`."""
    return str(precision).removeprefix("torch.")


def _full_name(name: str) -> str:
    return "cuda:0" if name == "cuda" else name


def _gpus() -> list[str]:
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
