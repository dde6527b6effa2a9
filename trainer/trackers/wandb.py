"""The tracker Weights & Biases: keeps its run offline in the run's folder, unless WANDB_MODE says otherwise."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trainer.trackers.scalars import Point, TrackerError, import_failure

PROJECT = "draftscope"
# Parts of the config that say where this machine keeps things and how it is watched, not how it trains.
NOT_SENT = ("watch", "runs", "config", "resume", "trackers")


class Wandb:
    """One W&B run, with our run's id. `sent` is how many points earlier processes sent to it.

    Raises `TrackerError` if wandb cannot be imported or cannot start.
    """

    def __init__(self, folder: Path, sent: int = 0) -> None:
        default_to_offline()
        self._wandb = _library()
        self.notice = ""
        self._sent = sent
        self._run = self._start(folder)
        # W&B drops points whose `step=` does not rise, and ours falls back at a resume: so count points, and plot over `step`.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def send(self, point: Point) -> None:
        self._run.log({**point.values, "step": point.step, "attempt": point.attempt}, step=self._sent)
        self._sent += 1

    def restart(self, step: int) -> None:
        """Nothing to do: W&B keeps both attempts, told apart by `attempt`."""

    def flush(self) -> None:
        """Nothing to do: wandb's own process has every point already."""

    def close(self) -> None:
        self._run.finish()

    def _start(self, folder: Path) -> Any:
        try:
            return _init(self._wandb, folder)
        except Exception as error:
            if os.environ["WANDB_MODE"] == "offline":
                raise TrackerError(f"wandb cannot start: {error}") from error
            mode = os.environ["WANDB_MODE"]
            os.environ["WANDB_MODE"] = "offline"
            reason = " ".join(str(error).split()).rstrip(".")
            self.notice = f"W&B cannot be reached with WANDB_MODE={mode} ({reason}): the run is kept offline, for `wandb sync`"
            self._wandb.teardown()  # its process still holds the run's id
            return _init(self._wandb, folder)


def default_to_offline() -> None:
    """wandb is configured by the environment; what its user has set there stays."""
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_INIT_TIMEOUT", "20")  # seconds


def _library() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise import_failure("wandb", error) from error
    return wandb


def _init(wandb: Any, folder: Path) -> Any:
    settings = wandb.Settings(
        console="off",
        x_disable_meta=True,  # command, host and code stay in the run record
        x_disable_stats=True,  # figures of this process, not of the trainer
        x_disable_machine_info=True,
        x_save_requirements=False,
        save_code=False,
        disable_git=True,
    )
    facts = json.loads((folder / "run.json").read_bytes())
    config = {name: value for name, value in (facts.get("config") or {}).items() if name not in NOT_SENT}
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    return wandb.init(
        project=project, dir=str(folder), id=folder.name, name=folder.name, resume="allow", config=config, settings=settings
    )
