"""z-lab's own package beside ours: its drafter with our weights, its decoding loop, and what our training does with a batch.

Tests that import this are skipped where the package is not installed.
"""

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from trainer.config import DrafterConfig, TrainConfig
from trainer.drafter import learner
from trainer.drafter.anchors import Blocks
from trainer.drafter.learner import Learner
from trainer.drafter.model import Drafter
from trainer.target.features import FeatureBatch, TargetWeights

dflash = pytest.importorskip("dflash.model", reason="dflash==0.1.0 is not installed (make test gets it, where it can be had)")


def reference_of(drafter: Drafter) -> Any:
    """Their drafter, with the weights of ours loaded strictly."""
    model = dflash.DFlashDraftModel(copy.deepcopy(drafter.config)).eval()
    model.load_state_dict(drafter.state_dict(), strict=True)
    return model


def load_reference(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Their drafter out of an exported folder; no tensor may be missing, left over or of another shape."""
    model, info = dflash.DFlashDraftModel.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    assert {name: list(found) for name, found in info.items() if found} == {}
    return model.eval()


def decode(model: Any, target: Any, prompt_ids: Sequence[int], *, max_new_tokens: int, stop_ids: Sequence[int]) -> Any:
    """Their greedy decoding loop with its statistics; its clock waits for a GPU, so that a CPU needs another."""
    with mock.patch.object(dflash, "_cuda_time", time.perf_counter):
        return dflash.dflash_generate(
            model, target, torch.tensor([list(prompt_ids)]), max_new_tokens, list(stop_ids), return_stats=True
        )


@dataclass
class Lesson:
    """What one batch became in training: its blocks, what the drafter was given for them and gave back, and the loss."""

    features: FeatureBatch
    blocks: Blocks = field(init=False)
    draft_QD: torch.Tensor = field(init=False)
    draft_position_Q: torch.Tensor = field(init=False)
    mask_QK: torch.Tensor = field(init=False)
    hidden_QD: torch.Tensor = field(init=False)
    loss: float = field(init=False)

    def used(self) -> list[int]:
        """The numbers of the blocks that are more than padding."""
        return list(self.blocks.used_A.nonzero().squeeze(1).tolist())

    def used_places(self) -> list[int]:
        """Where in the batch these blocks begin."""
        return list(self.blocks.index_AB[self.blocks.used_A, 0].tolist())

    def rows(self, block: int) -> slice:
        """The draft positions of a block among all Q."""
        size = self.blocks.index_AB.shape[1]
        return slice(block * size, (block + 1) * size)

    def context(self, block: int) -> torch.Tensor:
        """The places in the batch whose features a block sees; all of its rows see the same."""
        seen_BT = self.mask_QK[self.rows(block), : self.features.batch.tokens]
        assert (seen_BT == seen_BT[0]).all()
        return seen_BT[0].nonzero().squeeze(1)


def study(drafter: Drafter, weights: TargetWeights, features: FeatureBatch) -> Lesson:
    """Have the real learner take in one batch, every anchor that there is room for, and look over its shoulder.

    It is a copy of the drafter that learns.
    """
    drafter = copy.deepcopy(drafter)
    block_size, layers = drafter.block_size, len(drafter.layers)
    config = TrainConfig(
        target="tiny", data="demo", drafter=DrafterConfig(block_size=block_size, layers=layers, anchors=features.batch.tokens)
    )
    lesson = Lesson(features)
    with _overlooked(drafter, lesson), torch.enable_grad():
        Learner(drafter, weights, config, features.batch.samples, autocast=False).learn(features)
    return lesson


@contextmanager
def _overlooked(drafter: Drafter, lesson: Lesson) -> Iterator[None]:
    real = learner.drafter_loss

    def loss(*args: Any, **more: Any) -> Any:
        (lesson.blocks,) = (one for one in (*args, *more.values()) if isinstance(one, Blocks))
        sums = real(*args, **more)
        lesson.loss = float(sums.loss_sum.detach() / sums.weight)
        return sums

    def hook(_: Any, given: tuple[torch.Tensor, ...], hidden_QD: torch.Tensor) -> None:
        _, _, lesson.draft_QD, lesson.draft_position_Q, lesson.mask_QK = given
        lesson.hidden_QD = hidden_QD.detach()

    handle = drafter.register_forward_hook(hook)
    try:
        with mock.patch.object(learner, "drafter_loss", loss):
            yield
    finally:
        handle.remove()
