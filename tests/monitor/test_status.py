"""trainer/monitor/status.py: what a real run says fits what OpenAPI announces, from its first moment to its last."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest

from tests.monitor.test_sampler import Bench
from tests.support.fake_monitor import FakeMonitor, sample_status
from tests.support.served import exposition
from tests.support.watched import STEP
from trainer.gpus.device import Allocated, Device, GpuSnapshot
from trainer.server.app import create_app

OPENAPI = create_app(FakeMonitor(), exposition).openapi()
STATUS_SCHEMA: dict[str, Any] = {**OPENAPI["components"]["schemas"]["Status"], "components": OPENAPI["components"]}
FITS = jsonschema_rs.validator_for(STATUS_SCHEMA)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.record.close()


ALLOCATED = Allocated(allocated_bytes=1, reserved_bytes=2, peak_bytes=2, retries=0, out_of_memory=0)
GPU = Device(index=0, name="H200", stages=("target",), power_watts=1.5, throttle_reasons=("thermal",), allocator=ALLOCATED)


def moments_of(bench: Bench) -> Iterator[dict[str, Any]]:
    """As they go over the wire."""
    yield from (bench.watched.status(), bench.sampler.tick() or bench.watched.status())
    bench.sampler.attach(bench.stages)  # type: ignore[arg-type]
    bench.gpus.snapshot = GpuSnapshot((GPU,), True, "", "nvml", "580", ("no NVLink",), at=1.0)
    bench.run(5)
    yield bench.watched.status()
    bench.watched.step(replace(STEP, step=6, loss=math.nan, grad_norm=math.inf), "non_finite_loss")
    bench.watched.checkpointed(6, "there", 5, 0.1)
    yield bench.watched.status()
    bench.watched.fail("target", "boom")
    yield bench.watched.status()


def unannounced(value: Any, schema: dict[str, Any], name: str = "") -> Iterator[str]:
    """Fields that a status has and the schema has not, by their path."""
    schema = next((one for one in schema.get("anyOf", ()) if "$ref" in one or one.get("type") == "array"), schema)
    if "$ref" in schema:
        schema = OPENAPI["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for key, inner in value.items() if isinstance(value, dict) else ():
        if key in schema.get("properties", ()):
            yield from unannounced(inner, schema["properties"][key], f"{name}.{key}")
        elif "additionalProperties" not in schema:
            yield f"{name}.{key}"
    for inner in value if isinstance(value, list) and "items" in schema else ():
        yield from unannounced(inner, schema["items"], f"{name}[]")


def test_every_moment_of_a_run_fits_and_holds_nothing_else(bench: Bench) -> None:
    moments = [json.loads(orjson.dumps(moment)) for moment in moments_of(bench)]
    assert [moment["state"] for moment in moments] == ["starting", "starting", "running", "running", "failed"]
    assert moments[-1]["devices"][0]["allocator"]["peak_bytes"] == 2, "or nothing is known of devices here"
    for moment in moments:
        assert [error.message for error in FITS.iter_errors(moment)] == []
        assert set(unannounced(moment, STATUS_SCHEMA)) == set()


def test_the_sample_that_other_tests_go_by_is_such_a_status() -> None:
    sample = json.loads(orjson.dumps(sample_status()))
    assert [error.message for error in FITS.iter_errors(sample)] == []
    assert set(unannounced(sample, STATUS_SCHEMA)) == set()


def test_what_is_not_announced_is_found() -> None:
    sample = sample_status(news=1, queues=[{"color": "red"}], devices=[{"allocator": {"x": 1}}])
    assert set(unannounced(sample, STATUS_SCHEMA)) == {".news", ".queues[].color", ".devices[].allocator.x"}


@pytest.mark.parametrize("wrong", [{"state": "dancing"}, {"step": -1}, {"loss": "much"}, {"warnings": [1]}, {"verdict": {}}])
def test_what_does_not_fit_is_found(wrong: dict[str, object]) -> None:
    assert not FITS.is_valid(sample_status(**wrong))
