"""Every entry of the catalogue keeps to Prometheus' naming rules and to our own, and the rules find what breaks them."""

from collections import Counter
from dataclasses import replace
from typing import Any

from tests.support.metric_rules import NAMED_TWICE, complaints
from trainer.metrics.catalogue.index import CATALOGUE, GROUPS, step_columns
from trainer.metrics.catalogue.metric import OPEN_LABELS, Metric

GOOD = Metric(
    name="wait_seconds",
    kind="gauge",
    unit="seconds",
    labels=("queue",),
    values=(("a", "b"),),
    help="Time that was waited.",
    question="How long?",
)
LISTS = [
    value
    for group in GROUPS
    for name, value in vars(group).items()
    if name.isupper() and isinstance(value, tuple) and name not in ("CATALOGUE", "GROUPS")
]


def test_every_metric_keeps_the_rules() -> None:
    assert [f"{metric.name}: {complaint}" for metric in CATALOGUE for complaint in complaints(metric)] == []
    assert {metric.full_name.removeprefix("draftscope_") for metric in CATALOGUE} == {metric.name for metric in CATALOGUE}


def test_what_is_well_named_is_not_complained_of() -> None:
    assert complaints(GOOD) == []


BREAKS: list[tuple[dict[str, Any], str]] = [
    ({"name": "Wait_seconds"}, "snake_case"),
    ({"name": "draftscope_wait_seconds"}, "prefix"),
    ({"name": "wait_count", "unit": ""}, "Prometheus adds"),
    ({"name": "waits_total", "unit": ""}, "_total ends every counter"),
    ({"kind": "counter"}, "_total ends every counter"),
    ({"name": "wait_info", "unit": ""}, "_info ends every info"),
    ({"name": "wait_info", "unit": "", "kind": "info"}, "always 1"),
    ({"per_run": True, "labels": ("run_id",), "values": ()}, "not twice"),
    ({"name": "wait_milliseconds", "unit": "milliseconds"}, "no base unit"),
    ({"name": "wait_seconds_share", "unit": "seconds"}, "does not end its name"),
    ({"unit": ""}, "not declared"),
    ({"name": "wait_ms", "unit": ""}, "ms: base units only"),
    ({"name": "wait_percent", "unit": ""}, "percent: base units only"),
    ({"name": "power_milliwatts", "unit": ""}, "milliwatts: base units only"),
    ({"name": "memory_mb", "unit": ""}, "mb: base units only"),
    ({"name": "left_minutes", "unit": ""}, "minutes: base units only"),
    ({"name": "wait_ratio", "unit": ""}, "called one"),
    ({"help": "Share of time that was waited."}, "called one"),
    ({"help": "Unix time of the wait."}, "Unix seconds"),
    ({"name": "wait_timestamp_seconds"}, "Unix seconds"),
    ({"help": "Time that was waited"}, "full stop"),
    ({"question": "How long"}, "question mark"),
    ({"help": "time that was waited."}, "not a sentence"),
    ({"help": "Time that\nwas waited."}, "not a sentence"),
    ({"labels": ("step",)}, "not allowed"),
    ({"labels": ("Queue",)}, "not allowed"),
    ({"labels": ("queue", "a", "b", "c", "d"), "values": (("x",),) * 5}, "more than 4 labels"),
    ({"labels": ("queue", "queue"), "values": (("x",),) * 2}, "one twice"),
    ({"labels": ("queue", "stage")}, "for each label or for none"),
    ({"values": ()}, "neither listed nor bounded"),
    ({"labels": ("gpu",)}, "or both"),
    ({"values": (("a", "a"),)}, "there twice"),
    ({"values": (("A b",),)}, "snake_case, or there twice"),
    ({"values": (tuple(f"v{number}" for number in range(61)),)}, "61 children"),
    ({"name": "longest_queue_seconds"}, "in its name as well"),
    ({"buckets": (1.0,)}, "buckets are a histogram's"),
    ({"kind": "histogram"}, "buckets are a histogram's"),
    ({"kind": "histogram", "buckets": (2.0, 1.0)}, "do not rise"),
    ({"kind": "histogram", "buckets": (0.0, 1.0)}, "do not rise"),
    ({"kind": "histogram", "buckets": tuple(float(bound) for bound in range(1, 14))}, "13 buckets"),
    ({"kind": "histogram", "buckets": (1.0,), "name": "wait", "unit": ""}, "without a unit"),
]


def test_each_rule_finds_what_breaks_it() -> None:
    found = [(changed, words, complaints(replace(GOOD, **changed))) for changed, words in BREAKS]
    assert [case for case in found if not any(case[1] in complaint for complaint in case[2])] == []


def test_no_exception_outlives_its_metric() -> None:
    named = {(metric.name, label) for metric in CATALOGUE for label in metric.labels}
    assert NAMED_TWICE.keys() <= named
    assert {label for metric in CATALOGUE for label, values in metric.known_values.items() if not values} | {"run_id"} == set(
        OPEN_LABELS
    )


def test_every_list_of_words_belongs_to_a_label() -> None:
    used = {values for metric in CATALOGUE for values in metric.values}
    assert [words for words in LISTS if words not in used and ("", *words) not in used] == []


def test_no_number_is_declared_twice() -> None:
    assert [name for name, times in Counter(metric.name for metric in CATALOGUE).items() if times > 1] == []
    assert [column for column, times in Counter(column for column, _ in step_columns()).items() if times > 1] == []
    assert len(set(CATALOGUE)) == len(CATALOGUE)
