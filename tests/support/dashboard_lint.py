"""The rules of Grafana's own linter of dashboards (grafana/dashboard-linter, the stable ones for Prometheus), written anew.

Theirs is a Go program that cannot be had everywhere. `target-counter-agg-rule` is stricter here: theirs overlooks counters with
matchers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.support.dashboards import filled_in, panels, selectors, variables

Json = dict[str, Any]

# Those of the units that Grafana knows which we use, and some by which a slip would be seen.
UNITS = {
    *("none", "short", "percent", "percentunit", "sci", "s", "ms", "bytes", "decbytes", "Bps", "binBps", "watt", "kwatt", "joule"),
    *("celsius", "hertz", "cps", "ops", "reqps", "dateTimeAsIso", "dateTimeAsLocal", "dateTimeFromNow", "bool", "bool_yes_no"),
}
WITH_UNITS = ("stat", "table", "timeseries", "gauge", "bargauge")
SOURCES = ("$datasource", "${datasource}")
BUILT_IN = {"__rate_interval": "5m", "__interval": "5s", "__range": "1h"}


class Complaint(NamedTuple):
    rule: str
    where: str
    what: str


Found = Iterator[tuple[str, str]]
_RULES: dict[str, Callable[[Json], Found]] = {}


def rule(check: Callable[[Json], Found]) -> Callable[[Json], Found]:
    _RULES[check.__name__.replace("_", "-")] = check
    return check


def rules() -> list[str]:
    return list(_RULES)


def complaints(dashboard: Json) -> list[Complaint]:
    return [Complaint(name, *found) for name, check in _RULES.items() for found in check(dashboard)]


def targets(dashboard: Json) -> Iterator[tuple[str, str]]:
    for panel in panels(dashboard):
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])


@rule
def template_datasource_rule(dashboard: Json) -> Found:
    sources = [variable for variable in variables(dashboard).values() if variable["type"] == "datasource"]
    if [(source["name"], source.get("label"), source["query"]) for source in sources] != [
        ("datasource", "Data source", "prometheus")
    ]:
        yield "", f"there must be one data source variable, named as it ought to be: {sources}"


def _template(dashboard: Json, name: str) -> Found:
    variable = variables(dashboard).get(name)
    wanted = {"type": "query", "label": name.title(), "multi": True, "allValue": ".+"}
    if variable is None:
        yield name, "is missing"
    elif {key: variable.get(key) for key in wanted} != wanted or variable["datasource"]["uid"] not in SOURCES:
        yield name, f"must be {wanted}, from the data source variable"


@rule
def template_job_rule(dashboard: Json) -> Found:
    return _template(dashboard, "job")


@rule
def template_instance_rule(dashboard: Json) -> Found:
    return _template(dashboard, "instance")


@rule
def template_label_promql_rule(dashboard: Json) -> Found:
    for name, variable in variables(dashboard).items():
        if variable["type"] == "query" and not re.fullmatch(r"label_values\([\w:]+(\{[^{}]*\})?, \w+\)", variable["query"]):
            yield name, f"is no label_values(series, label): {variable['query']}"


@rule
def template_on_time_change_reload_rule(dashboard: Json) -> Found:
    for name, variable in variables(dashboard).items():
        if variable["type"] == "query" and variable["refresh"] != 2:
            yield name, "is not asked for again when the time range changes"


@rule
def panel_datasource_rule(dashboard: Json) -> Found:
    for panel in panels(dashboard):
        if any(source["datasource"]["uid"] not in SOURCES for source in (panel, *panel["targets"])):
            yield panel["title"], "does not use the data source variable"


@rule
def panel_title_description_rule(dashboard: Json) -> Found:
    for panel in panels(dashboard):
        if not panel.get("title") or not panel.get("description"):
            yield panel.get("title", ""), "has no title or no description"


@rule
def panel_units_rule(dashboard: Json) -> Found:
    for panel in panels(dashboard):
        if panel["type"] in WITH_UNITS and panel["fieldConfig"]["defaults"].get("unit") not in UNITS:
            yield panel["title"], f"has no valid unit: {panel['fieldConfig']['defaults'].get('unit')}"


@rule
def target_promql_rule(dashboard: Json) -> Found:
    """Only that there is a query and that its variables exist; tests/grafana/test_types.py parses it, Prometheus executes it."""
    known = {**BUILT_IN, **dict.fromkeys(variables(dashboard), "x")}
    for title, expr in targets(dashboard):
        try:
            left = filled_in(expr, known)
        except KeyError as error:
            yield title, f"uses a variable that is not there: {error}"
        else:
            if not left.strip():
                yield title, "asks nothing"


@rule
def target_rate_interval_rule(dashboard: Json) -> Found:
    for title, expr in targets(dashboard):
        if windows := set(re.findall(r"\bi?rate\([^()]*\[([^\]]+)\]\)", expr)) - {"$__rate_interval"}:
            yield title, f"rate() over {windows} instead of $__rate_interval"


def _matcher(dashboard: Json, name: str) -> Found:
    for title, expr in targets(dashboard):
        for selector in selectors(expr):
            if f'{name}=~"${name}"' not in selector.matchers:
                yield title, f"{selector.name} is not restricted to ${name}"


@rule
def target_job_rule(dashboard: Json) -> Found:
    return _matcher(dashboard, "job")


@rule
def target_instance_rule(dashboard: Json) -> Found:
    return _matcher(dashboard, "instance")


@rule
def target_counter_agg_rule(dashboard: Json) -> Found:
    for title, expr in targets(dashboard):
        for selector in selectors(expr):
            counted = re.search(r"\b(i?rate|increase)\($", selector.before) and selector.after.startswith("[")
            if selector.name.endswith("_total") and not counted:
                yield title, f"{selector.name} is a counter: rate() or increase() of it"


@rule
def uneditable_dashboard_rule(dashboard: Json) -> Found:
    if dashboard.get("editable") is not False:
        yield "", "can be edited"
