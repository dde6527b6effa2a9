"""Finds runs on disk by name and reads their `run.json` and config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from trainer.drafter.checkpoint import newest_metadata
from trainer.errors import ConfigError


def find_run(name: str, runs: Path) -> Path:
    """The folder of the run that `--resume` names, by its path or by its id under `runs`. Raises `ConfigError`."""
    for folder in (Path(name), runs / name):
        if (folder / "run.json").is_file():
            return folder if folder.name else folder.resolve()  # "." has no name, and a run needs one
    known = sorted((path.parent.name for path in runs.glob("*/run.json")), reverse=True)
    have = f"runs there: {', '.join(known[:5])}" if known else "there are no runs there"
    raise ConfigError(f"--resume names {name!r}, which is no run in {runs} ({have})")


def read_run_json(folder: Path) -> dict[str, Any]:
    """A run's `run.json`. Raises `ConfigError`."""
    try:
        metadata = orjson.loads((folder / "run.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / 'run.json'} cannot be read: {error}") from error
    if not isinstance(metadata, dict) or not isinstance(metadata.get("config"), dict):
        raise ConfigError(f"{folder / 'run.json'} is not what a run writes: it has no config")
    return metadata


def config_of(folder: Path) -> dict[str, Any]:
    """The config from which a resume of this run starts: that of the attempt which wrote its newest checkpoint."""
    metadata = newest_metadata(folder / "checkpoints") or read_run_json(folder)
    return dict(metadata["config"])
