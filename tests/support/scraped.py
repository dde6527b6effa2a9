"""A scrape of `/metrics`, taken apart: which series there are, and where they differ from what the catalogue declares."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from trainer.metrics.catalogue.index import CATALOGUE
from trainer.metrics.catalogue.metric import PREFIX, Metric

BY_NAME = {metric.full_name: metric for metric in CATALOGUE}
Series = tuple[str, tuple[tuple[str, str], ...]]


def series_of(text: str) -> set[Series]:
    """Every series by its name and labels, the `le` of buckets included."""
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def metric_of(name: str) -> Metric | None:
    """What declares a series of this name."""
    for part in ("", "_bucket", "_count", "_sum"):
        found = BY_NAME.get(name.removesuffix(part))
        if found is not None and (not part or (name.endswith(part) and found.kind == "histogram")):
            return found
    return None


def told(text: str) -> set[str]:
    """Names of the metrics, without prefix, that have at least one series."""
    return {metric.name for name, _ in series_of(text) if (metric := metric_of(name))}


def faults(text: str) -> list[str]:
    """Where the scrape is not what the catalogue says, in words; empty when it is."""
    found = []
    for metric in CATALOGUE:
        kind = "gauge" if metric.kind == "info" else metric.kind
        for line in (f"# TYPE {metric.full_name} {kind}\n", f"# HELP {metric.full_name} {metric.help}\n"):
            if text.count(line) != 1:
                found.append(f"{line!r} is there {text.count(line)} times")
    types = [line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE")]
    found += [f"{name} is not in the catalogue" for name in types if name not in BY_NAME]
    for name, labels in sorted(series_of(text)):
        metric, said = metric_of(name), dict(labels)
        if metric is None:
            found.append(f"{name} is not in the catalogue")
            continue
        expected = {*metric.label_names, *(["le"] if name.endswith("_bucket") else [])}
        if set(said) != expected:
            found.append(f"{name} has the labels {', '.join(said)}")
        for label, values in metric.known_values.items():
            if values and said.get(label) not in values:
                found.append(f"{name} says {label}={said.get(label)!r}, which is not declared")
    assert all(name.startswith(PREFIX) for name in BY_NAME)
    return found
