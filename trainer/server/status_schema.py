"""What the routes answer, for OpenAPI: the shapes of `docs/status.md`, open for fields to come."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from trainer.gpus.device import Allocated, Device
from trainer.metrics.catalogue.gpus import GPU_BACKENDS, GPU_THROTTLE_REASONS
from trainer.metrics.catalogue.run import RUN_STATES, VERDICT_STATES
from trainer.monitor.moments import Rates

Responses = dict[int | str, dict[str, Any]]

_TEXT: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_RATIO: dict[str, Any] = {"type": "number", "minimum": 0}
# JSON has no NaN or infinity: such a value is a word.
_FIGURE: dict[str, Any] = {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_STAGE = _object(
    name=_TEXT,
    threads=_COUNT,
    items=_COUNT,
    busy_ratio=_RATIO,
    waiting_input_ratio=_RATIO,
    waiting_output_ratio=_RATIO,
    seconds_since_progress={"type": "number"},
)
_QUEUE = _object(name=_TEXT, items=_COUNT, capacity_items=_COUNT, bytes=_COUNT, capacity_bytes=_COUNT, fill_ratio=_RATIO)
_VERDICT = _object(
    state={"enum": list(VERDICT_STATES)},
    stage=_or_null(_TEXT),
    sentence=_TEXT,
    since={"type": "number"},
    headroom_ratio=_RATIO,
    next_stage=_or_null(_TEXT),
    lost_device_hours=_RATIO,
)
_ACCEPTANCE = _object(
    estimated_length=_or_null(_FIGURE),
    position_accuracy=_list(_or_null(_FIGURE)),
    measured_length=_or_null(_FIGURE),
    measured_at_step=_or_null(_COUNT),
    measured_by_position=_list(_or_null(_FIGURE)),
    held_out_estimated_length=_or_null(_FIGURE),
)
_DEVICE_WORDS = {
    "index": _COUNT,
    "name": _TEXT,
    "uuid": _TEXT,
    "stages": _list(_TEXT),
    "throttle_reasons": _or_null(_list({"enum": list(GPU_THROTTLE_REASONS)})),
    "allocator": _or_null(_object(**{field.name: _COUNT for field in fields(Allocated)})),
}
_DEVICE = _object(**{name: _DEVICE_WORDS.get(name, _or_null({"type": "number"})) for name in Device(index=0, name="").shown()})
_GPU_SAMPLER = _object(
    up={"type": "boolean"},
    reason=_TEXT,
    notes=_list(_TEXT),
    backend={"enum": list(GPU_BACKENDS)},
    driver=_TEXT,
    age_seconds=_or_null({"type": "number"}),
    errors=_COUNT,
)
STATUS_SCHEMA = _object(
    run=_object(id=_or_null(_TEXT), name=_or_null(_TEXT), started_at=_or_null(_TEXT), command=_or_null(_list(_TEXT))),
    state={"enum": list(RUN_STATES)},
    phase=_or_null(_TEXT),
    step=_COUNT,
    max_steps=_or_null(_COUNT),
    epoch=_or_null(_FIGURE),
    progress_ratio=_or_null(_RATIO),
    eta_seconds=_or_null({"type": "number"}),
    loss=_or_null(_FIGURE),
    learning_rate=_or_null(_FIGURE),
    grad_norm=_or_null(_FIGURE),
    rates=_object(**dict.fromkeys(Rates().shown(), _or_null({"type": "number"}))),
    acceptance=_ACCEPTANCE,
    stages=_list(_STAGE),
    queues=_list(_QUEUE),
    verdict=_VERDICT,
    devices=_list(_DEVICE),
    process=_object(cpu_cores=_or_null({"type": "number"}), memory_bytes=_or_null(_COUNT)),
    checkpoint=_object(step=_or_null(_COUNT), path=_or_null(_TEXT), age_seconds=_or_null({"type": "number"})),
    last_error=_or_null(_TEXT),
    warnings=_list(_TEXT),
    watching=_object(seconds={"type": "number"}, ratio={"type": "number"}),
    gpu_sampler=_GPU_SAMPLER,
    versions={"type": "object", "additionalProperties": _TEXT},
)

SENTENCE: dict[str, Any] = {"text/plain": {"schema": _TEXT}}
STATUS: Responses = {200: {"description": "The run", "content": {"application/json": {"schema": STATUS_SCHEMA}, **SENTENCE}}}
METRICS: Responses = {
    200: {"description": "Every number", "content": {**SENTENCE, "application/openmetrics-text": {"schema": _TEXT}}},
}
