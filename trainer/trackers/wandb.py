"""Points in, a run of Weights & Biases out: offline below the run's folder, unless WANDB_MODE says otherwise."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trainer.trackers.scalars import Point
from trainer.trackers.sink import TrackerError, unusable

PROJECT = "draftscope"
INIT_SECONDS = 20.0
# Of the config; the rest says where this machine keeps things, and how it is watched.
NOT_SENT = ("watch", "runs", "config", "resume", "trackers")


class WandbRun:
    """One run with the id of ours. `sent` counts the points that it was given before, by other processes.

    Raises `TrackerError` where wandb cannot be imported or cannot begin.
    """

    def __init__(self, folder: Path, sent: int = 0) -> None:
        offline_unless_asked()
        self._wandb = _library()
        self.notice = ""
        self._sent = sent
        self._run = self._begin(folder)
        # Its own count of calls has to rise; ours falls back when a run is resumed, and W&B would drop those points.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def send(self, point: Point) -> None:
        self._run.log({**point.values, "step": point.step, "attempt": point.attempt}, step=self._sent)
        self._sent += 1

    def restart(self, step: int) -> None:
        """Nothing to do: W&B keeps both, told apart by `attempt`."""

    def flush(self) -> None:
        """Nothing to do: wandb's own process has each point at once."""

    def close(self) -> None:
        self._run.finish()

    def _begin(self, folder: Path) -> Any:
        try:
            return _init(self._wandb, folder)
        except Exception as error:
            if os.environ["WANDB_MODE"] == "offline":
                raise TrackerError(f"wandb cannot begin: {error}") from error
            asked = os.environ["WANDB_MODE"]
            os.environ["WANDB_MODE"] = "offline"
            reason = " ".join(str(error).split()).rstrip(".")
            self.notice = f"W&B cannot be had with WANDB_MODE={asked} ({reason}): its run is kept offline, for `wandb sync`"
            self._wandb.teardown()  # its process still holds the run's id
            return _init(self._wandb, folder)


def offline_unless_asked() -> None:
    """wandb takes what it does from the environment; what its user has set there is left as it is."""
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def _library() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise unusable("wandb", error) from error
    return wandb


def _init(wandb: Any, folder: Path) -> Any:
    settings = wandb.Settings(
        console="off",
        init_timeout=INIT_SECONDS,
        x_disable_meta=True,  # the command, the host and the code are the run record's
        x_disable_stats=True,  # of this process, which nobody asked for
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
