"""Batches of features in, one optimizer step out: the drafter's side of the run, with its numbers.

Losses of the batches of a step are added up before anything is divided, so packing changes nothing. One transfer from the device
per step brings every number; it also makes the time that the step took the device's, not the launch's.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from trainer.config import TrainConfig
from trainer.devices import precision_name
from trainer.drafter.anchors import draw_anchors, generator_for, lay_blocks
from trainer.drafter.checkpoint import START, Checkpoint, TrainState
from trainer.drafter.loss import drafter_loss, estimated_acceptance_length
from trainer.drafter.model import Drafter
from trainer.drafter.optimizer import Optimizer
from trainer.record.format import StepLine
from trainer.target.features import FeatureBatch, TargetWeights

SKIPS_IN_A_ROW = 10
NON_FINITE = ("non_finite_features", "non_finite_loss", "non_finite_gradient")


class DivergedError(RuntimeError):
    """Training has gone wrong for good: features, loss or gradient were not finite for several steps in a row."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step did. `skipped` says why its update was left out, or is empty; `progress_ratio` how much of the run is done."""

    line: StepLine
    skipped: str
    progress_ratio: float


class Learner:
    """The drafter with its optimizer and its place in the data. Used by one thread."""

    def __init__(self, drafter: Drafter, target: TargetWeights, config: TrainConfig, conversations: int, *, autocast: bool) -> None:
        self.drafter = drafter
        self.train_state = START
        self._target = target
        self._config = config
        self._conversations = conversations
        # The cache of casts is one for the process: another thread that leaves its autocast would clear it in the middle of a step.
        self._autocast = torch.autocast(target.head_VD.device.type, torch.bfloat16, enabled=autocast, cache_enabled=False)
        self._optimizer = Optimizer(drafter, config.optimizer)
        self._numbers: list[torch.Tensor] = []
        self._pending = self.train_state
        self._skips: list[str] = []
        self._last_step = time.monotonic()

    @property
    def progress(self) -> float:
        """How much of the run is done, 0 to 1: by steps or by visits of the data, whichever is further."""
        return self._progress_at(self.train_state)

    @property
    def is_done(self) -> bool:
        """Whether the last step has been taken; otherwise the data's end decides."""
        return self._config.max_steps is not None and self.train_state.step >= self._config.max_steps

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of the same run."""
        self.drafter.load_state_dict(checkpoint.weights)
        self._optimizer.load_state_dict(checkpoint.optimizer)
        self.train_state = self._pending = checkpoint.train_state

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Around a pause between two steps: the time inside is no step's."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._last_step += time.monotonic() - began

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
        """The weights and the optimizer's state as they are now."""
        return self.drafter.state_dict(), self._optimizer.state_dict()

    def learn(self, features: FeatureBatch) -> Outcome | None:
        """Take in one batch; once there are as many as a step needs, take the step and tell what it did."""
        batch = features.batch
        anchors = draw_anchors(batch, self._config.drafter.anchors, generator_for(self._config.seed, batch.seq))
        blocks = lay_blocks(batch, *anchors, self._config.drafter.block_size)
        with self._autocast:
            parts = drafter_loss(self.drafter, self._target, features, blocks, self._config.loss)
        parts.weighted.backward()  # type: ignore[no-untyped-call]
        self._numbers.append(torch.cat([parts.numbers(), _is_broken(features).double()]))
        self._pending = replace(
            self._pending,
            next_seq=batch.seq + 1,
            epoch=batch.after.epoch,
            position=batch.after.position,
            context_tokens=self._pending.context_tokens + batch.tokens,
            draft_tokens=self._pending.draft_tokens + blocks.index_AB.numel(),
            samples=self._pending.samples + batch.samples,
        )
        outcome = self._step() if len(self._numbers) == self._config.optimizer.accumulate else None
        if outcome is None:
            # The slot goes back to the target now, so the device must be done with it.
            self._numbers[-1] = self._numbers[-1].cpu()
        features.release()
        return outcome

    def finish(self) -> Outcome | None:
        """The data is used up: the step over what is left of it, if anything is."""
        self._pending = replace(self._pending, epoch=self._config.batches.epochs, position=0)
        if self._numbers:
            return self._step()
        self.train_state = self._pending
        return None

    def raise_if_diverged(self) -> None:
        """Raises `DivergedError` after too many steps in a row with something in them that is not finite."""
        if len(self._skips) < SKIPS_IN_A_ROW:
            return
        if "non_finite_features" in self._skips:
            precision = precision_name(self._target.head_VD.dtype)
            way = (
                "give --precision float32" if precision != "float32" else "its weights may be damaged, or try --precision bfloat16"
            )
            raise DivergedError(
                f"{SKIPS_IN_A_ROW} steps in a row could not be taken, since target {self._config.target!r} in {precision} makes "
                f"features that are not finite: {way}"
            )
        raise DivergedError(
            f"{SKIPS_IN_A_ROW} steps in a row had a loss or a gradient that is not finite: begin anew with a smaller "
            f"--optimizer.learning-rate than {self._config.optimizer.learning_rate:g}"
        )

    def _step(self) -> Outcome:
        device = self._target.head_VD.device
        total = torch.stack([numbers.to(device) for numbers in self._numbers]).sum(0)
        norm = self._optimizer.average(total[1])
        loss_sum, weight, *counts, broken, grad_norm = torch.cat([total, norm.double()[None]]).tolist()
        self._numbers = []
        before = self.progress
        self.train_state = self._pending = replace(self._pending, step=self.train_state.step + 1)
        skipped = _why_skip(broken, weight, loss_sum, grad_norm)
        if skipped:
            self._optimizer.forget()
            rate = 0.0
        else:
            # The rate of the step's middle: at its end the schedule of the last step, and so of a run of one, is at 0.
            rate = self._optimizer.step((before + self.progress) / 2, norm)
        self._skips = [*self._skips, skipped] if skipped in NON_FINITE else []
        line = self._line(loss_sum / weight if weight else math.nan, rate, grad_norm, counts)
        return Outcome(line, skipped, self.progress)

    def _line(self, loss: float, rate: float, grad_norm: float, counts: list[float]) -> StepLine:
        now = time.monotonic()
        seconds, self._last_step = now - self._last_step, now
        positions = self._config.drafter.block_size - 1
        hit, asked, kept, at_risk = (counts[start : start + positions] for start in range(0, 4 * positions, positions))
        return StepLine(
            step=self.train_state.step,
            seq=self.train_state.next_seq - 1,
            epoch=self._visits(self.train_state),
            loss=loss,
            learning_rate=rate,
            grad_norm=grad_norm,
            position_accuracy=tuple(right / all_ if all_ else None for right, all_ in zip(hit, asked, strict=True)),
            estimated_acceptance_length=estimated_acceptance_length(kept, at_risk),
            context_tokens=self.train_state.context_tokens,
            draft_tokens=self.train_state.draft_tokens,
            samples=self.train_state.samples,
            step_seconds=seconds,
        )

    def _visits(self, train_state: TrainState) -> float:
        return train_state.epoch + train_state.position / self._conversations

    def _progress_at(self, train_state: TrainState) -> float:
        by_data = self._visits(train_state) / self._config.batches.epochs
        by_steps = train_state.step / self._config.max_steps if self._config.max_steps else 0.0
        return min(1.0, max(by_data, by_steps))


def _is_broken(features: FeatureBatch) -> torch.Tensor:
    """Whether a NaN or an infinity is among the features, bool [1], on their device: nobody waits for it here.

    The extremes show both, and reading them needs no mask of the features' size.
    """
    whole = [tensor for tensor in (features.feature_TF, features.last_TD) if tensor is not None]
    extremes = torch.stack([extreme for tensor in whole for extreme in tensor.aminmax()])
    return ~extremes.isfinite().all(0, keepdim=True)


def _why_skip(broken: float, weight: float, loss_sum: float, grad_norm: float) -> str:
    """What is wrong with a step, the cause before what follows from it; "" if nothing is."""
    if broken:
        return "non_finite_features"
    if weight == 0:
        return "no_draft_tokens"
    if not math.isfinite(loss_sum):
        return "non_finite_loss"
    return "" if math.isfinite(grad_norm) else "non_finite_gradient"
