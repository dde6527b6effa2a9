"""Tables for docs/status.md, from the pydantic model of `/status` and the dataclasses in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from docs.field_tables import code, described, table
from trainer.gpus.device import Allocated, Device
from trainer.metrics.catalogue.gpus import GPU_BACKENDS, GPU_THROTTLE_REASONS
from trainer.metrics.catalogue.index import CATALOGUE
from trainer.metrics.catalogue.run import RUN_STATES, VERDICT_STATES
from trainer.monitor import status
from trainer.monitor.rates import Rates

# The parts of docs/status.md: each an object of the document, by its type.
OBJECTS: dict[str, type] = {
    "status": status.Status,
    "run": status.RunIdentity,
    "rates": Rates,
    "acceptance": status.Acceptance,
    "stages": status.Stage,
    "queues": status.Queue,
    "verdict": status.VerdictStatus,
    "devices": Device,
    "allocator": Allocated,
    "gpu_sampler": status.GpuSampler,
    "process": status.Process,
    "checkpoint": status.CheckpointStatus,
    "watching": status.Watching,
}
CHOICES = {
    (status.Status, "state"): RUN_STATES,
    (status.VerdictStatus, "state"): VERDICT_STATES,
    (status.GpuSampler, "backend"): GPU_BACKENDS,
    (Device, "throttle_reasons"): GPU_THROTTLE_REASONS,
}
_EXCLUDED = ("aliases", "progress_per_second", "model_config")
# A field of a GPU that has no docstring is a number of the catalogue, which says what it is.
_GPU_NUMBERS = {m.name.removeprefix("gpu_").removesuffix("_total"): m.help for m in CATALOGUE if m.name.startswith("gpu_")}


def fields(kind: type) -> str:
    otherwise = _GPU_NUMBERS if kind is Device else {name: f"See [`{name}`](#{name})." for name in OBJECTS}
    rows = described(kind, otherwise, without=_EXCLUDED)
    return table(("field", "type", "meaning"), [(name, *_with_choices(kind, name.strip("`"), *row)) for name, *row in rows])


def _with_choices(kind: type, name: str, json: str, meaning: str) -> tuple[str, str]:
    choices = CHOICES.get((kind, name))
    return json, f"{meaning} One of {', '.join(map(code, choices))}." if choices else meaning


PARTS: dict[str, Callable[[], str]] = {name: partial(fields, kind) for name, kind in OBJECTS.items()}
