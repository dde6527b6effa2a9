"""The rules of grafana/rules/ as tests read them: YAML in; rules, the metrics they name and what their tests expect out."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.support.sources import ROOT

FOLDER = ROOT / "grafana" / "rules"
FILES = sorted(FOLDER.glob("*.yml"))
TEST_FILES = sorted((FOLDER / "tests").glob("*.yml"))


class Selector(NamedTuple):
    """A metric as it is asked for: its name and, by label, operator and value."""

    metric: str
    matchers: dict[str, tuple[str, str]]


@cache
def read(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def rules(kind: str) -> list[dict[str, Any]]:
    """All rules with the key `kind`: alert or record."""
    return [rule for path in FILES for group in read(path)["groups"] for rule in group["rules"] if kind in rule]


ALERTS = rules("alert")
RECORDED = rules("record")


def narrowed(path: Path, folder: Path) -> Path:
    """A copy in `folder` of a file of tests that loads only the alerts it names: evaluating them all takes four times as long."""
    named = set(re.findall(r"Draftscope\w+", path.read_text(encoding="utf-8")))
    kept = [rule for rule in ALERTS if rule["alert"] in named]
    loaded = folder / f"alerts-of-{path.name}"
    loaded.write_text(json.dumps({"groups": [{"name": "kept", "rules": kept}]}))  # JSON is YAML
    copy = folder / path.name
    copy.write_text(json.dumps({**read(path), "rule_files": [loaded.name]}))
    return copy


def selectors(expr: str) -> list[Selector]:
    """What an expression asks for: catalogue metrics, recorded series and `up`."""
    found = re.findall(r"(?<![\w:\"])((?:\w+:)?draftscope_\w+(?::\w+)?|up)\b(?!:)(?:\{([^}]*)\})?", expr)
    return [
        Selector(
            name, {label: (operator, value) for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', inside)}
        )
        for name, inside in found
    ]


def joined_labels(expr: str) -> set[str]:
    """Labels that `on`, `without`, `by` and `group_left` name."""
    lists = re.findall(r"\b(?:on|ignoring|without|by|group_left|group_right)\s*\(([^)]*)\)", expr)
    return {label.strip() for inside in lists for label in inside.split(",")} - {""}


def seconds(written: str) -> int:
    """`1h30m` → 5400."""
    return sum(
        int(number) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit] for number, unit in re.findall(r"(\d+)([smhd])", written)
    )


class Expectation(NamedTuple):
    """What a test says of an alert at one moment: the labels of the alerts that fire, none where it is silent."""

    case: str
    at: int
    firing: tuple[dict[str, str], ...]


def expectations(alert: str) -> list[Expectation]:
    return [
        Expectation(case["name"], seconds(moment["eval_time"]), tuple(one["exp_labels"] for one in moment.get("exp_alerts") or ()))
        for path in TEST_FILES
        for case in read(path)["tests"]
        for moment in case.get("alert_rule_test", ())
        if moment["alertname"] == alert
    ]
