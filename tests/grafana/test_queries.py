"""Every query of the dashboards, executed on a real Prometheus that scrapes a real run: two attempts, checkpoints, evaluations.

What only a machine with GPUs or other trackers serves comes from a second target (tests/support/fake_exporter.py). Grafana is not
there; its variables are filled in here as it would: chosen values first, then "All".
"""

from __future__ import annotations

import math
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import httpx
import pytest

from tests.support import fake_exporter
from tests.support.dashboards import NAMES, Query, all_queries, filled_in, load, panels, variables
from tests.support.prometheus import Prometheus, running
from tests.support.sources import ROOT

pytestmark = [pytest.mark.slow(seconds=50), pytest.mark.timeout(240)]

Json = dict[str, Any]
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
FLAGS = """--target tiny --dataset.max-length 128 --batches.token-budget 128 --batches.epochs 100000 --max-steps 100000
    --drafter.block-size 4 --drafter.layers 1 --drafter.anchors 8 --watch.console off --watch.sample-seconds 0.25 --cpu-threads 1
    --evaluate.every 60 --evaluate.max-new-tokens 6 --checkpoint.every 60"""
# As $__rate_interval is where Prometheus scrapes every second, and a time in which all has happened.
WINDOW, SHOWN = "4s", 180
RULES = ROOT / "grafana" / "rules"

# Rows of Devices, and panels, that the run on a CPU cannot fill.
OF_GPUS = ("Can the GPU figures be trusted?", "Are the GPUs at work?", "Does it fit?", "Power, clocks, health")
OF_TRACKERS = ("Other trackers follow", "Messages that trackers did not take")
# Panel, query: why the run that is watched has nothing to show there.
EMPTY = {
    "Draftscope: Run / Verdict / A": "nothing bad happens to this run",
    "Draftscope: Run / Verdict / B": "which of B and C has something depends on what the run does just now; one of them must",
    "Draftscope: Run / Verdict / C": "which of B and C has something depends on what the run does just now; one of them must",
}


class Watched(NamedTuple):
    prometheus: Prometheus
    run: dict[str, str]
    """Values of the variables that choose the real run."""
    gpus: dict[str, str]
    """Those that choose the fake one."""
    everything: dict[str, str]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "conversations"
    splits = {"train": range(12), "held_out": range(12, 15)}
    datasets.DatasetDict(
        {name: datasets.Dataset.from_list([conversation(n) for n in numbers]) for name, numbers in splits.items()}
    ).save_to_disk(folder)
    return folder


def conversation(number: int) -> Json:
    answer = " ".join(WORDS[(number + place) % len(WORDS)] for place in range(4 + number % 3))
    return {"messages": [{"role": "user", "content": f"Say {number}."}, {"role": "assistant", "content": answer}]}


@pytest.fixture(scope="module")
def watched(data: Path, prometheus_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    trainer, own = free_port(), free_port()
    target = f"127.0.0.1:{trainer}"
    started = ["train", "--data", str(data), "--name", "watched", *FLAGS.split(), "--watch.port", str(trainer)]
    resumed = ["train", "--resume", "watched"]
    with (
        fake_exporter.served() as fake,
        running(prometheus_binary, folder / "prometheus", own, config(folder, target, fake)) as found,
    ):
        for attempt, words in enumerate((started, resumed)):
            with trained(folder, attempt, *words, "--runs", str(folder / "runs")) as process:
                eventually(f"attempt {attempt}", partial(found.now, evaluated(target, attempt)), process)
                if attempt:
                    time.sleep(6)  # until rates have what they need
                    yield Watched(found, *choices(found, target, fake))


@contextmanager
def trained(folder: Path, attempt: int, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A trainer that is ended by Ctrl-C; what it says is in `folder`."""
    with (folder / f"attempt-{attempt}.log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "trainer", *words], cwd=ROOT, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(2)
            process.wait(timeout=60)


def evaluated(target: str, restarts: int) -> str:
    """Has this attempt measured something?"""
    done = f'draftscope_evaluations_total{{outcome="done", instance="{target}"}} > 0'
    return f"{done} and on (instance) draftscope_restarts_total == {restarts}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def config(folder: Path, *targets: str) -> Json:
    """Prometheus' own, quick: rules every second, a median over what there is, and an alert that fires at once."""
    recording = (RULES / "recording.yml").read_text()
    assert "[6h:1m]" in recording
    rules = {"recording.yml": recording.replace("[6h:1m]", "[6h:1s]"), "alerts.yml": (RULES / "alerts.yml").read_text()}
    rules["test.yml"] = """
groups: [{name: test, rules: [{alert: DraftscopeTest, expr: "draftscope_run_info", labels: {severity: info}}]}]
"""
    for name, text in rules.items():
        (folder / name).write_text(text)
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{folder}/{name}" for name in rules],
        "scrape_configs": [{"job_name": "draftscope", "static_configs": [{"targets": list(targets)}]}],
    }


def eventually(what: str, look: Any, process: subprocess.Popen[bytes] | None = None, seconds: float = 90) -> None:
    """Wait until `look()` finds something; no longer than `process` lives."""
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        assert process is None or process.poll() is None, f"{what} ended by itself"
        time.sleep(0.5)


def choices(prometheus: Prometheus, target: str, fake: str) -> tuple[dict[str, str], ...]:
    fixed = {"__rate_interval": WINDOW, "__range": f"{SHOWN}s", "webapp": "http://127.0.0.1:8400"}
    (run_id,) = prometheus.label_values("run_id", f'draftscope_run_info{{instance="{target}"}}')
    every = fixed | dict.fromkeys(("job", "run", "instance", "stage", "gpu"), ".+")
    chosen = fixed | {"job": "draftscope", "run": re.escape(run_id), "instance": re.escape(target), "stage": "target", "gpu": "0"}
    chosen = {name: value.replace("\\", "\\\\") for name, value in chosen.items()}  # as within a PromQL string
    return chosen, {**chosen, "run": fake_exporter.RUN_ID, "instance": fake.replace(".", "\\\\.")}, every


QUERIES = all_queries()
PANELS = [query for query in QUERIES if query.kind == "panel"]


def of_gpus() -> set[str]:
    """Where the run on a CPU has nothing to show: `dashboard / panel`."""
    found, row = {f"Draftscope: Operations / {title}" for title in OF_TRACKERS}, ""
    for panel in load("devices")["panels"]:
        row = panel["title"] if panel["type"] == "row" else row
        if row in OF_GPUS and panel["type"] != "row":
            found.add(f"Draftscope: Devices / {panel['title']}")
    return found


def chosen_for(query: Query, watched: Watched) -> dict[str, str]:
    return watched.gpus if query.where.rpartition(" / ")[0] in of_gpus() else watched.run


def answer(query: Query, prometheus: Prometheus, values: dict[str, str]) -> list[Json]:
    """Series with at least one number; NaN is what an empty histogram says."""
    expr = filled_in(query.expr, values)
    found = prometheus.now(expr) if query.instant else prometheus.over(expr, SHOWN)
    return [series for series in found if any(math.isfinite(number) for number in numbers(series))]


def numbers(series: Json) -> list[float]:
    return [float(value) for _, value in series.get("values") or [series["value"]]]


@pytest.mark.parametrize("query", PANELS, ids=lambda query: query.where)
def test_a_panel_has_something_to_show(query: Query, watched: Watched) -> None:
    found = answer(query, watched.prometheus, chosen_for(query, watched))
    assert found or query.where in EMPTY


def test_one_of_the_verdicts_is_there(watched: Watched) -> None:
    verdicts = [query for query in PANELS if query.where.startswith("Draftscope: Run / Verdict /")]
    found = [series for query in verdicts for series in answer(query, watched.prometheus, watched.run)]
    assert [list(series["metric"]).count("words") for series in found] == [1]


@pytest.mark.parametrize("query", PANELS, ids=lambda query: query.where)
def test_a_panel_can_show_everything_that_prometheus_has(query: Query, watched: Watched) -> None:
    """All runs, instances, stages and GPUs at once: nothing is matched with two things."""
    assert answer(query, watched.prometheus, watched.everything) or query.where in EMPTY


@pytest.mark.parametrize("query", [query for query in QUERIES if query.kind == "variable"], ids=lambda query: query.where)
def test_a_variable_has_values(query: Query, watched: Watched) -> None:
    match = re.fullmatch(r"label_values\((.*), (\w+)\)", query.expr)
    assert match
    expected = {"job": "draftscope", "run": "watched", "gpu": "1"}
    name = query.where.rpartition("$")[2]
    found = watched.prometheus.label_values(match[2], filled_in(match[1], watched.everything))
    assert expected.get(name, f"127.0.0.1:{watched.run['instance'].rpartition(':')[2]}") in found


@pytest.mark.parametrize("query", [query for query in QUERIES if query.kind == "annotation"], ids=lambda query: query.where)
def test_an_annotation_has_something_to_mark(query: Query, watched: Watched) -> None:
    found = answer(query, watched.prometheus, watched.run)
    assert found
    dashboard = next(loaded for loaded in map(load, NAMES) if query.where.startswith(loaded["title"]))
    annotation = next(a for a in dashboard["annotations"]["list"] if query.where.endswith(f"/ {a['name']}"))
    labels = set(re.findall(r"\{\{(\w+)\}\}", annotation["titleFormat"] + annotation["textFormat"]))
    assert [series["metric"] for series in found if not labels <= series["metric"].keys()] == [], "Grafana would print the word"
    if annotation["useValueForTime"]:
        marked = [number / 1000 for series in found for number in numbers(series)]
        assert all(time.time() - SHOWN - 60 < moment <= time.time() for moment in marked), "in milliseconds"


@pytest.mark.parametrize("name", NAMES)
def test_values_are_within_their_axis_and_labels_within_their_series(name: str, watched: Watched) -> None:
    for panel in panels(load(name)):
        defaults = panel["fieldConfig"]["defaults"]
        low, high = defaults.get("min", -math.inf), defaults.get("max", math.inf)
        for target in panel["targets"]:
            query = Query(
                f"{load(name)['title']} / {panel['title']} / {target['refId']}", "panel", target["expr"], target["instant"]
            )
            found = answer(query, watched.prometheus, chosen_for(query, watched))
            values = [number for series in found for number in numbers(series) if math.isfinite(number)]
            assert all(low - 1e-9 <= number <= high + 0.02 for number in values), (panel["title"], min(values), max(values))
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert all(labels <= series["metric"].keys() for series in found), f"{panel['title']}: Grafana would print the word"
            if mapped := defaults.get("mappings"):
                assert {str(int(number)) for number in values} <= mapped[0]["options"].keys(), panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_tables_have_their_columns(name: str, watched: Watched) -> None:
    for panel in panels(load(name)):
        if panel["type"] == "table":
            (target,) = panel["targets"]
            query = Query(f"{load(name)['title']} / {panel['title']} / A", "panel", target["expr"], True)
            found = answer(query, watched.prometheus, chosen_for(query, watched))
            options = panel["transformations"][0]["options"]
            there = {label for series in found for label in series["metric"]}
            assert set(options["renameByName"]) <= there, f"{panel['title']}: {there}"
            assert there - set(options["renameByName"]) <= set(options["excludeByName"]), f"{panel['title']}: a column too many"


def test_the_shares_of_a_stage_add_up_to_one(watched: Watched) -> None:
    strip = next(panel for panel in panels(load("run")) if panel.get("repeat") == "stage")
    together = " + ".join(f"({target['expr']})" for target in strip["targets"])
    for stage in ("dataset", "batches", "target", "drafter"):
        (series,) = watched.prometheus.over(filled_in(together, watched.run | {"stage": stage}), 5)
        assert numbers(series) == pytest.approx([1] * len(series["values"]), abs=0.01), stage


def test_the_verdict_is_told_in_the_words_of_the_status(watched: Watched) -> None:
    def same() -> bool:
        said = watched.prometheus.now("instance:draftscope_verdict:words")[0]["metric"]["words"]
        sentence = httpx.get(f"http://127.0.0.1:{watched.run['instance'].rpartition(':')[2]}/status").json()["verdict"]["sentence"]
        return str(sentence).startswith(said)

    eventually("the same words", same, seconds=10)


def test_choosing_another_run_shows_nothing_of_this_one(watched: Watched) -> None:
    """Also what does not carry the run's id itself."""
    shown = [query for query in PANELS if "run_id" in query.expr]
    assert len(shown) > 100
    other = watched.run | {"run": "another"}
    assert [query.where for query in shown if answer(query, watched.prometheus, other)] == []


def test_every_exception_is_of_a_query_that_is_there() -> None:
    wheres = {query.where for query in PANELS}
    assert set(EMPTY) <= wheres
    assert of_gpus() <= {where.rpartition(" / ")[0] for where in wheres}
    assert all(variables(load(name)) for name in NAMES)
