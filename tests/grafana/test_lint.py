"""The dashboards keep the rules of Grafana's own linter, and the rules find what breaks them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import dashboard_lint
from tests.support.dashboards import NAMES, load, panels, variables

Json = dict[str, Any]

# Rule, panel: why it is right all the same.
EXCUSED = {
    ("target-job-rule", "Alerts"): "an alert about a target that is missing has no job; an empty one is asked for as well",
    (
        "target-instance-rule",
        "Alerts",
    ): "an alert about a target that is missing has no instance; an empty one is asked for as well",
    ("target-job-rule", "Alert rules active"): "the alert that always fires is about no target",
    ("target-instance-rule", "Alert rules active"): "the alert that always fires is about no target",
    ("target-counter-agg-rule", "Earlier resumes"): "it begins at the number of attempts before, so its value is the answer",
}


@pytest.mark.parametrize("name", NAMES)
def test_the_dashboard_keeps_the_rules(name: str) -> None:
    assert [found for found in dashboard_lint.complaints(load(name)) if (found.rule, found.where) not in EXCUSED] == []


def test_every_excuse_is_needed() -> None:
    found = {(complaint.rule, complaint.where) for name in NAMES for complaint in dashboard_lint.complaints(load(name))}
    assert found == set(EXCUSED)


def query(expr: str) -> Callable[[Json], None]:
    return lambda dashboard: panels(dashboard)[0]["targets"][0].update(expr=expr)


BREAKS: dict[str, Callable[[Json], Any]] = {
    "template-datasource-rule": lambda d: variables(d)["datasource"].update(name="source"),
    "template-job-rule": lambda d: variables(d)["job"].update(multi=False),
    "template-instance-rule": lambda d: variables(d)["instance"].update(allValue=".*"),
    "template-label-promql-rule": lambda d: variables(d)["run"].update(query="label_value(draftscope_run_info, run_id)"),
    "template-on-time-change-reload-rule": lambda d: variables(d)["run"].update(refresh=1),
    "panel-datasource-rule": lambda d: panels(d)[0].update(datasource={"type": "prometheus", "uid": "prometheus"}),
    "panel-title-description-rule": lambda d: panels(d)[0].update(description=""),
    "panel-units-rule": lambda d: panels(d)[0]["fieldConfig"]["defaults"].update(unit="seconds"),
    "target-promql-rule": query('up{job=~"$job", instance=~"$instance", run_id="$runs"}'),
    "target-rate-interval-rule": query('rate(draftscope_steps_total{job=~"$job", instance=~"$instance"}[5m])'),
    "target-job-rule": query('up{instance=~"$instance"}'),
    "target-instance-rule": query('sum (up{job=~"$job"})'),
    "target-counter-agg-rule": query('sum (draftscope_steps_total{job=~"$job", instance=~"$instance"})'),
    "uneditable-dashboard-rule": lambda d: d.update(editable=True),
}


def test_there_are_as_many_rules_as_theirs() -> None:
    assert list(BREAKS) == dashboard_lint.rules()
    assert len(BREAKS) == 14


@pytest.mark.parametrize("rule", BREAKS)
def test_the_rule_finds_what_breaks_it(rule: str) -> None:
    broken = copy.deepcopy(load("run"))
    BREAKS[rule](broken)
    assert [found.rule for found in dashboard_lint.complaints(broken)][:1] == [rule]
