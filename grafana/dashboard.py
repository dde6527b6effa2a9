"""Assembles a dashboard in Grafana's classic JSON: grid, variables, annotations, links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana.panels import COLUMNS, DATASOURCE, Json, Panel
from grafana.queries import ALERTS, ON_TARGET, OURS, by, increase, of_run, select
from trainer.metrics.catalogue.gpus import GPU_INFO
from trainer.metrics.catalogue.run import CHECKPOINT_TIME, RESTARTS, RUN_INFO, START_TIME
from trainer.metrics.catalogue.stages import STAGES
from trainer.metrics.catalogue.training import EVALUATIONS

# The latest schema of Grafana's classic dashboards; Grafana 13 reads it and migrates it in memory.
SCHEMA_VERSION = 42
TAG = "draftscope"
WEB_APP = "http://127.0.0.1:8400"
ALL: Json = {"text": ["All"], "value": ["$__all"]}
# Step of annotation queries: the scrape interval.
STEP = "5s"


@dataclass(frozen=True)
class Row:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    uid: str
    title: str
    description: str
    rows: Sequence[Row]
    choices: Sequence[str]
    """Variables besides data source, job, run and instance: `stage`, `gpu`."""

    def json(self) -> Json:
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": [TAG],
            "schemaVersion": SCHEMA_VERSION,
            "editable": False,
            "graphTooltip": 1,
            "refresh": "5s",
            "time": {"from": "now-1h", "to": "now"},
            "timepicker": {"refresh_intervals": ["5s", "10s", "30s", "1m", "5m", "15m", "1h"]},
            "timezone": "browser",
            "links": _links(),
            "templating": {"list": _variables(self.choices)},
            "annotations": {"list": _annotations()},
            "panels": place(self.rows),
        }


def place(rows: Sequence[Row]) -> list[Json]:
    """Lays out panels left to right and top to bottom, each row below its title; ids count from 1."""
    placed: list[Json] = []
    y = 0
    for row in rows:
        grid = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        placed.append({"id": len(placed) + 1, "type": "row", "title": row.title, "collapsed": False, "gridPos": grid, "panels": []})
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            placed.append(panel.json(len(placed) + 1, x, y))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return placed


def _links() -> list[Json]:
    others = {
        "type": "dashboards",
        "title": "Draftscope",
        "tooltip": "The other dashboards, for the same run and time range",
        "tags": [TAG],
    }
    app = {"type": "link", "title": "Web app: curves by step", "tooltip": "Every step, from the run's own record"}
    return [
        {**others, "asDropdown": False, "includeVars": True, "keepTime": True, "icon": "external link", "targetBlank": False},
        {
            **app,
            "url": "${webapp:raw}",
            "tags": [],
            "asDropdown": False,
            "includeVars": False,
            "keepTime": False,
            "icon": "dashboard",
            "targetBlank": True,
        },
    ]


def run_link() -> Json:
    """Link from a curve to its run in the web app; the series must carry `run_id`."""
    url = "${webapp:raw}/runs/${__field.labels.run_id}"
    return {"title": "This run in the web app", "url": url, "targetBlank": True}


# Listed here to keep the pipeline's order; Prometheus would sort them by name.
_STAGE: Json = {
    "name": "stage",
    "label": "Stage",
    "type": "custom",
    "query": ",".join(STAGES),
    "options": [{"text": stage, "value": stage, "selected": False} for stage in STAGES],
    "multi": True,
    "includeAll": True,
    "allValue": ".+",
    "current": ALL,
}


def _variables(choices: Sequence[str]) -> list[Json]:
    gpus = select(GPU_INFO)
    known = {"stage": _STAGE, "gpu": _choice("gpu", "GPU", f"label_values({gpus}, gpu)", sort=3)}
    runs = f'{RUN_INFO.full_name}{{job=~"$job"}}'
    instances = f'{RUN_INFO.full_name}{{job=~"$job", run_id=~"$run"}}'
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "current": {"text": "Prometheus", "value": "prometheus"},
        },
        {
            **_choice("job", "Job", f"label_values({RUN_INFO.full_name}, job)"),
            "current": {"text": [TAG], "value": [TAG]},
        },
        # Ids begin with the time: the latest run comes first.
        _choice("run", "Run", f"label_values({runs}, run_id)", sort=2),
        _choice("instance", "Instance", f"label_values({instances}, instance)"),
        *(known[name] for name in choices),
        {
            "name": "webapp",
            "label": "Web app",
            "description": "Address of the web app, which plots curves by step.",
            "type": "textbox",
            "query": WEB_APP,
            "current": {"text": WEB_APP, "value": WEB_APP},
        },
    ]


def _choice(name: str, label: str, query: str, sort: int = 1) -> Json:
    """A multi-value variable with values from Prometheus, refreshed when the time range changes."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": query,
        "refresh": 2,
        "sort": sort,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": ALL,
    }


def _annotations() -> list[Json]:
    written = of_run(f"({select(CHECKPOINT_TIME)} > 0)")
    resumed = of_run(f"({select(START_TIME)} and {ON_TARGET} {select(RESTARTS)} > 0)")
    done = increase(EVALUATIONS, 'outcome="done"', over="$__rate_interval")
    firing = f'{ALERTS.full_name}{{{OURS}, alertstate="firing"}}'
    return [
        # With useValueForTime Grafana reads values as milliseconds.
        _marks("Checkpoints", "#56B4E9", f"{by('max', 'run_id', written)} * 1000", "Checkpoint of {{run_id}}", at_value=True),
        _marks("Resumes", "#F0E442", f"{by('max', 'run_id', resumed)} * 1000", "{{run_id}} was resumed", at_value=True),
        _marks("Evaluations", "#009E73", f"{by('sum', 'run_id', done)} > 0", "{{run_id}} was evaluated"),
        _marks("Alerts", "#D55E00", firing, "{{alertname}}", text="Firing, severity {{severity}}", tags="severity"),
    ]


def _marks(name: str, color: str, expr: str, title: str, *, text: str = "", tags: str = "", at_value: bool = False) -> Json:
    """Marks the times at which `expr` has a value or, with `at_value`, the times that its values are."""
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": color,
        "expr": expr,
        "step": STEP,
        "target": {"expr": expr, "interval": STEP, "refId": "Anno"},
        "titleFormat": title,
        "textFormat": text or name,
        "tagKeys": tags,
        "useValueForTime": at_value,
    }
