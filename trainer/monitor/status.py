"""The document of `GET /status`, as a pydantic model: OpenAPI, docs/status.md, the text table and the console come from it.

Fields are only ever added. JSON has no NaN or infinity: such a number is written as the word "NaN", "Infinity" or "-Infinity".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Protocol

import orjson
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from trainer.gpus.device import Device, GpuSnapshot
from trainer.metrics.catalogue.gpus import GPU_BACKENDS
from trainer.metrics.catalogue.run import RUN_STATES, VERDICT_STATES
from trainer.metrics.catalogue.watching import WATCH_PARTS, WATCH_SECONDS
from trainer.monitor.monitor import Monitor
from trainer.monitor.rates import Rates
from trainer.monitor.state import RunState, Tick
from trainer.record.format import StepLine, TelemetryLine, field_names

_NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
Figure = Annotated[float, WithJsonSchema(_NUMBER)]
Shares = tuple[Figure | None, ...]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings", use_attribute_docstrings=True)


class RunIdentity(_Model):
    id: str | None = None
    """Name of the run's folder."""
    name: str | None = None
    """The same, as people call the run."""
    started_at: str | None = None
    """Beginning of its first attempt, ISO 8601, UTC."""
    command: list[str] | None = None
    """Words of the command that began this attempt."""


class Acceptance(_Model):
    """Tokens kept per draft-and-verify round, the bonus token included: estimated from accuracy, measured by decoding."""

    estimated_length: Figure | None = None
    """Tokens, from `position_accuracy` of the newest step."""
    position_accuracy: Shares = ()
    """Share of draft tokens that are right, by position in the block; the first follows the anchor."""
    measured_length: Figure | None = None
    """Tokens, of the newest evaluation."""
    measured_at_step: int | None = None
    """The step whose drafter was measured."""
    measured_by_position: Shares = ()
    """Share of rounds that kept the draft token, by position in the block; one is kept only where all before it are."""
    held_out_estimated_length: Figure | None = None
    """Tokens, from accuracy on the conversations that were decoded, with the same weights."""


class Stage(_Model):
    """A stage of the pipeline. The three ratios add up to 1: they share the time of all the stage's threads."""

    name: str
    """`dataset`, `batches`, `target`, `drafter`: the order of the road."""
    threads: int
    """Of the stage."""
    items: int
    """Items handed on so far; the drafter: batches trained on."""
    busy_ratio: float
    """Share of time at work."""
    waiting_input_ratio: float
    """Share of time in which the queue before it was empty."""
    waiting_output_ratio: float
    """Share of time in which the queue behind it was full."""
    seconds_since_progress: float
    """Since it last took or handed on an item."""


class Queue(_Model):
    name: str
    """`samples`, `batches`, `features`: what it holds."""
    items: int
    """Items in it."""
    capacity_items: int
    """Items that it holds at most."""
    bytes: int
    """Bytes of the tensors in it."""
    capacity_bytes: int
    """Bytes that it holds at most."""
    fill_ratio: float
    """How full it is, by items or by bytes, whichever is fuller."""


class VerdictStatus(_Model):
    """What holds the run back right now: exactly one answer, the same on the console, in the dashboard and in Grafana."""

    state: Annotated[str, WithJsonSchema({"enum": list(VERDICT_STATES)})]
    """The kind of answer."""
    stage: str | None
    """The stage that it names, if any."""
    sentence: str
    """The verdict in plain words, with the number that matters."""
    since: float
    """Unix time at which it became the verdict."""
    headroom_ratio: float
    """How much faster the run could go, at most, without that stage: 0.34 is up to +34 %."""
    next_stage: str | None
    """The stage that would hold the run back then."""
    lost_device_hours: float
    """Hours that drafter devices spent waiting in this attempt, added up over the devices."""


class GpuSampler(_Model):
    up: bool
    """Whether GPU figures can be read."""
    reason: str
    """Why not, or which GPU does not answer."""
    notes: tuple[str, ...] = ()
    """Which figures are missing for good, and why."""
    backend: Annotated[str, WithJsonSchema({"enum": list(GPU_BACKENDS)})]
    """Where the figures come from."""
    driver: str
    """Version of the GPU's driver."""
    age_seconds: float | None
    """Age of the newest figures; `null` before the first."""
    errors: int
    """Readings that failed or were given up."""


class Process(_Model):
    cpu_cores: float | None = None
    """Cores in use, over the last 60 s."""
    memory_bytes: int | None = None
    """Resident memory."""


class CheckpointStatus(_Model):
    """The newest whole checkpoint; after a resume the one that the run resumed from. All `null` before the first."""

    step: int | None = None
    """The step after which it was written."""
    path: str | None = None
    """Its folder."""
    age_seconds: float | None = None
    """Since it was written."""


class Watching(_Model):
    seconds: float
    """Seconds so far."""
    ratio: float
    """As a share of the run's time."""


class Status(_Model):
    """The whole document. A line of `telemetry.jsonl` holds those fields of it that no other file of the record does."""

    run: RunIdentity
    state: Annotated[str, WithJsonSchema({"enum": list(RUN_STATES)})]
    """Where the run is between its beginning and its end."""
    phase: str | None
    """What the run does, or last did, while it starts or finishes, as in "loading the target" or "measuring acceptance"."""
    step: Annotated[int, Field(ge=0)]
    """Optimizer steps since the run began, resumes included."""
    max_steps: int | None
    """The step at which the run ends, if its data does not end before."""
    epoch: Figure | None
    """Visits of the data, as a fraction: 1.5 is half-way through the second."""
    progress_ratio: float | None
    """Share of the run that is done, by steps or by visits of the data, whichever ends first."""
    eta_seconds: float | None
    """Time to the end of the run at the pace of the last 60 s."""
    loss: Figure | None
    """Of the newest step, in `loss_unit`."""
    loss_unit: str | None
    """What the run's objective counts the loss in."""
    learning_rate: Figure | None
    """Of the newest step."""
    grad_norm: Figure | None
    """Norm of the newest step's gradient, before clipping."""
    newest_step: Annotated[StepLine | None, WithJsonSchema({"type": ["object", "null"], "additionalProperties": True})]
    """Every number of the newest step, as in `steps.jsonl`."""
    rates: Rates
    acceptance: Acceptance
    stages: tuple[Stage, ...]
    queues: tuple[Queue, ...]
    verdict: VerdictStatus
    devices: tuple[Device, ...]
    gpu_sampler: GpuSampler
    process: Process
    checkpoint: CheckpointStatus
    last_error: str | None
    """The error that ended the run, in a sentence."""
    warnings: tuple[str, ...]
    """What deserves attention, in sentences, the newest last."""
    watching: Watching
    versions: dict[str, str]
    """Versions of Python, torch and the other libraries."""

    def document(self) -> dict[str, Any]:
        """As JSON has it: NaN and infinities are words."""
        return dict(orjson.loads(self.model_dump_json()))


class StatusSource(Protocol):
    """Where a server or a console gets the run's status from; any thread may ask."""

    def status(self) -> Status: ...

    def wait_tick(self, last: int, timeout: float) -> int:
        """Number of the newest telemetry tick, as soon as it differs from `last`, or after `timeout` seconds."""


class MonitorStatus:
    """The status of the run that `monitor` watches."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self.wait_tick = monitor.wait_tick

    def status(self) -> Status:
        exporter = self._monitor.exporter
        watched = sum(exporter.total(WATCH_SECONDS, part) for part in WATCH_PARTS)
        return status_of(self._monitor.state, self._monitor.clock(), watched)


def status_of(state: RunState, now: float, watch_seconds: float = 0.0) -> Status:
    """The document at `now` on the monotonic clock; `watch_seconds` is what watching cost so far."""
    tick = state.tick or Tick(verdict=state.verdict)
    line = state.newest.line if state.newest else None
    elapsed = state.elapsed(now)
    return Status(
        run=RunIdentity(**{name: state.run.get(name) for name in RunIdentity.model_fields}),
        state=state.state,
        phase=state.phase,
        step=state.step,
        max_steps=state.run.get("max_steps"),
        epoch=line.epoch if line else None,
        progress_ratio=state.progress_ratio,
        eta_seconds=state.eta_seconds,
        loss=line.loss if line else None,
        loss_unit=state.run.get("loss_unit"),
        learning_rate=line.learning_rate if line else None,
        grad_norm=line.grad_norm if line else None,
        newest_step=replace(line, elapsed=round(state.newest.at - state.began_at, 4)) if state.newest and line else None,
        rates=tick.rates,
        acceptance=_acceptance(state),
        stages=tuple(Stage(**_rounded(share, Stage)) for share in tick.stages),
        queues=tuple(Queue(**_rounded(queue, Queue)) for queue in tick.queues),
        devices=tuple(device.rounded() for device in tick.gpus.devices),
        process=Process(cpu_cores=tick.cpu_cores, memory_bytes=tick.memory_bytes),
        verdict=VerdictStatus(**_rounded(state.verdict, VerdictStatus)),
        gpu_sampler=gpu_sampler(tick.gpus, now),
        checkpoint=_checkpoint(state, now),
        last_error=state.error,
        warnings=state.warnings,
        watching=Watching(seconds=round(watch_seconds, 6), ratio=round(watch_seconds / elapsed, 6) if elapsed > 0 else 0.0),
        versions=state.run.get("versions") or {},
    )


def telemetry_line(state: RunState, now: float) -> TelemetryLine:
    """What a telemetry tick leaves in the record: the fields of `/status` that no other file of it has."""
    return TelemetryLine(**status_of(state, now).model_dump(include=set(field_names(TelemetryLine))))


def _rounded(value: object, model: type[BaseModel]) -> dict[str, Any]:
    """The fields of `model`, taken from `value`, with the decimals that they are worth."""
    decimals = {"ratio": 4, "progress": 3, "hours": 6}
    fields = {name: getattr(value, name) for name in model.model_fields}
    digits = {name: decimals.get(name.rpartition("_")[2]) for name in fields}
    return {name: field if digits[name] is None else round(field, digits[name]) for name, field in fields.items()}


def _acceptance(state: RunState) -> Acceptance:
    line, evaluation = state.newest.line if state.newest else None, state.evaluation
    return Acceptance(
        estimated_length=line.estimated_acceptance_length if line else None,
        position_accuracy=line.position_accuracy if line else (),
        measured_length=evaluation.measured_length if evaluation else None,
        measured_at_step=evaluation.step if evaluation else None,
        measured_by_position=evaluation.acceptance_by_position if evaluation else (),
        held_out_estimated_length=evaluation.held_out_estimated_length if evaluation else None,
    )


def gpu_sampler(gpus: GpuSnapshot, now: float) -> GpuSampler:
    """`now` is on the monotonic clock."""
    fields = {name: getattr(gpus, name) for name in GpuSampler.model_fields if name != "age_seconds"}
    return GpuSampler(**fields, age_seconds=None if gpus.at is None else round(max(0.0, now - gpus.at), 1))


def _checkpoint(state: RunState, now: float) -> CheckpointStatus:
    newest = state.checkpoint
    if newest is None:
        return CheckpointStatus()
    return CheckpointStatus(step=newest.step, path=newest.path, age_seconds=round(now - newest.at, 1))
