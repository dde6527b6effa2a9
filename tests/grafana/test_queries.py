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
from collections.abc import Callable, Iterator
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

pytestmark = pytest.mark.timeout(240)

Json = dict[str, Any]
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
FLAGS = """--target tiny --dataset.max-length 128 --batches.token-budget 128 --batches.epochs 100000 --max-steps 100000
    --drafter.block-size 4 --drafter.layers 1 --drafter.anchors 8 --watch.console off --watch.sample-seconds 0.25 --cpu-threads 1
    --evaluate.every 60 --evaluate.max-new-tokens 6 --checkpoint.every 60"""
# As $__rate_interval is where Prometheus scrapes every second, and a time in which all has happened.
WINDOW, SHOWN = "4s", 180
RULES = ROOT / "grafana" / "rules"

# Rows of Devices, and panels, that the run on a CPU cannot fill.
OF_GPUS = ("Can the GPU figures be trusted?", "Are the GPUs busy?", "Does it fit?", "Power, clocks, health")
OF_TRACKERS = ("Trackers up", "Lines that trackers did not accept")
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


def empty(watched: Watched, values: Callable[[Query], dict[str, str]]) -> list[str]:
    """Panels that show nothing, though they are not in EMPTY."""
    return [query.where for query in PANELS if not answer(query, watched.prometheus, values(query)) and query.where not in EMPTY]


def test_every_panel_shows_something(watched: Watched) -> None:
    assert empty(watched, lambda query: chosen_for(query, watched)) == []


def test_every_panel_can_show_all_runs_instances_stages_and_gpus_at_once(watched: Watched) -> None:
    """No query fails because a series matches two others."""
    assert empty(watched, lambda _: watched.everything) == []


def test_one_of_the_verdicts_is_there(watched: Watched) -> None:
    verdicts = [query for query in PANELS if query.where.startswith("Draftscope: Run / Verdict /")]
    found = [series for query in verdicts for series in answer(query, watched.prometheus, watched.run)]
    assert [list(series["metric"]).count("words") for series in found] == [1]


def test_every_variable_has_values(watched: Watched) -> None:
    wanted = {"job": "draftscope", "run": "watched", "gpu": "1", "instance": watched.run["instance"].replace("\\", "")}
    missing = []
    for query in (query for query in QUERIES if query.kind == "variable"):
        series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query.expr).groups()
        found = watched.prometheus.label_values(label, filled_in(series, watched.everything))
        if wanted[query.where.rpartition("$")[2]] not in found:
            missing.append((query.where, found))
    assert missing == []


def test_every_annotation_marks_something(watched: Watched) -> None:
    wrong = []
    for dashboard in map(load, NAMES):
        for annotation in dashboard["annotations"]["list"]:
            found = answer(Query("", "annotation", annotation["expr"]), watched.prometheus, watched.run)
            labels = set(re.findall(r"\{\{(\w+)\}\}", annotation["titleFormat"] + annotation["textFormat"]))
            whole = found and all(labels <= series["metric"].keys() for series in found)  # else Grafana prints `{{label}}`
            times = [number / 1000 for series in found for number in numbers(series)] if annotation["useValueForTime"] else []
            if not whole or not all(time.time() - SHOWN - 60 < moment <= time.time() for moment in times):  # in milliseconds
                wrong.append((dashboard["title"], annotation["name"], found))
    assert wrong == []


def test_values_fit_their_axis_labels_their_legend_and_columns_their_table(watched: Watched) -> None:
    wrong = []
    for dashboard in map(load, NAMES):
        for panel in panels(dashboard):
            for target in panel["targets"]:
                where = f"{dashboard['title']} / {panel['title']} / {target['refId']}"
                query = Query(where, "panel", target["expr"], target["instant"])
                found = answer(query, watched.prometheus, chosen_for(query, watched))
                wrong += [f"{where}: {fault}" for fault in misfits(panel, target, found)]
    assert wrong == []


def misfits(panel: Json, target: Json, found: list[Json]) -> Iterator[str]:
    """Where the series of a query are not what the panel around them is made for."""
    defaults = panel["fieldConfig"]["defaults"]
    low, high = defaults.get("min", -math.inf) - 1e-9, defaults.get("max", math.inf) + 0.02
    values = [number for series in found for number in numbers(series) if math.isfinite(number)]
    if not all(low <= number <= high for number in values):
        yield f"{min(values)} to {max(values)} is outside of the axis"
    legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    if not all(legend <= series["metric"].keys() for series in found):
        yield f"Grafana would print the braces of {legend}"
    if mapped := defaults.get("mappings"):
        yield from (f"{number} has no words" for number in {str(int(number)) for number in values} - mapped[0]["options"].keys())
    if panel["type"] == "table":
        options = panel["transformations"][0]["options"]
        there = {label for series in found for label in series["metric"]}
        shown, hidden = set(options["renameByName"]), set(options["excludeByName"])
        if not shown <= there or not there - shown <= hidden:
            yield f"columns {shown}, hidden {hidden}, served {there}"


def test_the_shares_of_a_stage_add_up_to_one(watched: Watched) -> None:
    strip = next(panel for panel in panels(load("run")) if panel.get("repeat") == "stage")
    together = " + ".join(f"({target['expr']})" for target in strip["targets"])
    for stage in ("dataset", "batches", "target", "drafter"):
        (series,) = watched.prometheus.over(filled_in(together, watched.run | {"stage": stage}), 5)
        assert numbers(series) == pytest.approx([1] * len(series["values"]), abs=0.01), stage


def test_the_verdict_is_in_the_words_of_the_status(watched: Watched) -> None:
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
