"""Tables for docs/record.md, made from the types of the record's lines: their fields, docstrings and the metrics they feed."""

from __future__ import annotations

from docs.field_tables import code, described, table
from trainer.metrics.catalogue.index import step_columns
from trainer.record.format import EVENT_KINDS, EvaluationLine, StepLine, TelemetryLine, field_names


def steps() -> str:
    metrics = dict(step_columns())
    meant = described(StepLine, {column: metric.help for column, metric in metrics.items()})
    numbers = [code(metrics[name].full_name) if name in metrics else "" for name in field_names(StepLine)]
    rows = [(*row, number) for row, number in zip(meant, numbers, strict=True)]
    return table(("field", "type", "meaning", "in `/metrics`"), rows)


def telemetry() -> str:
    return table(("field", "type", "meaning"), described(TelemetryLine))


def evaluation() -> str:
    return table(("field", "type", "meaning"), described(EvaluationLine))


def events() -> str:
    rows = ((code(kind.name), kind.meaning, ", ".join(map(code, kind.fields))) for kind in EVENT_KINDS)
    return table(("event", "meaning", "own fields"), rows)
