"""Reads flags and files into a validated config.

A TOML file and the config of a resumed run are turned into flags and put before the user's own, so that the user's override them.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import tyro

from trainer.config import TrainConfig
from trainer.errors import ConfigError
from trainer.files import expanded
from trainer.run.lookup import config_of, find_run

C = TypeVar("C")

# Options of one attempt, which a resume does not take over from the run.
_PER_ATTEMPT = ("config", "resume", "warm_start", "name", "runs")


def read_train_config(arguments: list[str]) -> TrainConfig:
    """The config of `train`. Raises `ConfigError`; ends the process for `--help` and for flags that do not exist."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--config")
    early.add_argument("--resume")
    early.add_argument("--runs")
    known, _ = early.parse_known_args(arguments)
    toml = read_toml(Path(expanded(known.config))) if known.config else {}
    before = []
    if known.resume:
        # A resumed run continues from its own checkpoint, not from the drafter that it once started from.
        toml = {name: value for name, value in toml.items() if name not in ("warm_start", "from")}
        runs = Path(expanded(known.runs or toml.get("runs", "runs")))
        config = config_of(find_run(known.resume, runs))
        before += flags({name: value for name, value in config.items() if name not in _PER_ATTEMPT})
    before += flags(toml)
    return parse(TrainConfig, "train", [*before, *arguments])


def parse(kind: type[C], command: str, arguments: list[str]) -> C:
    """Fill the dataclass `kind` from flags."""
    return tyro.cli(kind, prog=f"python -m trainer {command}", args=[*_split_trackers(arguments)])


def _split_trackers(arguments: list[str]) -> Iterator[str]:
    """The arguments with `--trackers wandb,tensorboard` spelled as `--trackers wandb tensorboard`."""
    of_trackers = False
    for word in arguments:
        flag, _, value = word.partition("=")
        of_trackers = flag == "--trackers" if word.startswith("-") else of_trackers
        if not of_trackers or word == "--trackers":
            yield word
        else:
            yield from ("--trackers", *filter(None, value.split(","))) if value else filter(None, word.split(","))


def read_toml(path: Path) -> dict[str, Any]:
    """The options in a TOML file. Raises `ConfigError`."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin UTF-8 with a mark
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # invalid UTF-8 too
        raise ConfigError(f"--config {path} is not valid TOML: {error}") from error
    for name in ("config", "resume"):
        if name in values:
            raise ConfigError(f"--config {path} sets {name}: give --{name} on the command line instead")
    return values


def flags(values: dict[str, Any], prefix: str = "") -> list[str]:
    """Nested values as flags: `{"drafter": {"block_size": 8}}` becomes `--drafter.block-size=8`. None gives no flag."""
    return [word for name, value in values.items() for word in _flag(prefix + name.replace("_", "-"), value)]


def _flag(name: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, dict) and name != "dataset.template-args":
        yield from flags(value, prefix=f"{name}.")
        return
    if isinstance(value, dict):
        yield f"--{name}"
        yield from (_word(part) for pair in value.items() for part in pair)
    elif isinstance(value, list | tuple):
        yield f"--{name}"
        yield from (str(part) for part in value)
    else:
        yield f"--{name}={value}"  # one word, since a value may begin with a dash


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
