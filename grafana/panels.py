"""Panels in Grafana's classic JSON, from titles and queries.

This module knows no metric. A panel's description lists the series it shows; `no_data` says why it may be empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any

from grafana.queries import Series

Json = dict[str, Any]

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
# Okabe and Ito's palette, which colour-blind people can tell apart.
BLUE, ORANGE, PINK, GREEN, GREY, RED = "#0072B2", "#E69F00", "#CC79A7", "#009E73", "#999999", "#D55E00"


@dataclass(frozen=True)
class Target:
    """One query. `legend` may contain labels: `{{stage}}`. `newest` asks for the last value only, `table` for labels as columns."""

    expr: str
    legend: str = "__auto"
    newest: bool = False
    table: bool = False

    def json(self, ref: str) -> Json:
        return {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": self.expr,
            "format": "table" if self.table else "time_series",
            "instant": self.newest,
            "legendFormat": self.legend,
            "range": not self.newest,
            "refId": ref,
        }


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel. `height` and `width` are in Grafana's grid units, 24 to a row; `colors` maps legend patterns to colours."""

    type: str
    title: str
    targets: Sequence[Target]
    shows: Sequence[Series]
    unit: str
    no_data: str
    note: str = ""
    width: int = 8
    height: int = 8
    min: float | None = None
    max: float | None = None
    decimals: int | None = None
    words: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Numbers that are shown as a coloured word."""
    colors: Mapping[str, str] = field(default_factory=dict)
    ref_colors: Mapping[str, str] = field(default_factory=dict)
    thresholds: Sequence[tuple[float | None, str]] = ((None, BLUE),)
    link: Json | None = None
    repeat: str = ""
    options: Json = field(default_factory=dict)
    custom: Json = field(default_factory=dict)
    transformations: Sequence[Json] = ()

    def json(self, number: int, x: int, y: int) -> Json:
        repeated = {"repeat": self.repeat, "repeatDirection": "h", "maxPerRow": 4} if self.repeat else {}
        return {
            "id": number,
            "type": self.type,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [target.json(ref) for target, ref in zip(self.targets, ascii_uppercase, strict=False)],
            "fieldConfig": {"defaults": self._defaults(), "overrides": self._overrides()},
            "options": self.options,
            "transformations": list(self.transformations),
            **repeated,
        }

    @property
    def description(self) -> str:
        """The question, the note, and every series by its full name."""
        named = [f"`{series.full_name}`: {series.help}" for series in self.shows]
        return "\n\n".join([self.shows[0].question, *([self.note] if self.note else []), *named])

    def _defaults(self) -> Json:
        limits = {"min": self.min, "max": self.max, "decimals": self.decimals}
        steps = [{"value": value, "color": color} for value, color in self.thresholds]
        return {
            "unit": self.unit,
            "noValue": self.no_data,
            "color": {"mode": "palette-classic" if self.type == "timeseries" else "thresholds"},
            "thresholds": {"mode": "absolute", "steps": steps},
            "custom": self.custom,
            **{name: value for name, value in limits.items() if value is not None},
            **({"mappings": [_mapping(self.words)]} if self.words else {}),
            **({"links": [self.link]} if self.link else {}),
        }

    def _overrides(self) -> list[Json]:
        by_name = [({"id": "byRegexp", "options": f"/{name}/"}, color) for name, color in self.colors.items()]
        by_ref = [({"id": "byFrameRefID", "options": ref}, color) for ref, color in self.ref_colors.items()]
        return [
            {"matcher": matcher, "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}]}
            for matcher, color in (*by_name, *by_ref)
        ]


def _mapping(words: Mapping[int, tuple[str, str]]) -> Json:
    shown = {
        str(number): {"text": text, "color": color, "index": place} for place, (number, (text, color)) in enumerate(words.items())
    }
    return {"type": "value", "options": shown}


def lines(title: str, *targets: Target, axis: str = "", stacked: bool = False, logarithmic: bool = False, **more: Any) -> Panel:
    """Curves over time; `stacked` ones are filled areas that add up."""
    custom = {
        "drawStyle": "line",
        "lineInterpolation": "stepAfter" if stacked else "linear",
        "lineWidth": 0 if stacked else 2,
        "fillOpacity": 85 if stacked else 0,
        "showPoints": "never" if stacked else "auto",
        "spanNulls": False,
        "axisLabel": axis,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "scaleDistribution": {"type": "log", "log": 10} if logarithmic else {"type": "linear"},
    }
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel(type="timeseries", title=title, targets=targets, custom=custom, options=options, **more)


def stat(title: str, *targets: Target, name_alone: bool = False, filled: bool = False, **more: Any) -> Panel:
    """The latest value in large type; `name_alone` shows the legend instead."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "auto",
        "textMode": "name" if name_alone else "auto",
        "colorMode": "background" if filled else "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "percentChangeColorMode": "standard",
        "showPercentChange": False,
        "wideLayout": True,
    }
    return Panel(type="stat", title=title, targets=targets, options=options, **{"width": 4, "height": 4, **more})


def bars(title: str, *targets: Target, **more: Any) -> Panel:
    """The latest value of each series as a bar with its name and number."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "horizontal",
        "displayMode": "basic",
        "valueMode": "text",
        "namePlacement": "left",
        "showUnfilled": True,
        "sizing": "auto",
        "minVizHeight": 16,
        "minVizWidth": 8,
        "maxVizHeight": 300,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
    }
    return Panel(type="bargauge", title=title, targets=targets, options=options, **more)


def ribbon(title: str, *targets: Target, **more: Any) -> Panel:
    """Coloured words on a time axis, one line for each series."""
    options = {
        "mergeValues": True,
        "showValue": "auto",
        "alignValue": "left",
        "rowHeight": 0.9,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    custom = {"fillOpacity": 80, "lineWidth": 0}
    size = {"width": COLUMNS, "height": 4, "unit": "none"}
    return Panel(type="state-timeline", title=title, targets=targets, options=options, custom=custom, **{**size, **more})


def table(title: str, *targets: Target, columns: Mapping[str, str], hidden: Sequence[str] = (), **more: Any) -> Panel:
    """The labels of the latest series as rows. `columns` maps labels to headings, in order; `hidden` labels are left out."""
    organize = {
        "excludeByName": dict.fromkeys(("Time", *hidden), True),
        "indexByName": {name: place for place, name in enumerate(columns)},
        "renameByName": dict(columns),
    }
    options = {"showHeader": True, "cellHeight": "sm", "frameIndex": 0}
    custom = {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}
    transformations = [{"id": "organize", "options": organize}]
    shape = {"width": COLUMNS, "height": 5, "unit": "none", "transformations": transformations}
    return Panel(type="table", title=title, targets=targets, options=options, custom=custom, **{**shape, **more})
