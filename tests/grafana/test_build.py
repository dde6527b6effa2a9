"""grafana/: the committed dashboards are what would be built now, complete, and laid out without overlap."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana import build, dashboard, operations_dashboard, queries, run_rows, units
from grafana.panels import Panel, Target, lines, stat
from tests.support.dashboards import NAMES, all_queries, load, panels, selectors, variables
from tests.support.dashboards import queries as queries_of
from tests.support.sources import ROOT
from trainer.metrics.catalogue.gpus import GPU_CLOCK, GPU_ENERGY, GPU_INFO, GPU_PCIE, GPU_POWER, GPU_TEMPERATURE
from trainer.metrics.catalogue.index import CATALOGUE
from trainer.metrics.catalogue.metric import Metric
from trainer.metrics.catalogue.run import HEADROOM, RUN_INFO, STATE
from trainer.metrics.catalogue.stages import QUEUE_BYTES, STAGE_SECONDS
from trainer.metrics.catalogue.training import LOSS, TOKENS

Json = dict[str, Any]
EACH = pytest.mark.parametrize("name", NAMES)
SUFFIX = re.compile(r"_(bucket|sum|count)$")


def test_the_dashboards_are_fresh() -> None:
    assert build.main(["--check"]) == 0, "run `make format`"


def test_a_stale_one_is_told_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "FOLDER", tmp_path / "dashboards")
    assert build.main(["--check"]) == 1
    assert "devices.json, operations.json, run.json differ" in capsys.readouterr().err
    assert build.main([]) == 0
    assert build.main(["--check"]) == 0
    (build.FOLDER / "run.json").write_text("{}")
    (build.FOLDER / "old.json").write_text("{}")
    assert build.stale() == ["old.json", "run.json"]
    assert build.main([]) == 0
    assert sorted(path.name for path in build.FOLDER.iterdir()) == ["devices.json", "operations.json", "run.json"]


def test_unknown_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--chek"]) == 2
    assert "--chek" in capsys.readouterr().err


@EACH
def test_it_is_a_classic_dashboard_for_provisioning(name: str) -> None:
    found = load(name)
    assert found["uid"] == f"draftscope-{name}"
    assert found["schemaVersion"] <= 42
    assert found["editable"] is False
    assert (found["graphTooltip"], found["refresh"], found["timezone"], found["tags"]) == (1, "5s", "browser", ["draftscope"])
    assert "id" not in found, "Grafana gives it"
    assert not {"__inputs", "__requires", "spec"} & found.keys(), "exported for sharing, or of another kind"


@EACH
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    found = load(name)["panels"]
    assert [panel["id"] for panel in found] == list(range(1, len(found) + 1))
    assert [title for title, count in Counter(panel["title"] for panel in found).items() if count > 1] == []
    for panel in found:
        assert 0 <= panel["gridPos"]["x"] <= 24 - panel["gridPos"]["w"]
    assert [(one["title"], other["title"]) for one, other in combinations(found, 2) if overlap(one, other)] == []


def overlap(one: Json, other: Json) -> bool:
    a, b = one["gridPos"], other["gridPos"]
    return a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"] and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]


@EACH
def test_every_panel_says_why_it_may_be_empty(name: str) -> None:
    for panel in panels(load(name)):
        words = panel["fieldConfig"]["defaults"]["noValue"]
        assert len(words.split()) >= 5, f"{panel['title']}: {words!r} is no reason"


@EACH
def test_descriptions_name_the_metrics_that_are_asked_for(name: str) -> None:
    joined_to = {RUN_INFO.full_name, GPU_INFO.full_name}
    for panel in panels(load(name)):
        asked = {SUFFIX.sub("", s.name) for target in panel["targets"] for s in selectors(target["expr"])}
        named = set(re.findall(r"`([\w:]+)`: ", panel["description"]))
        also = {"draftscope_verdict"} if panel["title"] == "Verdict" else set()
        assert asked - joined_to <= named <= asked | also, panel["title"]


def test_every_metric_is_shown_somewhere() -> None:
    asked = {SUFFIX.sub("", selector.name) for query in all_queries() for selector in selectors(query.expr)}
    assert [metric.full_name for metric in CATALOGUE if metric.full_name not in asked] == []


def test_queries_use_values_that_their_labels_have() -> None:
    """A misspelt value in one branch of an `or` leaves no panel empty, so test_queries.py cannot see it."""
    names = {metric.full_name: metric for metric in CATALOGUE}
    wrong = []
    for query in all_queries():
        for selector in selectors(query.expr):
            metric = names.get(SUFFIX.sub("", selector.name))
            for matcher in selector.matchers if metric else ():
                label, _, value = matcher.partition('="')
                known = metric.known_values.get(label, ())
                if value and known and value.rstrip('"') not in known:
                    wrong.append((query.where, matcher))
    assert wrong == []


def test_a_run_is_told_in_every_query_of_the_trainer() -> None:
    """By its own label, or joined to the series that has it."""
    names = {metric.full_name for metric in CATALOGUE}
    for query in all_queries():
        found = selectors(query.expr)
        if query.kind != "variable" and any(SUFFIX.sub("", selector.name) in names for selector in found):
            assert any('run_id=~"$run"' in selector.matchers for selector in found), query.where


@pytest.mark.parametrize(
    ("metric", "unit", "rate"),
    [
        (STAGE_SECONDS, "s", "percentunit"),
        (GPU_ENERGY, "joule", "watt"),
        (TOKENS, "short", "cps"),
        (GPU_POWER, "watt", "cps"),
        (GPU_CLOCK, "hertz", "cps"),
        (GPU_PCIE, "Bps", "cps"),
        (HEADROOM, "percentunit", "cps"),
        (QUEUE_BYTES, "bytes", "Bps"),
        (GPU_TEMPERATURE, "celsius", "cps"),
        (LOSS, "short", "cps"),
    ],
)
def test_units(metric: Metric, unit: str, rate: str) -> None:
    assert units.unit_of(metric) == unit
    assert units.rate_unit_of(metric) == rate


def test_every_unit_of_the_catalogue_has_one_of_grafanas() -> None:
    for metric in CATALOGUE:
        assert units.unit_of(metric)


FITS = {
    "_seconds": {"s"},
    "_bytes": {"bytes"},
    "_ratio": {"percentunit"},
    "_celsius": {"celsius"},
    "_watts": {"watt"},
    "_hertz": {"hertz"},
}


@EACH
def test_units_fit_what_is_drawn(name: str) -> None:
    """Where one series is drawn as it is: no rate, no division, nothing counted or mapped."""
    for panel in panels(load(name)):
        defaults = panel["fieldConfig"]["defaults"]
        for target in panel["targets"]:
            if target["expr"].endswith("* 1000"):
                assert defaults["unit"].startswith("dateTime"), panel["title"]
                continue
            drawn = re.fullmatch(r"(?:\w+ by \([\w, ]+\) \()?(draftscope_\w+)\{[^}]*\}( \* on .*)?\)?", target["expr"])
            suffix = next((end for end in FITS if drawn and drawn[1].endswith(end)), None)
            if suffix:
                assert defaults["unit"] in FITS[suffix], f"{panel['title']}: {drawn[1]}"
        if defaults["unit"] == "percentunit" and panel["title"] not in ("Headroom", "Time spent on watching"):
            assert (defaults["min"], defaults["max"]) == (0, 1), panel["title"]


@EACH
def test_variables(name: str) -> None:
    found = variables(load(name))
    extra = {"run": ["stage"], "devices": ["gpu"], "operations": []}[name]
    assert list(found) == ["datasource", "job", "run", "instance", *extra, "webapp"]
    assert found["job"]["current"]["value"] == ["draftscope"]
    assert found["datasource"]["current"]["value"] == "prometheus"
    asked = " ".join(query.expr for query in queries_of(load(name)) if query.kind == "panel")
    unused = [choice for choice in ("job", "run", "instance", *extra) if f"${choice}" not in asked]
    assert unused == [], "who chooses them changes nothing"
    if "stage" in extra:
        assert found["stage"]["query"] == "dataset,batches,target,drafter", "in the order of the road"
    for variable in found.values():
        if variable["type"] == "query":
            assert (variable["multi"], variable["includeAll"], variable["refresh"]) == (True, True, 2)


@EACH
def test_links_lead_to_the_others_and_to_the_web_app(name: str) -> None:
    dashboards, app = load(name)["links"]
    assert (dashboards["type"], dashboards["tags"]) == ("dashboards", ["draftscope"])
    assert (dashboards["includeVars"], dashboards["keepTime"]) == (True, True)
    assert app["url"] == "${webapp:raw}"
    assert variables(load(name))["webapp"]["query"] == "http://127.0.0.1:8400"


def test_curves_lead_to_their_run_in_the_web_app_and_say_what_they_are_drawn_against() -> None:
    run = {panel["title"]: panel for panel in panels(load("run"))}
    for title in ("Loss over time", "Acceptance length, estimated and measured", "Learning rate"):
        (link,) = run[title]["fieldConfig"]["defaults"]["links"]
        assert link["url"] == "${webapp:raw}/runs/${__field.labels.run_id}"
        assert "web app" in run[title]["description"]


@EACH
def test_annotations(name: str) -> None:
    found = {annotation["name"]: annotation for annotation in load(name)["annotations"]["list"]}
    assert list(found) == ["Checkpoints", "Resumes", "Evaluations", "Alerts"]
    for annotation in found.values():
        assert annotation["target"]["expr"] == annotation["expr"]
        assert annotation["titleFormat"]
        assert annotation["textFormat"]
        # Grafana takes a value for milliseconds; before the first checkpoint it would be 1970.
        assert annotation["useValueForTime"] is annotation["expr"].endswith("* 1000")
    assert "> 0)" in found["Checkpoints"]["expr"]


def test_provisioning_leads_to_what_is_there() -> None:
    folder = ROOT / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert (source["uid"], source["type"], source["editable"]) == ("prometheus", "prometheus", False)
    (provider,) = yaml.safe_load((folder / "dashboards" / "provider.yml").read_text())["providers"]
    assert (provider["allowUiUpdates"], provider["disableDeletion"]) == (False, True)
    scraped = yaml.safe_load((ROOT / "docker" / "prometheus" / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped


def test_rows_wrap_where_a_line_is_full() -> None:
    wide, small = (Target("up", "x"),), {"shows": [queries.UP], "unit": "none", "no_data": "none"}
    made = [lines("a", *wide, **small, width=16, height=8), *(stat(title, *wide, **small, width=8) for title in "bc")]
    placed = dashboard.place([dashboard.Row("one", made), dashboard.Row("two", made[1:])])
    grid = [(panel["title"], panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in placed]
    assert grid == [("one", 0, 0), ("a", 0, 1), ("b", 16, 1), ("c", 0, 9), ("two", 0, 13), ("b", 0, 14), ("c", 8, 14)]


def test_a_number_stands_for_each_case() -> None:
    expr = queries.chosen_number(STATE, [('state="a"',), ('state="b"',)])
    assert '1 * (draftscope_run_state{job=~"$job", instance=~"$instance", state="a"} == 1) or 2 * (' in expr
    assert expr.endswith("group_left (run_id) " + queries.RUN_INFO)


def test_a_table_shows_a_dash_where_a_label_is_missing() -> None:
    assert queries.filled("x", "a", "b") == 'label_replace(label_replace(x, "a", "-", "a", ""), "b", "-", "b", "")'


def test_the_shares_of_a_stage_are_stacked_and_the_stage_is_repeated() -> None:
    strip: Panel = run_rows.STRIP
    assert (strip.repeat, strip.custom["stacking"]["mode"], strip.max) == ("stage", "normal", 1)
    assert [target.legend for target in strip.targets] == ["busy", "waiting for input", "waiting for output"]
    assert len(set(strip.colors.values())) == 3


def test_what_is_known_of_no_run_is_joined_to_none() -> None:
    assert "run_info" not in queries.values(queries.UP)
    assert operations_dashboard.OPERATIONS.choices == []
