"""MetricSample a run's record back, as strictly as its readers may."""

import json
from pathlib import Path
from typing import Any


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Every whole line of a `.jsonl` file; a torn one is left out, a missing file has none."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows
