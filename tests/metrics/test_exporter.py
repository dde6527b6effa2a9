"""The catalogue, whole, as Prometheus reads it."""

import subprocess

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from trainer.metrics.catalogue.index import CATALOGUE
from trainer.metrics.catalogue.metric import Metric
from trainer.metrics.catalogue.run import GLOBAL_STEP, MAX_STEPS
from trainer.metrics.catalogue.stages import STAGE_ITEM_SECONDS
from trainer.metrics.catalogue.training import DROP_REASONS, DROPPED, GRAD_NORM, LOSS, STEP_SECONDS
from trainer.metrics.catalogue.watching import CONTROL_ACTIONS, HTTP_REFUSALS, WATCH_ERRORS, WATCH_PARTS
from trainer.metrics.exporter import READ_AT_SCRAPE, Distribution, Exporter, MetricSample


@pytest.fixture
def exporter() -> Exporter:
    return Exporter(CollectorRegistry(), "r")


def samples(exporter: Exporter) -> dict[str, float]:
    """Every sample by its name and labels, as in `name{label="value"}`."""
    text = exporter.exposition(None)[0].decode()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if not line.startswith("#")}


def everything() -> list[MetricSample]:
    at_scrape = [metric for metric in CATALOGUE if metric in READ_AT_SCRAPE]
    return [MetricSample(metric, a_value(metric), tuple("x" for _ in metric.labels)) for metric in at_scrape]


def a_value(metric: Metric) -> float | Distribution:
    return Distribution((1,) * (len(metric.buckets) + 1), 5.0) if metric.kind == "histogram" else 1.0


def test_every_metric_is_exposed_under_its_name_and_kind(exporter: Exporter) -> None:
    exporter.register(everything)
    text = exporter.exposition(None)[0].decode()
    for metric in CATALOGUE:
        kind = "gauge" if metric.kind == "info" else metric.kind
        assert f"# TYPE {metric.full_name} {kind}\n" in text
        assert f"# HELP {metric.full_name} {metric.help}\n" in text
    exposed = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    plain = {metric.full_name for metric in CATALOGUE if metric.kind != "histogram"}
    parts = {
        metric.full_name + part for metric in CATALOGUE if metric.kind == "histogram" for part in ("_bucket", "_count", "_sum")
    }
    assert exposed == plain | parts


def test_the_known_label_sets_are_there_from_the_start(exporter: Exporter) -> None:
    seen = samples(exporter)
    for reason in DROP_REASONS:
        assert seen[f'draftscope_samples_dropped_total{{reason="{reason}"}}'] == 0
    for part in WATCH_PARTS:
        assert seen[f'draftscope_watch_seconds_total{{part="{part}"}}'] == 0
    assert seen['draftscope_checkpoints_total{outcome="failed"}'] == 0
    assert seen["draftscope_step_duration_seconds_count"] == 0
    for reason in HTTP_REFUSALS:
        assert seen[f'draftscope_http_refused_total{{reason="{reason}"}}'] == 0
    for action in CONTROL_ACTIONS:
        assert seen[f'draftscope_control_requests_total{{action="{action}"}}'] == 0
    assert not any("_created" in name for name in seen)


def test_record_observes_and_add_counts(exporter: Exporter) -> None:
    exporter.record(STEP_SECONDS, 0.3)
    exporter.add(DROPPED, 2, "template")
    exporter.add(DROPPED, 1, "template")
    exporter.add(DROPPED, 1, "unheard_of")
    seen = samples(exporter)
    assert seen['draftscope_step_duration_seconds_bucket{le="0.25"}'] == 0
    assert seen['draftscope_step_duration_seconds_bucket{le="0.5"}'] == 1
    assert seen['draftscope_samples_dropped_total{reason="template"}'] == 3
    assert seen['draftscope_samples_dropped_total{reason="unheard_of"}'] == 1
    assert exporter.total(DROPPED, "template") == 3


def test_a_gauge_that_is_declared_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    depth = Metric(name="depth_tokens", kind="gauge", unit="tokens", labels=("side",), help="Depth.", question="How deep?")
    monkeypatch.setattr("trainer.metrics.exporter.CATALOGUE", (*CATALOGUE, depth))
    exporter = Exporter(CollectorRegistry())
    exporter.record(depth, 4.5, "left")
    assert samples(exporter)['draftscope_depth_tokens{side="left"}'] == 4.5


def test_the_runs_id_is_on_every_curve_and_on_nothing_else(exporter: Exporter) -> None:
    exporter.register(everything)
    text = exporter.exposition(None)[0].decode()
    known = {sample.name: sample.labels for family in text_string_to_metric_families(text) for sample in family.samples}
    marked = {name.removeprefix("draftscope_") for name, labels in known.items() if labels.get("run_id") == "r"}
    assert marked == {metric.name for metric in CATALOGUE if metric.per_run}
    assert known["draftscope_run_info"]["run_id"] == "x", "there it is a label like any other"


def test_a_curve_that_is_counted_here_carries_the_runs_id_too(monkeypatch: pytest.MonkeyPatch) -> None:
    depth = Metric(name="depth_tokens", kind="gauge", unit="tokens", labels=("side",), per_run=True, help="D.", question="?")
    monkeypatch.setattr("trainer.metrics.exporter.CATALOGUE", (*CATALOGUE, depth))
    exporter = Exporter(CollectorRegistry(), "r")
    exporter.record(depth, 4.5, "left")
    assert samples(exporter)['draftscope_depth_tokens{run_id="r",side="left"}'] == 4.5


def test_a_histogram_that_a_source_counts(exporter: Exporter) -> None:
    few = Distribution((2, 0, 1, 0, 0, 3), 400.5)
    exporter.register(lambda: [MetricSample(STAGE_ITEM_SECONDS, few, ("target",))])
    seen, name = samples(exporter), "draftscope_stage_item_duration_seconds"
    buckets = {bound: seen[f'{name}_bucket{{le="{bound}",stage="target"}}'] for bound in ("0.001", "0.01", "0.1", "10.0", "+Inf")}
    assert buckets == {"0.001": 2, "0.01": 2, "0.1": 3, "10.0": 3, "+Inf": 6}
    assert (seen[f'{name}_count{{stage="target"}}'], seen[f'{name}_sum{{stage="target"}}']) == (6, 400.5)


def test_the_wrong_verb_is_refused(exporter: Exporter) -> None:
    with pytest.raises(TypeError, match=r"draftscope_samples_dropped_total is a counter: use add\(\)"):
        exporter.record(DROPPED, 1, "template")
    with pytest.raises(TypeError, match=r"draftscope_step_duration_seconds is a histogram: use record\(\)"):
        exporter.add(STEP_SECONDS, 1)
    with pytest.raises(KeyError):
        exporter.record(LOSS, 1.0)


def test_sources_are_read_at_each_scrape(exporter: Exporter) -> None:
    value = [1.5]
    exporter.register(lambda: [MetricSample(LOSS, value[0]), MetricSample(GRAD_NORM, None)])
    assert samples(exporter)['draftscope_loss{run_id="r"}'] == 1.5
    value[0] = float("inf")
    assert samples(exporter)['draftscope_loss{run_id="r"}'] == float("inf")
    assert not any(name.startswith("draftscope_grad_norm") for name in samples(exporter)), "what is not known is absent, not 0"


def test_a_source_that_raises_costs_only_its_own_numbers(exporter: Exporter) -> None:
    def broken() -> list[MetricSample]:
        raise RuntimeError("gone")

    exporter.register(broken)
    exporter.register(lambda: [MetricSample(GLOBAL_STEP, 7)])
    assert samples(exporter)['draftscope_global_step{run_id="r"}'] == 7
    assert exporter.total(WATCH_ERRORS, "http") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        MetricSample(LOSS, 1.0, ("one too many",)),
        MetricSample(STAGE_ITEM_SECONDS, Distribution((1, 2), 3.0), ("target",)),
        MetricSample(STEP_SECONDS, 1.0),
    ],
    ids=["labels", "buckets", "not from a source"],
)
def test_a_source_that_says_nonsense_costs_only_its_own_numbers(exporter: Exporter, wrong: MetricSample) -> None:
    exporter.register(lambda: [MetricSample(GLOBAL_STEP, 7), wrong])
    exporter.register(lambda: [MetricSample(MAX_STEPS, 9)])
    seen = samples(exporter)
    assert seen['draftscope_max_steps{run_id="r"}'] == 9
    assert 'draftscope_global_step{run_id="r"}' not in seen, "all or nothing"
    assert exporter.total(WATCH_ERRORS, "http") == 1


def test_both_formats(exporter: Exporter) -> None:
    body, content_type = exporter.exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert b"# UNIT draftscope_step_duration_seconds seconds" in body
    assert exporter.exposition("")[1].startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize(
    ("accept", "version"),
    [
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
            "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            "1.0.0",
        ),
        ("application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "0.0.4"),
        ("text/html, */*", "0.0.4"),
    ],
    ids=["prometheus 3", "prometheus 2", "browser"],
)
def test_whoever_takes_plain_text_gets_it(exporter: Exporter, accept: str, version: str) -> None:
    body, content_type = exporter.exposition(accept)
    assert content_type.startswith(f"text/plain; version={version}")
    assert b"# TYPE draftscope_step_duration_seconds histogram" in body
    assert b"# EOF" not in body


def test_promtool_finds_nothing_to_say(exporter: Exporter, promtool: str) -> None:
    exporter.register(everything)
    result = subprocess.run([promtool, "check", "metrics"], input=exporter.exposition(None)[0], capture_output=True, timeout=30)
    assert (result.returncode, result.stdout + result.stderr) == (0, b"")
