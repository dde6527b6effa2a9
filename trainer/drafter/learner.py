"""The drafter's training step: loss and gradients of one batch of features after another, an update when a step has enough.

Losses of a step's batches are added up before anything is divided, so that packing changes nothing. Everything that is recorded of
a batch travels in one packed vector (`LossSums.packed`): reading it from the device is the step's only synchronisation, which
also makes `step_seconds` the time that the device took and not the time that it took to launch the kernels.

Shapes: B block size; T context tokens, F features, D hidden size.
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
from trainer.drafter.anchors import build_blocks, draw_anchors, generator_for
from trainer.drafter.checkpoint import START, Checkpoint, TrainState
from trainer.drafter.loss import drafter_loss, estimated_acceptance_length
from trainer.drafter.model import Drafter
from trainer.drafter.optimizer import Optimizer
from trainer.record.format import StepLine
from trainer.target.features import FeatureBatch, TargetWeights

SKIPS_IN_A_ROW = 10
NON_FINITE = ("non_finite_features", "non_finite_loss", "non_finite_gradient")


class DivergedError(RuntimeError):
    """Features, loss or gradient were not finite for `SKIPS_IN_A_ROW` steps in a row: training cannot recover."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One optimizer step."""

    line: StepLine
    skipped: str
    """Why the update was left out; "" if it was made."""
    progress_ratio: float
    """Share of the run that is done."""


class Learner:
    """The drafter, its optimizer and its train state. Used by one thread."""

    def __init__(self, drafter: Drafter, target: TargetWeights, config: TrainConfig, conversations: int, *, autocast: bool) -> None:
        self.drafter = drafter
        self.train_state = START
        self._target = target
        self._config = config
        self._conversations = conversations
        # autocast's cache of casts is shared by all threads: another one leaving its autocast would clear it in mid-step.
        self._autocast = torch.autocast(target.head_VD.device.type, torch.bfloat16, enabled=autocast, cache_enabled=False)
        self._optimizer = Optimizer(drafter, config.optimizer)
        self._packed: list[torch.Tensor] = []
        self._pending = self.train_state
        self._skips: list[str] = []
        self._last_step = time.monotonic()

    @property
    def progress(self) -> float:
        """Share of the run that is done, 0 to 1: by steps or by visits of the data, whichever is further."""
        return self._progress_at(self.train_state)

    @property
    def is_done(self) -> bool:
        """Whether `max_steps` have been taken; without that limit the end of the data decides."""
        return self._config.max_steps is not None and self.train_state.step >= self._config.max_steps

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint of the same run."""
        self.drafter.load_state_dict(checkpoint.weights)
        self._optimizer.load_state_dict(checkpoint.optimizer)
        self.train_state = self._pending = checkpoint.train_state

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Wraps a pause between two steps, and leaves its time out of `step_seconds`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._last_step += time.monotonic() - began

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
        """The drafter's and the optimizer's current state dicts."""
        return self.drafter.state_dict(), self._optimizer.state_dict()

    def learn(self, features: FeatureBatch) -> StepResult | None:
        """Add one batch's gradients; with the last of `optimizer.accumulate` batches take the step and return its result."""
        batch = features.batch
        anchors = draw_anchors(batch, self._config.drafter.anchors, generator_for(self._config.seed, batch.seq))
        blocks = build_blocks(batch, *anchors, self._config.drafter.block_size)
        with self._autocast:
            sums = drafter_loss(self.drafter, self._target, features, blocks, self._config.loss)
        sums.loss_sum.backward()  # type: ignore[no-untyped-call]
        self._packed.append(torch.cat([sums.packed(), _has_non_finite(features).double()]))
        self._pending = replace(
            self._pending,
            next_seq=batch.seq + 1,
            epoch=batch.after.epoch,
            position=batch.after.position,
            context_tokens=self._pending.context_tokens + batch.tokens,
            draft_tokens=self._pending.draft_tokens + blocks.index_AB.numel(),
            samples=self._pending.samples + batch.samples,
        )
        result = self._step() if len(self._packed) == self._config.optimizer.accumulate else None
        if result is None:
            # A target thread may overwrite the slot once it is released. Reading the vector, as a step does, waits for the device.
            self._packed[-1] = self._packed[-1].cpu()
        features.release()
        return result

    def finish(self) -> StepResult | None:
        """At the end of the data: take the step over the batches that are left, if there are any."""
        self._pending = replace(self._pending, epoch=self._config.batches.epochs, position=0)
        if self._packed:
            return self._step()
        self.train_state = self._pending
        return None

    def raise_if_diverged(self) -> None:
        """Raises `DivergedError` if `SKIPS_IN_A_ROW` steps in a row met something that is not finite."""
        if len(self._skips) < SKIPS_IN_A_ROW:
            return
        if "non_finite_features" in self._skips:
            precision = precision_name(self._target.head_VD.dtype)
            way = (
                "give --precision float32" if precision != "float32" else "its weights may be damaged, or try --precision bfloat16"
            )
            raise DivergedError(
                f"{SKIPS_IN_A_ROW} steps in a row were skipped because target {self._config.target!r} in {precision} produces "
                f"features that are not finite: {way}"
            )
        raise DivergedError(
            f"{SKIPS_IN_A_ROW} steps in a row were skipped because loss or gradient was not finite: start again with a smaller "
            f"--optimizer.learning-rate than {self._config.optimizer.learning_rate:g}"
        )

    def _step(self) -> StepResult:
        device = self._target.head_VD.device
        total = torch.stack([packed.to(device) for packed in self._packed]).sum(0)
        norm = self._optimizer.average_gradients(total[1])
        # [loss_sum, weight, hit(B-1), asked(B-1), kept(B-1), at_risk(B-1), broken, grad_norm]: float64, in which counts stay exact
        # (float32 stops counting at 2^24). `tolist` waits for the device; it is the only such point of a step.
        loss_sum, weight, *counts, broken, grad_norm = torch.cat([total, norm.double()[None]]).tolist()
        self._packed = []
        before = self.progress
        self.train_state = self._pending = replace(self._pending, step=self.train_state.step + 1)
        skipped = _skip_reason(broken, weight, loss_sum, grad_norm)
        if skipped:
            self._optimizer.zero_grad()
            rate = 0.0
        else:
            # The schedule at the middle of the step: at its end the rate of the last step, and so of a run of one, would be 0.
            rate = self._optimizer.step((before + self.progress) / 2, norm)
        self._skips = [*self._skips, skipped] if skipped in NON_FINITE else []
        line = self._line(loss_sum / weight if weight else math.nan, rate, grad_norm, counts)
        return StepResult(line, skipped, self.progress)

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


def _has_non_finite(features: FeatureBatch) -> torch.Tensor:
    """Whether the features hold a NaN or an infinity: bool [1] on their device, without waiting for it.

    Minimum and maximum show either, and need no temporary mask of the features' size.
    """
    tensors = [tensor for tensor in (features.feature_TF, features.last_TD) if tensor is not None]
    extremes = torch.stack([extreme for tensor in tensors for extreme in tensor.aminmax()])
    return ~extremes.isfinite().all(0, keepdim=True)


def _skip_reason(broken: float, weight: float, loss_sum: float, grad_norm: float) -> str:
    """Why a step's update must be left out, the first cause first; "" if it need not be."""
    if broken:
        return "non_finite_features"
    if weight == 0:
        return "no_draft_tokens"
    if not math.isfinite(loss_sum):
        return "non_finite_loss"
    return "" if math.isfinite(grad_norm) else "non_finite_gradient"
