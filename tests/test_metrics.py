"""Every entry of the catalogue keeps to Prometheus' naming rules and to our own."""

import re
from collections import Counter
from pathlib import Path

import pytest

from trainer.metrics import CATALOGUE, Metric, step_columns

UNITS = {"seconds", "bytes", "ratio", "tokens", "watts", "celsius"}  # base units; nothing in milli or per cent
# The step is a value and would make a series of every point; the others are Prometheus' own.
FORBIDDEN_LABELS = {"step", "epoch", "le", "quantile", "job", "instance", "rank"}
RECORD = Path(__file__).parent.parent / "docs" / "record.md"

every_metric = pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)


def without_total(metric: Metric) -> str:
    return metric.name.removesuffix("_total")


@every_metric
def test_name(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", metric.name)
    assert not metric.name.startswith("draftscope"), "the prefix is added by full_name"
    assert metric.full_name == f"draftscope_{metric.name}"
    assert metric.name.endswith("_total") == (metric.kind == "counter"), "_total belongs to counters, and only to them"
    assert metric.name.endswith("_info") == (metric.kind == "info"), "_info belongs to infos, and only to them"
    assert not metric.name.endswith(("_bucket", "_count", "_sum", "_created")), "a suffix that Prometheus adds itself"


@every_metric
def test_unit_ends_the_name(metric: Metric) -> None:
    assert metric.unit in UNITS | {""}
    if metric.unit:
        assert without_total(metric).endswith(f"_{metric.unit}") or without_total(metric) == metric.unit
    else:
        assert without_total(metric).rpartition("_")[2] not in UNITS, "the name ends with a unit that is not declared"


@every_metric
def test_sentences(metric: Metric) -> None:
    assert metric.help.endswith("."), "a help is a sentence"
    assert metric.question.endswith("?"), "a question ends with its mark"
    for sentence in (metric.help, metric.question):
        assert sentence == sentence.strip()
        assert sentence[0].isupper() or sentence[0].isdigit()
        assert "\n" not in sentence


@every_metric
def test_labels(metric: Metric) -> None:
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", label) for label in metric.labels)
    assert not FORBIDDEN_LABELS & set(metric.labels)
    assert len(set(metric.labels)) == len(metric.labels)


@every_metric
def test_buckets(metric: Metric) -> None:
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets)), "upper bounds rise"
    assert all(bound > 0 for bound in metric.buckets)
    assert len(metric.buckets) <= 15, "each bucket is a series"


def test_no_number_is_declared_twice() -> None:
    assert [name for name, times in Counter(metric.name for metric in CATALOGUE).items() if times > 1] == []
    assert [column for column, times in Counter(column for column, _ in step_columns()).items() if times > 1] == []


def test_columns_are_fields_of_the_record() -> None:
    steps = RECORD.read_text().partition("## steps.jsonl")[2].partition("\n## ")[0]
    fields = {name for line in steps.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert {column for column, _ in step_columns()} <= fields
