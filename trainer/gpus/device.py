"""Snapshots of the GPUs as plain immutable values; None is what a GPU or its driver does not report (docs/gpus.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import Field

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """What torch's allocator holds on one GPU, and how often it ran short of memory."""

    allocated_bytes: int
    """In tensors."""
    reserved_bytes: int
    """In tensors and in torch's cache."""
    peak_bytes: int
    """Most memory that tensors ever took."""
    retries: int
    """How often it emptied its cache to find memory."""
    out_of_memory: int
    """How often it found none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU, or one MIG instance, at one moment. `index` and `mig` count as `nvidia-smi -L` does."""

    index: int
    """Counted as `nvidia-smi` does."""
    mig: int | None = None
    """Number of the MIG instance on GPU `index`; None for a whole GPU."""
    name: str
    """Of the model."""
    uuid: str = ""
    """The driver's, "GPU-…" or "MIG-…"."""
    aliases: Annotated[tuple[str, ...], Field(exclude=True)] = ()
    """Other identities: torch may know a MIG instance by its GPU's. Not in `/status`."""
    stages: tuple[str, ...] = ()
    """Stages of this run that compute on it."""
    kernel_active_ratio: float | None = None
    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    """Since the driver was loaded."""
    temperature_celsius: float | None = None
    sm_clock_hertz: float | None = None
    """Clock of the streaming multiprocessors."""
    memory_clock_hertz: float | None = None
    """Clock of the memory."""
    throttle_reasons: tuple[str, ...] | None = None
    """Of GPU_THROTTLE_REASONS; empty while it is not throttled."""
    pcie_receive_bytes_per_second: float | None = None
    """Traffic over PCIe, as seen from the GPU."""
    pcie_transmit_bytes_per_second: float | None = None
    """The same, the other way."""
    nvlink_receive_bytes_per_second: float | None = None
    """Traffic over all NVLinks of the GPU."""
    nvlink_transmit_bytes_per_second: float | None = None
    """The same, the other way."""
    xid_errors: int | None = None
    """Since this process started."""
    xid_last_code: int | None = None
    xid_last_time: float | None = None
    """Unix time; code and time are 0 before the first error."""
    allocator: Allocated | None = None
    """Torch's own account; None before the first step."""

    def rounded(self) -> Device:
        """The same with floats rounded to what such figures are worth, as in `/status` and `telemetry.jsonl`."""
        floats: dict[str, Any] = {
            name: round(value, 4) for name in self.__slots__ if isinstance(value := getattr(self, name), float)
        }
        return replace(self, **floats)

    @property
    def label(self) -> str:
        """As in `/metrics`: "0", or "0:1" for part 1 of GPU 0."""
        return label_of(self.index, self.mig)

    def has_uuid(self, uuid: str) -> bool:
        """Whether it is the GPU that torch or the driver calls `uuid`."""
        return bare(uuid) in {bare(name) for name in (self.uuid, *self.aliases)}

    def has_no_figures(self) -> bool:
        """Whether it did not answer at all."""
        figures = (self.kernel_active_ratio, self.memory_used_bytes, self.power_watts, self.temperature_celsius)
        return all(figure is None for figure in figures)


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """The newest figures, and the state of the sampling."""

    devices: tuple[Device, ...]
    up: bool
    reason: str
    """Sentences: why `up` is false, or what is wrong with some of the GPUs; else empty."""
    backend: str = "none"
    """Of GPU_BACKENDS."""
    driver: str = ""
    notes: tuple[str, ...] = ()
    """Which figures these GPUs never report, and why, in sentences."""
    warning: str = ""
    """What to tell a person, if anything; stays the same while the trouble does."""
    at: float | None = None
    """Monotonic time of the newest figures; None before the first."""
    time: float = 0.0
    """The same as Unix time; 0 before the first."""
    seconds: float = 0.0
    """Duration of the newest sampling, or so far of the one under way."""
    errors: int = 0
    """Samplings that failed or took too long."""


NOT_SAMPLED = GpuSnapshot((), False, "No GPU figures yet.")


@dataclass(frozen=True, slots=True)
class UsedGpu:
    """A GPU of the run: torch's number of it, as in "cuda:1", CUDA's UUID (without "GPU-"), and the stages that use it."""

    number: int
    uuid: str
    stages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchGpus:
    """The GPUs that the run uses, and `torch.cuda.memory_stats`, which takes torch's number of one."""

    gpus: tuple[UsedGpu, ...] = ()
    memory_stats: Callable[[int], Mapping[str, Any]] = lambda _: {}


NO_TORCH_GPUS = TorchGpus()


def torch_gpus(targets: Sequence[torch.device], drafter: torch.device) -> TorchGpus:
    """The GPUs among these devices; none for a run on the CPU, which then does not initialise CUDA."""
    used: dict[int, list[str]] = {}
    for stage, device in [*(("target", device) for device in dict.fromkeys(targets)), ("drafter", drafter)]:
        if device.type == "cuda":
            used.setdefault(device.index, []).append(stage)
    if not used:
        return NO_TORCH_GPUS
    import torch  # here, so that watching a run on the CPU needs none of it

    gpus = [UsedGpu(number, str(torch.cuda.get_device_properties(number).uuid), tuple(used[number])) for number in sorted(used)]
    return TorchGpus(gpus=tuple(gpus), memory_stats=torch.cuda.memory_stats)


class NotHereError(Exception):
    """The library is not for this machine or run; not worth a word if another one works."""


class Backend(Protocol):
    """A library that reads GPUs. One thread owns it: any call may take long, raise anything, or never return."""

    @property
    def name(self) -> str:
        """Of GPU_BACKENDS."""

    @property
    def driver(self) -> str:
        """The driver's version, once open; "" if unknown."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Which figures these GPUs never report, and why, in sentences."""

    def open(self, used: Sequence[UsedGpu]) -> None:
        """Start the library and choose the GPUs to read: those in use, or the visible ones if that is unknown.

        Raises `NotHereError`, or whatever the library raises.
        """

    def read(self, *, costly: bool) -> tuple[tuple[Device, ...], str]:
        """The figures now, and sentences about GPUs that do not answer. `costly`: include the slow questions."""

    def close(self) -> None:
        """Release the library. Never raises."""


def label_of(index: int, mig: int | None = None) -> str:
    return str(index) if mig is None else f"{index}:{mig}"


def sentence_of(error: BaseException) -> str:
    """An error's text on one line, without a full stop."""
    return " ".join((str(error) or type(error).__name__).split()).rstrip(".")


def bare(uuid: str) -> str:
    """A UUID without its prefix, in lower case, as torch writes it."""
    return uuid.removeprefix("MIG-").removeprefix("GPU-").lower()


def allocated(stats: Mapping[str, Any]) -> Allocated | None:
    """From `torch.cuda.memory_stats`; None before torch has used the GPU."""
    if not stats:
        return None
    return Allocated(
        allocated_bytes=int(stats["allocated_bytes.all.current"]),
        reserved_bytes=int(stats["reserved_bytes.all.current"]),
        peak_bytes=int(stats["allocated_bytes.all.peak"]),
        retries=int(stats["num_alloc_retries"]),
        out_of_memory=int(stats["num_ooms"]),
    )
