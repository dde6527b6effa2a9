"""trainer/status_schema.py: what a real run says of itself fits what OpenAPI announces, from its first moment to its last."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema_rs
import pytest

from tests.fake_live import sample_status
from tests.test_live import STEP
from tests.test_sampler import Bench
from trainer.status_schema import STATUS_SCHEMA

FITS = jsonschema_rs.validator_for(STATUS_SCHEMA)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.record.close()


def test_every_moment_of_a_run(bench: Bench) -> None:
    moments = [bench.live.status()]
    bench.sampler.tick()
    moments.append(bench.live.status())
    bench.sampler.attach(bench.stages)  # type: ignore[arg-type]
    bench.run(5)
    moments.append(bench.live.status())
    bench.live.stepped(replace(STEP, step=6, loss=math.nan, grad_norm=math.inf), "non_finite_loss")
    bench.live.checkpointed(6, "there", 5, 0.1)
    moments.append(bench.live.status())
    bench.live.failed("target", "boom")
    moments.append(bench.live.status())
    assert [moment["state"] for moment in moments] == ["starting", "starting", "running", "running", "failed"]
    for moment in moments:
        assert [error.message for error in FITS.iter_errors(moment)] == []


def test_every_field_is_announced() -> None:
    assert set(STATUS_SCHEMA["properties"]) == set(sample_status())
    for name in ("run", "acceptance", "verdict", "checkpoint", "watching"):
        assert set(STATUS_SCHEMA["properties"][name]["properties"]) == set(sample_status()[name]), name
    for name in ("stages", "queues"):
        assert set(STATUS_SCHEMA["properties"][name]["items"]["properties"]) == set(sample_status()[name][0]), name


@pytest.mark.parametrize("wrong", [{"state": "dancing"}, {"step": -1}, {"loss": "much"}, {"warnings": [1]}, {"verdict": {}}])
def test_what_does_not_fit_is_found(wrong: dict[str, object]) -> None:
    assert FITS.is_valid(sample_status())
    assert not FITS.is_valid(sample_status(**wrong))
