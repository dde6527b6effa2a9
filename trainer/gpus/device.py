"""What one look at the GPUs found, as plain immutable values; None where a GPU or its driver does not tell (docs/gpus.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """What torch's allocator holds on one GPU, in bytes, and how often it was short of memory."""

    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    """Most that tensors ever took."""
    retries: int
    """Times that it emptied its cache to find memory."""
    out_of_memory: int
    """Times that it found none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU, or a part of one that is split (MIG), at one moment. `index` and `mig` count as `nvidia-smi -L` does."""

    index: int
    mig: int | None = None
    """Which part of GPU `index`; None for a whole GPU."""
    name: str
    uuid: str = ""
    """As the driver names it, "GPU-…" or "MIG-…"."""
    aliases: tuple[str, ...] = ()
    """What else it is called: a MIG instance may go by its GPU's name. Not shown."""
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
    memory_clock_hertz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Of GPU_THROTTLE_REASONS; empty while it runs as fast as it can."""
    pcie_receive_bytes_per_second: float | None = None
    pcie_transmit_bytes_per_second: float | None = None
    nvlink_receive_bytes_per_second: float | None = None
    nvlink_transmit_bytes_per_second: float | None = None
    xid_errors: int | None = None
    """Since this process began."""
    xid_last_code: int | None = None
    xid_last_time: float | None = None
    """Unix time; code and time are 0 before the first."""
    allocator: Allocated | None = None

    def shown(self) -> dict[str, Any]:
        """As in `/status` and `telemetry.jsonl`; rounded to what such figures are worth."""
        fields = asdict(self)
        del fields["aliases"]
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in fields.items()}

    @property
    def label(self) -> str:
        """As in `/metrics`: "0", or "0:1" for part 1 of GPU 0."""
        return label_of(self.index, self.mig)

    def is_called(self, uuid: str) -> bool:
        return bare(uuid) in {bare(name) for name in (self.uuid, *self.aliases)}

    def says_nothing(self) -> bool:
        figures = (self.kernel_active_ratio, self.memory_used_bytes, self.power_watts, self.temperature_celsius)
        return all(figure is None for figure in figures)


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """The newest look, and how the looking goes."""

    devices: tuple[Device, ...]
    up: bool
    reason: str
    """Sentences: why `up` is false, or what is amiss with some of the GPUs; else empty."""
    backend: str = "none"
    """Of GPU_BACKENDS."""
    driver: str = ""
    notes: tuple[str, ...] = ()
    """Which figures are missing for good, and why, in sentences."""
    warning: str = ""
    """What a person should be told of, if anything; does not change from second to second."""
    at: float | None = None
    """When the newest figures were taken, on the clock that never goes back; None before the first."""
    time: float = 0.0
    """The same as Unix time; 0 before the first."""
    seconds: float = 0.0
    """That the newest look took, or has taken so far."""
    errors: int = 0
    """Looks that failed or were given up."""

    def shown(self, now: float) -> dict[str, Any]:
        """As `gpu_sampler` in `/status`; `now` on the clock that never goes back."""
        return {
            "up": self.up,
            "reason": self.reason,
            "notes": list(self.notes),
            "backend": self.backend,
            "driver": self.driver,
            "age_seconds": None if self.at is None else round(max(0.0, now - self.at), 1),
            "errors": self.errors,
        }


NO_FIGURES = GpuSnapshot((), False, "No GPU figures yet.")


@dataclass(frozen=True, slots=True)
class UsedGpu:
    """A GPU as torch knows it: `number` as in "cuda:1", what CUDA calls it (bare, without "GPU-"), and the stages that use it."""

    number: int
    uuid: str
    stages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchView:
    """What torch knows of the GPUs: those that the run uses, and `torch.cuda.memory_stats` by its own number of one."""

    gpus: tuple[UsedGpu, ...] = ()
    memory_stats: Callable[[int], Mapping[str, Any]] = lambda _: {}


NO_TORCH = TorchView()


def torch_view(targets: Sequence[torch.device], drafter: torch.device) -> TorchView:
    """What torch knows of the GPUs among these devices; nothing for a run on the CPU, which wakes none."""
    used: dict[int, list[str]] = {}
    for stage, device in [*(("target", device) for device in dict.fromkeys(targets)), ("drafter", drafter)]:
        if device.type == "cuda":
            used.setdefault(device.index, []).append(stage)
    if not used:
        return NO_TORCH
    import torch  # here, so that watching a run on the CPU needs none of it

    gpus = [UsedGpu(number, str(torch.cuda.get_device_properties(number).uuid), tuple(used[number])) for number in sorted(used)]
    return TorchView(gpus=tuple(gpus), memory_stats=torch.cuda.memory_stats)


class NotHereError(Exception):
    """A library that this machine simply does not have: no reason to speak of it where another one works."""


class Backend(Protocol):
    """A library that knows GPUs. One thread owns it: whatever it does may take long, raise anything, or never come back."""

    @property
    def name(self) -> str:
        """Of GPU_BACKENDS."""

    @property
    def driver(self) -> str:
        """Its version, once it is open."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Which figures are missing while all is well, and why, in sentences."""

    def open(self, used: Sequence[UsedGpu]) -> None:
        """Start the library and choose the GPUs to look at: those in use, or where that is unknown, the visible ones."""

    def read(self, *, costly: bool) -> tuple[tuple[Device, ...], str]:
        """The figures now, and sentences about GPUs that do not answer. `costly`: also ask what takes the driver long."""

    def close(self) -> None:
        """Let the library go. Never raises."""


def label_of(index: int, mig: int | None = None) -> str:
    return str(index) if mig is None else f"{index}:{mig}"


def sentence_of(error: BaseException) -> str:
    """An error's text on one line, without a full stop."""
    return " ".join((str(error) or type(error).__name__).split()).rstrip(".")


def bare(uuid: str) -> str:
    """An identity without its kind: what torch and the driver agree on."""
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
