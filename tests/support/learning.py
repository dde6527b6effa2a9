"""A learner of the tiny target, for tests: its config, batches, features, a few steps, its weights."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from tests.support.small import lay_out
from trainer.config import BatchesConfig, DrafterConfig, OptimizerConfig, TrainConfig
from trainer.data.batches import Cursor, TokenBatch
from trainer.drafter.learner import Learner, StepResult
from trainer.drafter.model import Drafter, choose_layer_ids, drafter_architecture
from trainer.target.features import FeatureExtractor, FeatureRing, borrow_weights
from trainer.target.tiny import MASK, tiny_config, tiny_model

CPU = torch.device("cpu")
DRAFTER = DrafterConfig(block_size=8, layers=1, anchors=6, target_layers=2)
LAYERS = choose_layer_ids(8, DRAFTER)
MODEL = tiny_model()
TARGET = FeatureExtractor(MODEL, LAYERS, FeatureRing(64, 200, 2 * 64, torch.float32, CPU))
WITH_LAST = FeatureExtractor(MODEL, LAYERS, FeatureRing(64, 200, 3 * 64, torch.float32, CPU), keep_last=True)


def config_of(*, accumulate: int = 1, max_steps: int | None = 100, **changes: Any) -> TrainConfig:
    optimizer = OptimizerConfig(accumulate=accumulate, learning_rate=3e-3)
    batches = BatchesConfig(epochs=changes.pop("epochs", 1000))
    return TrainConfig(
        target="tiny", data="demo", max_steps=max_steps, drafter=DRAFTER, batches=batches, optimizer=optimizer, **changes
    )


def learner_for(config: TrainConfig, *, first_weights: int = 0, conversations: int = 100, autocast: bool = False) -> Learner:
    torch.manual_seed(first_weights)
    drafter = Drafter(drafter_architecture(tiny_config(), DRAFTER, LAYERS, MASK))
    return Learner(drafter, borrow_weights(MODEL, CPU), config, conversations, autocast=autocast)


def batches_of(count: int, *lengths: int) -> list[TokenBatch]:
    batches = [lay_out(lengths or (20, 15), seq=seq) for seq in range(count)]
    tokens = [32 + batch.token_T % 95 for batch in batches]  # printable: the tiny target never says anything else
    ends = [Cursor(0, (seq + 1) * len(lengths or (20, 15))) for seq in range(count)]
    return [dataclasses.replace(b, token_T=t, after=end) for b, t, end in zip(batches, tokens, ends, strict=True)]


def train(learner: Learner, batches: Sequence[TokenBatch]) -> list[StepResult]:
    target = WITH_LAST if learner._config.loss.objective == "distillation" else TARGET
    results = [learner.learn(features) for features in target.extract(iter(batches))]
    return [result for result in results if result is not None]


def weights_of(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in learner.drafter.state_dict().items()}


def assert_identical(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert {name for name in one if not torch.equal(one[name], other[name])} == set()
