"""The committed dashboards, opened for tests: their panels and queries, and PromQL taken apart where it is as regular as ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.support.sources import ROOT

FOLDER = ROOT / "grafana" / "dashboards"
NAMES = ("run", "devices", "operations")

Json = dict[str, Any]


class Query(NamedTuple):
    where: str
    """Dashboard and panel, variable or annotation, as in a failing test's name."""
    kind: str
    """`panel`, `variable` or `annotation`."""
    expr: str
    instant: bool = False


class Selector(NamedTuple):
    name: str
    matchers: tuple[str, ...]
    before: str
    """What stands to its left."""
    after: str


def load(name: str) -> Json:
    loaded: Json = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def panels(dashboard: Json) -> list[Json]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def variables(dashboard: Json) -> dict[str, Json]:
    return {variable["name"]: variable for variable in dashboard["templating"]["list"]}


def queries(dashboard: Json) -> Iterator[Query]:
    """Everything that a dashboard asks Prometheus; of `label_values(expr, label)` both the function and its label are left in."""
    title = dashboard["title"]
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield Query(f"{title} / {panel['title']} / {target['refId']}", "panel", target["expr"], target["instant"])
    for name, variable in variables(dashboard).items():
        if variable["type"] == "query":
            yield Query(f"{title} / ${name}", "variable", variable["query"])
    for annotation in dashboard["annotations"]["list"]:
        yield Query(f"{title} / {annotation['name']}", "annotation", annotation["expr"])


def all_queries() -> list[Query]:
    return [query for name in NAMES for query in queries(load(name))]


def selectors(expr: str) -> list[Selector]:
    """Every `name{matchers}` of an expression; a name without braces has no matchers."""
    found = re.finditer(r"(?<![\w$.\"])((?:draftscope_|instance:|stage:|scrape_|up\b|ALERTS\b)[\w:]*)(?:\{([^}]*)\})?", expr)
    return [
        Selector(match[1], tuple(part.strip() for part in re.split(r",\s*(?=\w+[=!])", match[2] or "") if part.strip()), *around)
        for match in found
        for around in [(expr[: match.start()], expr[match.end() :])]
    ]


def filled_in(expr: str, values: Mapping[str, str]) -> str:
    """With Grafana's variables and ours replaced; `KeyError` for one that nobody knows."""
    return re.sub(r"\$(\w+)|\$\{(\w+)(?::\w+)?\}", lambda match: values[match[1] or match[2]], expr)
