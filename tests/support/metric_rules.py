"""The rules for a metric's name, unit, labels and words, more than `promtool check metrics` has: a metric in, complaints out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainer.metrics.catalogue.metric import OPEN_LABELS, Metric

UNITS = {"seconds", "bytes", "ratio", "tokens", "watts", "joules", "celsius", "hertz", "bytes_per_second"}
# Words for a quantity in another unit than the base unit, or for a unit spelt short.
OTHER_UNITS = """
    percent percentage pct milli micro nano kilo mega ms us ns sec secs second msec millis milliseconds microseconds minute minutes
    min mins hour hours day days bit bits byte kb mb gb tb kib mib gib kilobytes megabytes gigabytes watt kw mw kilowatts milliwatts
    joule kj mj kwh millijoules fahrenheit kelvin hz khz mhz ghz megahertz token permille fraction share
"""
PROMETHEUS_ADDS = ("_bucket", "_count", "_sum", "_created")
# The step is a value and would make a series of every point; the others come from discovery or from Prometheus itself.
FORBIDDEN_LABELS = {"step", "epoch", "seq", "path", "pid", "host", "error", "message", "le", "quantile", "job", "instance", "rank"}
MOST_LABELS, MOST_BUCKETS, MOST_CHILDREN = 4, 12, 60
# A label's name within the metric's is said twice, unless the metric is about that thing and so begins with its name.
NAMED_TWICE = {
    ("run_state", "state"): "a state is all that it tells",
    ("gpu_clock_hertz", "clock"): "a clock is what is measured",
    ("measured_position_acceptance_ratio", "position"): "the measured kin of position_accuracy_ratio",
}


def complaints(metric: Metric) -> list[str]:
    """What is wrong with it, in sentences; empty when all is well."""
    return [*_name(metric), *_kind(metric), *_unit(metric), *_words(metric), *_labels(metric), *_buckets(metric)]


def _name(metric: Metric) -> Iterator[str]:
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", metric.name):
        yield "its name is not in snake_case"
    if metric.name.startswith("draftscope"):
        yield "the prefix is added by full_name"
    if metric.name.endswith(PROMETHEUS_ADDS):
        yield "its name ends in what Prometheus adds itself"


def _kind(metric: Metric) -> Iterator[str]:
    for suffix, kind in (("_total", "counter"), ("_info", "info")):
        if metric.name.endswith(suffix) != (metric.kind == kind):
            yield f"{suffix} ends every {kind}, and nothing else"
    if metric.kind == "info" and not (metric.labels and metric.help.startswith("Always 1")):
        yield "an info is always 1, and its labels are what it says"
    if metric.per_run and (metric.kind in ("info", "histogram") or "run_id" in metric.labels):
        yield "run_id is for curves: no info, no histogram, and not twice"


def _unit(metric: Metric) -> Iterator[str]:
    bare = metric.name.removesuffix("_total").removesuffix("_info")
    words = bare.split("_")
    if metric.unit not in UNITS | {""}:
        yield f"{metric.unit} is no base unit"
    if metric.unit and not (bare == metric.unit or bare.endswith(f"_{metric.unit}")):
        yield "its unit does not end its name"
    if not metric.unit and words[-1] in UNITS:
        yield "its name ends in a unit that is not declared"
    if found := set(OTHER_UNITS.split()) & set(words) - set(metric.unit.split("_")):
        yield f"{', '.join(sorted(found))}: base units only, and in full"
    if (metric.unit == "ratio") != ("ratio" in words) or (metric.help.startswith("Share of") and metric.unit != "ratio"):
        yield "a share is a ratio from 0 to 1, and is called one"
    told_as_time = metric.help.startswith("Unix time")
    if told_as_time != bare.endswith("_timestamp_seconds") or ("timestamp" in words and metric.kind != "gauge"):
        yield "a moment is a gauge in Unix seconds, called _timestamp_seconds"


def _words(metric: Metric) -> Iterator[str]:
    if not metric.help.endswith(".") or not metric.question.endswith("?"):
        yield "its help ends with a full stop, its question with a question mark"
    for sentence in (metric.help, metric.question):
        if sentence != " ".join(sentence.split()) or not re.match(r"[A-Z0-9]", sentence):
            yield f"not a sentence on one line: {sentence!r}"


def _labels(metric: Metric) -> Iterator[str]:
    if len(metric.label_names) > MOST_LABELS or len(set(metric.label_names)) != len(metric.label_names):
        yield f"it has more than {MOST_LABELS} labels, or one twice"
    if metric.values and len(metric.values) != len(metric.labels):
        yield "values are given for each label or for none"
        return
    children = 1
    for label, values in metric.known_values.items():
        children *= len(values) or 1
        if not re.fullmatch(r"[a-z]+(_[a-z]+)*", label) or label in FORBIDDEN_LABELS:
            yield f"label {label} is not allowed"
        if bool(values) == (label in OPEN_LABELS):
            yield f"what label {label} can say is neither listed nor bounded in OPEN_LABELS, or both"
        if len(set(values)) != len(values) or not all(re.fullmatch(r"[a-z0-9_]*", value) for value in values):
            yield f"a value of label {label} is not in snake_case, or there twice"
        twice = metric.kind != "info" and label in metric.name.split("_")[1:]
        if twice and (metric.name, label) not in NAMED_TWICE:
            yield f"label {label} is in its name as well"
    if children > MOST_CHILDREN:
        yield f"{children} children, more than {MOST_CHILDREN}"


def _buckets(metric: Metric) -> Iterator[str]:
    if bool(metric.buckets) != (metric.kind == "histogram"):
        yield "buckets are a histogram's, and it has some"
    if list(metric.buckets) != sorted(set(metric.buckets)) or any(bound <= 0 for bound in metric.buckets):
        yield "its buckets do not rise from above 0"
    if len(metric.buckets) > MOST_BUCKETS:
        yield f"{len(metric.buckets)} buckets, each a series, more than {MOST_BUCKETS}"
    if metric.kind == "histogram" and not metric.unit:
        yield "a histogram without a unit"
