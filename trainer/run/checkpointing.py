"""When a run's checkpoints are written, and what happens if one cannot be: training goes on, and everybody is told."""

from __future__ import annotations

import dataclasses
import time
from typing import Protocol

from trainer.drafter.checkpoint import folder_bytes, read_checkpoint, write_checkpoint
from trainer.drafter.learner import Learner
from trainer.run.folder import Run
from trainer.run.preflight import Plan


class UnsavedError(RuntimeError):
    """The run came to its end, but its last steps could not be saved."""


class Listener(Protocol):
    """Who checkpoints are reported to: the run's monitor."""

    def checkpointed(self, step: int, path: str, size: int, seconds: float) -> None: ...
    def checkpoint_failed(self, message: str) -> None: ...


class Keeper:
    """Keeps a run's work safe: `every` so many steps, and at its end."""

    def __init__(self, run: Run, plan: Plan, learner: Learner, listener: Listener) -> None:
        self._run = run
        self._config = plan.config.checkpoint
        self._facts = {
            "identity": plan.identity(),
            "config": dataclasses.asdict(plan.config),
            # With these a checkpoint says by itself what it holds and where that comes from.
            "drafter": plan.drafter.to_dict(),
            "run": {name: run.facts.get(name) for name in ("id", "command", "git_commit", "versions", "data", "from")},
        }
        self._learner = learner
        self._listener = listener
        self._saved_step = 0
        self._trouble = ""

    def restore(self) -> None:
        """Put the learner where the run's checkpoint left it, if the run goes on from one."""
        if self._run.checkpoint is not None:
            self._learner.restore(read_checkpoint(self._run.checkpoint))
            self._saved_step = self._learner.train_state.step

    def save_if_due(self) -> None:
        every = self._config.every
        if every and self._learner.train_state.step % every == 0:
            self.save()

    def save_last(self) -> None:
        """Write the checkpoint that a run ends with. Raises `UnsavedError` where that fails."""
        self.save()
        if self._saved_step != self._learner.train_state.step:
            kept = f"the newest one, to --resume from, is of step {self._saved_step:,}" if self._saved_step else "there is none"
            last = f"the checkpoint of the last step, {self._learner.train_state.step:,}, could not be written"
            raise UnsavedError(f"{last} ({self._trouble}), and {kept}; make room first")

    def save(self) -> None:
        """Write a checkpoint now, unless this step has one."""
        train_state = self._learner.train_state
        if train_state.step == self._saved_step:
            return
        began = time.monotonic()
        weights, optimizer = self._learner.state()
        try:
            path = write_checkpoint(self._run.checkpoints, train_state, weights, optimizer, self._facts, self._config.keep)
            size = folder_bytes(path)
        except OSError as error:
            self._trouble = error.strerror or str(error)
            self._listener.checkpoint_failed(f"The checkpoint of step {train_state.step:,} could not be written: {error}.")
            return
        self._saved_step = train_state.step
        self._listener.checkpointed(train_state.step, str(path), size, time.monotonic() - began)
