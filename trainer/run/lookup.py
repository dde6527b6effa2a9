"""Runs on disk: found by name, and what they say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from trainer.drafter.checkpoint import newest_metadata
from trainer.errors import ConfigError


def find_run(name: str, runs: Path) -> Path:
    """The folder of a run, given to `--resume` by its path or by its id under `runs`. Raises `ConfigError`."""
    for folder in (Path(name), runs / name):
        if (folder / "run.json").is_file():
            return folder if folder.name else folder.resolve()  # "." has no name to call the run by
    known = sorted((path.parent.name for path in runs.glob("*/run.json")), reverse=True)
    have = f"runs there: {', '.join(known[:5])}" if known else "there are no runs there"
    raise ConfigError(f"--resume names {name!r}, which is no run in {runs} ({have})")


def read_facts(folder: Path) -> dict[str, Any]:
    """A run's `run.json`. Raises `ConfigError`."""
    try:
        facts = orjson.loads((folder / "run.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / 'run.json'} cannot be read: {error}") from error
    if not isinstance(facts, dict) or not isinstance(facts.get("config"), dict):
        raise ConfigError(f"{folder / 'run.json'} is not what a run writes: it has no config")
    return facts


def config_of(folder: Path) -> dict[str, Any]:
    """The config that a resume of this run starts from: that of the attempt which wrote its newest checkpoint."""
    facts = newest_metadata(folder / "checkpoints") or read_facts(folder)
    return dict(facts["config"])
