"""Writes grafana/dashboards/*.json: `python -m grafana.build`; `--check` fails if one is stale.

Imports only the standard library and the catalogue. Grafana loads the files unchanged (grafana/provisioning): do not edit them
there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana.dashboard import Dashboard
from grafana.devices_dashboard import DEVICES
from grafana.operations_dashboard import OPERATIONS
from grafana.run_dashboard import RUN

FOLDER = Path(__file__).parent / "dashboards"
DASHBOARDS = {"run.json": RUN, "devices.json": DEVICES, "operations.json": OPERATIONS}


def text_of(dashboard: Dashboard) -> str:
    """The JSON as committed: one value per line, so that diffs can be read."""
    return json.dumps(dashboard.json(), indent=1, ensure_ascii=False) + "\n"


def stale() -> list[str]:
    """Names of the files that differ from what would be written now, and of files that would not be written at all."""
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    wanted = {name: text_of(dashboard) for name, dashboard in DASHBOARDS.items()}
    return sorted(name for name in written.keys() | wanted.keys() if written.get(name) != wanted.get(name))


def write() -> None:
    """Writes every dashboard and removes files that belong to none."""
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        if path.name not in DASHBOARDS:
            path.unlink()
    for name, dashboard in DASHBOARDS.items():
        (FOLDER / name).write_text(text_of(dashboard), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Exit code: 0 if the dashboards are fresh now, 1 if `--check` finds one stale, 2 for unknown arguments."""
    if arguments not in ([], ["--check"]):
        print(f"usage: python -m grafana.build [--check], got {' '.join(arguments)}", file=sys.stderr)
        return 2
    if not arguments:
        write()
        return 0
    if differing := stale():
        print(
            f"grafana/dashboards: {', '.join(differing)} differ from the catalogue and grafana/*.py: run `make format`.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
