"""A new number of a step is one field of StepLine and one Metric: the record, the dashboard and the trackers then have it."""

import json
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from dashboard.record.run import Run
from dashboard.views import range_series
from docs import record_tables
from tests.support.lines import step_of
from tests.support.recorded import make_folder
from trainer.metrics.catalogue import index
from trainer.metrics.catalogue.metric import Metric
from trainer.record.format import STEPS, StepLine
from trainer.record.writer import RunRecord
from trainer.trackers.cursor import Cursor
from trainer.trackers.scalars import point_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LongerLine(StepLine):
    sharpness: float
    by_layer: tuple[float | None, ...]


SHARPNESS = Metric(
    name="sharpness_ratio", kind="gauge", unit="ratio", column="sharpness", help="How sharp the step was.", question="Is it flat?"
)
BY_LAYER = Metric(
    name="layer_ratio", kind="gauge", unit="ratio", labels=("layer",), column="by_layer", help="Of each layer.", question="Which?"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose steps have two columns more, known to the catalogue."""
    monkeypatch.setattr(index, "CATALOGUE", (*index.CATALOGUE, SHARPNESS, BY_LAYER))
    folder = make_folder(tmp_path / "a")
    record = RunRecord(folder, 0)
    for step in (1, 2, 3):
        usual = step_of(step)
        known = {field.name: getattr(usual, field.name) for field in fields(StepLine)}
        record.step(LongerLine(**known, sharpness=0.5 * step, by_layer=(0.25, None)), 1.0 * step)
    record.close()
    return folder


def test_it_is_a_column_of_the_record(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / STEPS).read_text().splitlines()]
    assert [(row["sharpness"], row["by_layer"]) for row in rows] == [(0.5, [0.25, None]), (1.0, [0.25, None]), (1.5, [0.25, None])]
    assert list(rows[0])[-2:] == ["sharpness", "by_layer"], "after those that were there before"


def test_it_is_a_series_of_the_dashboard(folder: Path) -> None:
    run = Run(folder)
    run.open()
    assert {"sharpness", "by_layer.1", "by_layer.2"} <= set(run.steps.column_names)
    (segment,) = range_series(run, "sharpness,by_layer.1", "step", None, None)["segments"]
    assert segment["series"]["sharpness"]["mean"].tolist() == [0.5, 1.0, 1.5]
    assert segment["series"]["by_layer.1"]["mean"].tolist() == [0.25, 0.25, 0.25]


def test_a_tracker_is_sent_it(folder: Path) -> None:
    points = [point_of(line.kind, line.fields) for line in Cursor(folder, "wandb").new_lines()]
    assert [point and point.values["sharpness_ratio"] for point in points] == [0.5, 1.0, 1.5]
    assert [point and point.values["layer_ratio/1"] for point in points] == [0.25, 0.25, 0.25]


def test_the_page_has_its_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_tables, "StepLine", LongerLine)
    assert "| `sharpness` | number | How sharp the step was. | `draftscope_sharpness_ratio` |" in record_tables.steps()
