"""Creates a run's folder, or finds the one that `--resume` names, and locks it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import TrainConfig
from trainer.devices import precision_name
from trainer.drafter.checkpoint import START, TrainState, newest_checkpoint
from trainer.errors import ConfigError
from trainer.files import expanded, lock
from trainer.record.environment import git_commit, versions
from trainer.record.format import LOSS_UNITS
from trainer.record.reader import next_attempt
from trainer.record.redact import redact_words
from trainer.record.writer import write_run_json
from trainer.run.lookup import find_run, read_run_json
from trainer.run.preflight import Plan


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run's folder, its metadata, and the state in which this attempt begins."""

    folder: Path
    metadata: dict[str, Any]
    """The content of `run.json`, with this attempt's own values."""
    attempt: int = 0
    start: TrainState = START
    """The state in which this attempt begins."""
    checkpoint: Path | None = None
    """The verified checkpoint that a resume continues from."""
    warnings: tuple[str, ...] = ()

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"


@contextlib.contextmanager
def open_run(config: TrainConfig, plan: Plan, command: list[str]) -> Iterator[Run]:
    """Make a new run's folder, or find the one to resume, and lock out other processes. Raises `ConfigError`."""
    if config.resume:
        folder = find_run(config.resume, Path(config.runs))
        with alone_in(folder) as warnings:
            # Read the checkpoints only under the lock: the process that held it may just have written its last one.
            yield _resume(folder, plan, command, warnings)
    else:
        folder, metadata = _create(config, plan, command)
        with alone_in(folder) as warnings:
            yield Run(folder=folder, metadata=metadata, warnings=(*warnings, *_plan_warnings(plan)))


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[list[str]]:
    """Lock out every other process from the run. Yields warnings; raises `ConfigError` where another one trains in it."""
    busy = ConfigError(f"run {folder.name!r} is being trained by another process: stop that one first")
    with lock(folder, busy=busy) as obstacle:
        warning = f"{folder} cannot be locked ({obstacle}): take care that no other process trains in it."
        yield [warning] if obstacle else []


def _plan_warnings(plan: Plan) -> tuple[str, ...]:
    return (plan.target.note, *plan.warnings) if plan.target.note else plan.warnings


def _create(config: TrainConfig, plan: Plan, command: list[str]) -> tuple[Path, dict[str, Any]]:
    now = datetime.datetime.now(datetime.UTC)
    name = config.name or f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    folder = Path(config.runs) / name
    metadata = run_metadata(name, now, command, plan)
    try:
        folder.mkdir(parents=True)
        write_run_json(folder, metadata)
    except FileExistsError:
        raise ConfigError(
            f"run {name!r} exists in {config.runs}: continue it with --resume {name}, or choose another --name"
        ) from None
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise ConfigError(f"the run's folder {folder} cannot be made: {error.strerror}; choose another with --runs") from error
    return folder, metadata


def _resume(folder: Path, plan: Plan, command: list[str], warnings: list[str]) -> Run:
    # Verified here, under the lock; its tensors are read when the learner exists to take them.
    checkpoint, refused = newest_checkpoint(folder / "checkpoints", with_tensors=False)
    if checkpoint is None:
        raise ConfigError(f"run {folder.name!r} has no whole checkpoint to continue from; start it again under another --name")
    for name, now in plan.identity().items():
        before = checkpoint.metadata.get("identity", {}).get(name)
        # Up to 0.1 a target was recorded as it was written.
        if before != now and not (isinstance(before, str) and expanded(before) == now):
            raise ConfigError(
                f"{name} is {now!r}, but run {folder.name!r} was trained with {before!r}: a resumed run cannot change it"
            )
    last = plan.config.max_steps
    if last is not None and checkpoint.train_state.step >= last:
        raise ConfigError(f"run {folder.name!r} has taken its {checkpoint.train_state.step:,} steps: give more with --max-steps")
    skipped = [f"{sentence}; this run continues from step {checkpoint.train_state.step} instead" for sentence in refused]
    return Run(
        folder=folder,
        metadata={**read_run_json(folder), **attempt_metadata(plan, command)},
        attempt=next_attempt(folder),
        start=checkpoint.train_state,
        checkpoint=checkpoint.path,
        warnings=(*warnings, *skipped, *_plan_warnings(plan)),
    )


def run_metadata(name: str, now: datetime.datetime, command: list[str], plan: Plan) -> dict[str, Any]:
    """The content of `run.json` (docs/record.md)."""
    config, target = plan.config, plan.target.description
    return {
        "schema": 1,
        "id": name,
        "name": name,
        "started_at": now.isoformat(timespec="seconds"),
        **attempt_metadata(plan, command),
        "target": {
            "name": target.name,
            "architecture": target.architecture,
            "layers": target.layers,
            "hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
            "parameters": plan.target_parameters,
            "layer_ids": list(plan.layer_ids),
            "precision": precision_name(plan.placement.precision),
            "note": target.note,
        },
        "drafter": {
            "layers": config.drafter.layers,
            "block_size": config.drafter.block_size,
            "mask_token_id": plan.mask_token_id,
            "parameters": plan.drafter_parameters,
        },
        "from": plan.warm_start.metadata() if plan.warm_start else None,
        "data": {
            "path": config.data,
            "conversations": len(plan.conversations),
            "fingerprint": plan.fingerprint,
            "held_out": len(plan.held_out.prompts) if plan.held_out else 0,
        },
    }


def attempt_metadata(plan: Plan, command: list[str]) -> dict[str, Any]:
    """What may differ between attempts of a run: a resume may have other flags and run on another machine."""
    return {
        "command": redact_words(command),
        "git_commit": git_commit(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "versions": versions(),
        "config": dataclasses.asdict(plan.config),
        "max_steps": plan.config.max_steps,
        "loss_unit": LOSS_UNITS[plan.config.loss.objective],
        "devices": plan.placement.describe(),
    }
