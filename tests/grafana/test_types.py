"""The dashboards fit the types that Grafana publishes, and their PromQL the grammar that Prometheus publishes for editors.

Grafana itself was never run: these are what its own code is compiled against. tests/grafana_types says what is stricter than there.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.dashboards import NAMES, all_queries, filled_in, load
from tests.support.sources import ROOT

Json = dict[str, Any]

PACKAGES = ROOT / ".tools" / "grafana_types" / "node_modules"
OURS = ROOT / "tests" / "grafana_types"
VARIABLES = {"__rate_interval": "5m", "__range": "1h"} | dict.fromkeys(("job", "run", "instance", "stage", "gpu"), "x")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which node finds the packages and our files beside them."""
    if not shutil.which("node") or not (PACKAGES / ".package-lock.json").exists():
        pytest.skip("no node, or no Grafana types (sh tests/setup/tools.sh .tools brings both where it can)")
    folder = tmp_path_factory.mktemp("types")
    (folder / "node_modules").symlink_to(PACKAGES)
    for name in ("types.ts", "tsconfig.json", "promql.mjs"):
        shutil.copy(OURS / name, folder)
    return folder


def compiled(bench: Path, dashboards: dict[str, Json]) -> dict[str, str]:
    """What the compiler says of each dashboard that it does not accept."""
    names = list(dashboards)
    lines = [f"export const n{n} = {json.dumps(dashboards[name])} satisfies OurDashboard;" for n, name in enumerate(names)]
    (bench / "dashboards.ts").write_text("\n".join(["import type { OurDashboard } from './types';", *lines, ""]))
    command = ["node", "node_modules/typescript/bin/tsc", "-p", ".", "--pretty", "false"]
    done = subprocess.run(command, cwd=bench, capture_output=True, text=True, timeout=120)
    found = re.findall(r"^dashboards\.ts\((\d+),\d+\): (.*)$", done.stdout, flags=re.MULTILINE)
    assert bool(found) == bool(done.returncode), done.stdout + done.stderr
    return {names[int(line) - 2]: words for line, words in found}


def panel(dashboard: Json, kind: str) -> Json:
    return next(panel for panel in dashboard["panels"] if panel["type"] == kind)


BREAKS: dict[str, Callable[[Json], Any]] = {
    "a number that is none of an enum": lambda d: d.update(graphTooltip=7),
    "a key that a dashboard does not have": lambda d: d.update(tooltips=True),
    "a word that is none of an enum": lambda d: panel(d, "stat")["options"].update(colorMode="backgruond"),
    "an option of another panel": lambda d: panel(d, "stat")["options"].update(showHeader=True),
    "a misspelt setting": lambda d: panel(d, "timeseries")["fieldConfig"]["defaults"]["custom"].update(lineWidht=2),
    "a misspelt default": lambda d: panel(d, "table")["fieldConfig"]["defaults"].update(noValues="x"),
    "a panel of old": lambda d: panel(d, "stat").update(type="graph"),
    "a misspelt query": lambda d: panel(d, "table")["targets"][0].update(exp="x"),
    "a mapping of no kind": lambda d: panel(d, "state-timeline")["fieldConfig"]["defaults"]["mappings"][0].update(type="values"),
    "an annotation's switch as a word": lambda d: d["annotations"]["list"][0].update(useValueForTime="on"),
    "a variable of no kind": lambda d: d["templating"]["list"][1].update(type="quarry"),
    "a refresh of no kind": lambda d: d["templating"]["list"][1].update(refresh=3),
}


def test_grafanas_types_accept_the_dashboards_and_nothing_broken(bench: Path) -> None:
    """In one go, since the compiler takes seconds to start."""
    broken = {}
    for what, spoil in BREAKS.items():
        broken[what] = copy.deepcopy(load("run"))
        spoil(broken[what])
    complaints = compiled(bench, {name: load(name) for name in NAMES} | broken)
    assert {name: words for name, words in complaints.items() if name in NAMES} == {}
    assert sorted(complaints) == sorted(BREAKS), "broken ones that were accepted"


def parsed(bench: Path, expressions: list[str]) -> list[Json]:
    """The expressions that cannot be read, each with where."""
    done = subprocess.run(
        ["node", "promql.mjs"], cwd=bench, input=json.dumps(expressions), capture_output=True, text=True, check=True, timeout=60
    )
    found: list[Json] = json.loads(done.stdout)
    return found


def test_every_query_is_promql(bench: Path) -> None:
    found = [filled_in(re.sub(r"^label_values\((.*), \w+\)$", r"\1", query.expr), VARIABLES) for query in all_queries()]
    assert len(found) > 100
    assert parsed(bench, found) == []


def test_what_is_not_promql_is_found(bench: Path) -> None:
    assert [error["expression"] for error in parsed(bench, ["up", "sum by (a (up)", "rate(up[5m)", "up{a=}"])] == [
        "sum by (a (up)",
        "rate(up[5m)",
        "up{a=}",
    ]


def test_the_lock_pins_what_is_asked_for_and_names_no_place() -> None:
    wanted = json.loads((OURS / "package.json").read_text())["dependencies"]
    lock = json.loads((OURS / "package-lock.json").read_text())["packages"]
    assert {name: lock[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert [name for name, package in lock.items() if name and not package["integrity"].startswith("sha512-")] == []
    assert [name for name, package in lock.items() if "resolved" in package] == [], (
        "where it came from is each machine's own affair"
    )
