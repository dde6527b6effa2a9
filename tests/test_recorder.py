"""The catalogue, whole, as Prometheus reads it."""

import subprocess

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from trainer import metrics
from trainer.metrics import CATALOGUE, Metric
from trainer.recorder import READ_AT_SCRAPE, Reading, Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(CollectorRegistry())


def samples(recorder: Recorder) -> dict[str, float]:
    """Every sample by its name and labels, as in `name{label="value"}`."""
    text = recorder.exposition(None)[0].decode()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if not line.startswith("#")}


def everything() -> list[Reading]:
    return [Reading(metric, 1.0, tuple("x" for _ in metric.labels)) for metric in CATALOGUE if metric in READ_AT_SCRAPE]


def test_every_metric_is_exposed_under_its_name_and_kind(recorder: Recorder) -> None:
    recorder.read_from(everything)
    text = recorder.exposition(None)[0].decode()
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


def test_the_known_label_sets_are_there_from_the_start(recorder: Recorder) -> None:
    seen = samples(recorder)
    for reason in metrics.DROP_REASONS:
        assert seen[f'draftscope_samples_dropped_total{{reason="{reason}"}}'] == 0
    for part in metrics.WATCH_PARTS:
        assert seen[f'draftscope_watch_seconds_total{{part="{part}"}}'] == 0
    assert seen['draftscope_checkpoints_total{outcome="failed"}'] == 0
    assert seen["draftscope_step_duration_seconds_count"] == 0
    assert not any("_created" in name for name in seen)


def test_record_observes_and_add_counts(recorder: Recorder) -> None:
    recorder.record(metrics.STEP_SECONDS, 0.3)
    recorder.add(metrics.DROPPED, 2, "template")
    recorder.add(metrics.DROPPED, 1, "template")
    recorder.add(metrics.DROPPED, 1, "unheard_of")
    seen = samples(recorder)
    assert seen['draftscope_step_duration_seconds_bucket{le="0.25"}'] == 0
    assert seen['draftscope_step_duration_seconds_bucket{le="0.5"}'] == 1
    assert seen['draftscope_samples_dropped_total{reason="template"}'] == 3
    assert seen['draftscope_samples_dropped_total{reason="unheard_of"}'] == 1
    assert recorder.total(metrics.DROPPED, "template") == 3


def test_a_gauge_that_is_declared_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    depth = Metric(name="depth_tokens", kind="gauge", unit="tokens", labels=("side",), help="Depth.", question="How deep?")
    monkeypatch.setattr("trainer.recorder.CATALOGUE", (*CATALOGUE, depth))
    recorder = Recorder(CollectorRegistry())
    recorder.record(depth, 4.5, "left")
    assert samples(recorder)['draftscope_depth_tokens{side="left"}'] == 4.5


def test_the_wrong_verb_is_refused(recorder: Recorder) -> None:
    with pytest.raises(TypeError, match=r"draftscope_samples_dropped_total is a counter: use add\(\)"):
        recorder.record(metrics.DROPPED, 1, "template")
    with pytest.raises(TypeError, match=r"draftscope_step_duration_seconds is a histogram: use record\(\)"):
        recorder.add(metrics.STEP_SECONDS, 1)
    with pytest.raises(KeyError):
        recorder.record(metrics.LOSS, 1.0)


def test_sources_are_read_at_each_scrape(recorder: Recorder) -> None:
    value = [1.5]
    recorder.read_from(lambda: [Reading(metrics.LOSS, value[0]), Reading(metrics.GRAD_NORM, None)])
    assert samples(recorder)["draftscope_loss"] == 1.5
    value[0] = float("inf")
    assert samples(recorder)["draftscope_loss"] == float("inf")
    assert "draftscope_grad_norm" not in samples(recorder), "what is not known is absent, not 0"


def test_a_source_that_raises_costs_only_its_own_numbers(recorder: Recorder) -> None:
    def broken() -> list[Reading]:
        raise RuntimeError("gone")

    recorder.read_from(broken)
    recorder.read_from(lambda: [Reading(metrics.GLOBAL_STEP, 7)])
    assert samples(recorder)["draftscope_global_step"] == 7
    assert recorder.total(metrics.WATCH_ERRORS, "http") == 1


def test_both_formats(recorder: Recorder) -> None:
    body, content_type = recorder.exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert b"# UNIT draftscope_step_duration_seconds seconds" in body
    assert recorder.exposition("")[1].startswith("text/plain; version=0.0.4")


def test_promtool_finds_nothing_to_say(recorder: Recorder, promtool: str) -> None:
    recorder.read_from(everything)
    result = subprocess.run([promtool, "check", "metrics"], input=recorder.exposition(None)[0], capture_output=True, timeout=30)
    assert (result.returncode, result.stdout + result.stderr) == (0, b"")
