"""The budgets of `/metrics`, and its sets of labels: what is there from the start, what comes later, and that nothing else does."""

import http.client
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from tests.benchmarks.exposition import MOST_SECONDS, MOST_SERIES, plain_gauges, scrape, served
from tests.support.full_rank import full_rank
from tests.support.scraped import faults, metric_of, series_of, told
from trainer.metrics.catalogue.index import CATALOGUE
from trainer.metrics.catalogue.watching import EVENT_STREAMS, TRACKER_DROPPED, TRACKER_UP
from trainer.metrics.page import series

# docs/metrics.md, "Absent".
OF_A_STEP = {"loss", "learning_rate", "grad_norm", "position_accuracy_ratio", "estimated_acceptance_length_tokens"}
OF_AN_EVALUATION = {
    "measured_acceptance_length_tokens",
    "measured_position_acceptance_ratio",
    "held_out_estimated_acceptance_length_tokens",
    "last_evaluation_step",
}
OF_A_PACE = {"remaining_seconds"}
OF_A_TRACKER = {TRACKER_UP.name, TRACKER_DROPPED.name}
ELSEWHERE = OF_A_TRACKER | {EVENT_STREAMS.name}  # told by parts that `full_rank` has not
OF_A_GPU = {metric.name for metric in CATALOGUE if "gpu" in metric.labels}


def text_of(folder: Path, gpus: int = 0, *, begun: bool = True) -> str:
    with full_rank(folder, gpus, begun=begun) as live:
        return live.exporter.exposition(None)[0].decode()


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_a_rank_keeps_to_its_number_of_series(tmp_path: Path, gpus: int) -> None:
    foreseen = sum(series(metric, gpus=gpus) for metric in CATALOGUE if metric.name not in ELSEWHERE)
    assert len(series_of(text_of(tmp_path, gpus))) == foreseen, "so docs/metrics.md is right"
    assert foreseen + series(EVENT_STREAMS, gpus=gpus) <= MOST_SERIES


def test_a_scrape_is_what_the_catalogue_says(tmp_path: Path) -> None:
    text = text_of(tmp_path, 2)
    assert faults(text) == []
    assert {metric.name for metric in CATALOGUE} - told(text) == ELSEWHERE


def test_what_is_not_as_declared_is_found() -> None:
    good = "# HELP draftscope_loss x\n# TYPE draftscope_loss gauge\n"
    assert "draftscope_los is not in the catalogue" in faults(good + "# TYPE draftscope_los gauge\ndraftscope_los 1\n")
    assert "draftscope_loss has the labels step" in faults(good + 'draftscope_loss{step="3"} 1\n')
    state = '# TYPE draftscope_run_state gauge\ndraftscope_run_state{state="asleep"} 1\n'
    assert "draftscope_run_state says state='asleep', which is not declared" in faults(state)
    assert any(fault.startswith("'# TYPE draftscope_grad_norm gauge") for fault in faults(good))


def test_every_set_of_labels_is_there_from_the_start_but_for_what_nobody_knows_yet(tmp_path: Path) -> None:
    (tmp_path / "fresh").mkdir()
    fresh, full = series_of(text_of(tmp_path / "fresh", begun=False)), series_of(text_of(tmp_path, 2))
    late = {metric.name for name, labels in full - fresh if (metric := metric_of(name)) if ("backend", "nvml") not in labels}
    assert late == OF_A_STEP | OF_A_PACE | OF_AN_EVALUATION | OF_A_GPU
    gone = {name for name, labels in fresh - full if ("backend", "none") not in labels}
    assert gone == set(), "and nothing goes"


def fastest(*calls: Callable[[], object], times: int = 30) -> list[float]:
    """CPU seconds of this thread for each call, taken in turns: what else the machine does adds to all, and to some rounds not."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(times):
        for call, seconds in zip(calls, found, strict=True):
            began = time.thread_time()
            call()
            seconds.append(time.thread_time() - began)
    return [min(seconds) for seconds in found]


def test_a_scrape_costs_about_as_much_as_plain_gauges_would(tmp_path: Path) -> None:
    with full_rank(tmp_path, 2) as live:
        plain = plain_gauges(MOST_SERIES)
        ours, theirs = fastest(lambda: scrape(live), lambda: generate_latest(plain))
    assert ours < 3 * theirs, f"{ours * 1e3:.1f} ms, plain gauges {theirs * 1e3:.1f} ms; measured in 2026: 1.6 times"
    assert ours < MOST_SECONDS


def test_healthz_does_not_wait_for_acknowledgements(tmp_path: Path) -> None:
    """On a kept connection a small answer in two packets waits 40 ms for the first one's, unless they are sent at once."""
    with full_rank(tmp_path) as live, served(live) as address:
        connection = http.client.HTTPConnection(address, timeout=10)
        times = []
        for _ in range(15):
            began = time.perf_counter()
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
            times.append(time.perf_counter() - began)
        connection.close()
    assert statistics.median(times) < 0.03
