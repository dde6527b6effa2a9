"""Writes a run's checkpoints when they are due; one that cannot be written is reported, and training continues."""

from __future__ import annotations

import dataclasses
import time
from typing import Protocol

from trainer.drafter.checkpoint import folder_bytes, read_checkpoint, write_checkpoint
from trainer.drafter.learner import Learner
from trainer.run.folder import Run
from trainer.run.preflight import Plan


class UnsavedError(RuntimeError):
    """The run ended, but its last steps could not be saved."""


class Listener(Protocol):
    """Who checkpoints are reported to: the run's monitor."""

    def checkpointed(self, step: int, path: str, size: int, seconds: float) -> None: ...
    def checkpoint_failed(self, message: str) -> None: ...


class Checkpointer:
    """Writes a checkpoint every `--checkpoint.every` steps and at the end of the run."""

    def __init__(self, run: Run, plan: Plan, learner: Learner, listener: Listener) -> None:
        self._run = run
        self._config = plan.config.checkpoint
        self._metadata = {
            "identity": plan.identity(),
            "config": dataclasses.asdict(plan.config),
            # With these, a checkpoint that is moved out of its run still says what it holds and where it comes from.
            "drafter": plan.drafter.to_dict(),
            "run": {name: run.metadata.get(name) for name in ("id", "command", "git_commit", "versions", "data", "from")},
        }
        self._learner = learner
        self._listener = listener
        self._saved_step = 0
        self._last_error = ""

    def restore(self) -> None:
        """Restore the learner from the run's checkpoint, if it continues from one; `open_run` has verified it."""
        if self._run.checkpoint is not None:
            self._learner.restore(read_checkpoint(self._run.checkpoint, verify=False))
            self._saved_step = self._learner.train_state.step

    def save_if_due(self) -> None:
        """Write a checkpoint if this step is one of every so many."""
        every = self._config.every
        if every and self._learner.train_state.step % every == 0:
            self.save()

    def save_last(self) -> None:
        """Write the checkpoint with which a run ends. Raises `UnsavedError` if that fails."""
        self.save()
        if self._saved_step != self._learner.train_state.step:
            kept = f"the newest one, to --resume from, is of step {self._saved_step:,}" if self._saved_step else "there is none"
            last = f"the checkpoint of the last step, {self._learner.train_state.step:,}, could not be written"
            raise UnsavedError(f"{last} ({self._last_error}), and {kept}; make room first")

    def save(self) -> None:
        """Write a checkpoint now, unless this step has one."""
        train_state = self._learner.train_state
        if train_state.step == self._saved_step:
            return
        began = time.monotonic()
        weights, optimizer = self._learner.state()
        try:
            path = write_checkpoint(self._run.checkpoints, train_state, weights, optimizer, self._metadata, self._config.keep)
            size = folder_bytes(path)
        except OSError as error:
            self._last_error = error.strerror or str(error)
            self._listener.checkpoint_failed(f"The checkpoint of step {train_state.step:,} could not be written: {error}.")
            return
        self._saved_step = train_state.step
        self._listener.checkpointed(train_state.step, str(path), size, time.monotonic() - began)
