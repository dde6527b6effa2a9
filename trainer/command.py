"""The command line: flags and files in, a checked config out.

A TOML file and the config of a resumed run are turned into flags that come before the user's own, so that hers win.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import tyro

from trainer.config import ConfigError, TrainConfig
from trainer.run import find_run, read_facts

C = TypeVar("C")

# What belongs to one attempt and not to the run that is resumed.
_PER_ATTEMPT = ("config", "resume", "name", "runs")


def read_train_config(arguments: list[str]) -> TrainConfig:
    """The config of `train`. Raises `ConfigError`; ends the process for `--help` and for flags that do not exist."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--config")
    early.add_argument("--resume")
    early.add_argument("--runs", default="runs")
    known, _ = early.parse_known_args(arguments)
    before = []
    if known.resume:
        config = read_facts(find_run(known.resume, Path(known.runs)))["config"]
        before += flags({name: value for name, value in config.items() if name not in _PER_ATTEMPT})
    if known.config:
        before += flags(read_toml(Path(known.config)))
    return parse(TrainConfig, "train", [*before, *arguments])


def parse(kind: type[C], command: str, arguments: list[str]) -> C:
    """Fill the dataclass `kind` from flags."""
    return tyro.cli(kind, prog=f"python -m trainer {command}", args=arguments)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config {path} is not valid TOML: {error}") from error


def flags(values: dict[str, Any], prefix: str = "") -> list[str]:
    """Nested values as flags: `{"drafter": {"block_size": 8}}` becomes `--drafter.block-size 8`. None is left out."""
    return [word for name, value in values.items() for word in _flag(prefix + name.replace("_", "-"), value)]


def _flag(name: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, dict) and name != "dataset.template-args":
        yield from flags(value, prefix=f"{name}.")
        return
    yield f"--{name}"
    if isinstance(value, dict):
        yield from (str(word) for pair in value.items() for word in pair)
    elif isinstance(value, list | tuple):
        yield from (str(word) for word in value)
    else:
        yield str(value)
