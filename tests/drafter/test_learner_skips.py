"""trainer/drafter/learner.py: steps that are not taken because something in them is not finite, and the end of a run of them."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from tests.support.learning import (
    CPU,
    LAYERS,
    MODEL,
    TARGET,
    WITH_LAST,
    assert_identical,
    batches_of,
    config_of,
    learner_for,
    train,
    weights_of,
)
from trainer.config import LossConfig
from trainer.data.batches import TokenBatch
from trainer.drafter import learner as learner_module
from trainer.drafter.learner import SKIPS_IN_A_ROW, DivergedError, Learner
from trainer.drafter.loss import LossSums, drafter_loss
from trainer.drafter.model import Drafter
from trainer.drafter.optimizer import Optimizer
from trainer.target.features import FeatureBatch, FeatureExtractor, FeatureRing, TargetWeights, borrow_weights


def spoilt(batch: TokenBatch, value: float = math.nan, place: tuple[int, int] = (0, 0)) -> FeatureBatch:
    (features,) = TARGET.extract(iter([batch]))
    features.feature_TF[place] = value
    return features


@pytest.fixture
def nan_losses(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Batches, by seq, whose loss is to be NaN though their features are in order."""
    chosen: set[int] = set()

    def spoil(drafter: Drafter, target: Any, features: FeatureBatch, *rest: Any) -> LossSums:
        sums = drafter_loss(drafter, target, features, *rest)
        return dataclasses.replace(sums, loss_sum=sums.loss_sum * math.nan) if features.seq in chosen else sums

    monkeypatch.setattr(learner_module, "drafter_loss", spoil)
    return chosen


def assert_skipped(learner: Learner, bad: FeatureBatch, reason: str) -> None:
    """The step over `bad` is left out, for that reason, and nothing of it stays."""
    before, optimizer_before, state_before = weights_of(learner), repr(learner.state()[1]), learner.train_state
    result = learner.learn(bad)
    assert result is not None
    assert result.skipped == reason
    assert result.line.learning_rate == 0
    assert learner.train_state.step == state_before.step + 1
    assert learner.train_state.next_seq == bad.seq + 1
    assert_identical(weights_of(learner), before)
    assert repr(learner.state()[1]) == optimizer_before
    assert all(weight.grad is None for weight in learner.drafter.parameters())


def test_a_loss_that_is_not_finite_leaves_the_weights_alone(nan_losses: set[int]) -> None:
    learner = learner_for(config_of())
    first, second, third = batches_of(3)
    train(learner, [first])
    nan_losses.add(1)
    (features,) = TARGET.extract(iter([second]))
    assert_skipped(learner, features, "non_finite_loss")
    assert train(learner, [third])[0].skipped == "", "and nothing of it is left in the next step"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_features_that_are_not_finite_leave_the_weights_alone(value: float) -> None:
    learner, without = learner_for(config_of()), learner_for(config_of())
    first, second, third = batches_of(3)
    train(learner, [first])
    assert_skipped(learner, spoilt(second, value), "non_finite_features")
    train(without, [first])
    without.train_state = without._pending = learner.train_state  # as if it had seen the second
    assert train(learner, [third])[0].skipped == ""
    train(without, [third])
    assert_identical(weights_of(learner), weights_of(without))


def test_a_feature_that_no_block_reads_is_found_too() -> None:
    learner = learner_for(config_of())
    (batch,) = batches_of(1)
    features = spoilt(batch, math.nan, (batch.tokens - 1, 127))
    result = learner.learn(features)
    assert result is not None
    assert result.skipped == "non_finite_features"


def test_a_last_hidden_state_that_is_not_finite_is_found_too() -> None:
    learner = learner_for(config_of(loss=LossConfig(objective="distillation")))
    (features,) = WITH_LAST.extract(iter(batches_of(1)))
    assert features.last_TD is not None
    features.last_TD[5, 3] = math.nan
    assert_skipped(learner, features, "non_finite_features")


def test_what_lies_in_the_unused_rest_of_a_slot_does_not_matter() -> None:
    ring = FeatureRing(1, 200, 3 * 64, torch.float32, CPU)
    slot, release = ring.take(200)
    slot.fill_(math.nan)
    release()
    learner = learner_for(config_of(loss=LossConfig(objective="distillation")))
    (features,) = FeatureExtractor(MODEL, LAYERS, ring, keep_last=True).extract(iter(batches_of(1)))
    result = learner.learn(features)
    assert result is not None
    assert result.skipped == ""


@pytest.mark.parametrize("bad", [0, 1])
def test_one_bad_batch_spoils_the_whole_step_that_it_is_in_and_no_other(bad: int) -> None:
    learner = learner_for(config_of(accumulate=2))
    batches = batches_of(4)
    before = weights_of(learner)
    results = []
    for batch in batches:
        (features,) = [spoilt(batch)] if batch.seq == bad else TARGET.extract(iter([batch]))
        results.append(learner.learn(features))
        if batch.seq == 1:
            assert_identical(weights_of(learner), before)
    assert [result and result.skipped for result in results] == [None, "non_finite_features", None, ""]


def test_a_gradient_that_is_not_finite_is_skipped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_for(config_of())
    before = weights_of(learner)
    monkeypatch.setattr(Optimizer, "average_gradients", lambda *_: torch.tensor(math.inf))
    assert train(learner, batches_of(1))[0].skipped == "non_finite_gradient"
    assert_identical(weights_of(learner), before)


def test_ten_such_steps_in_a_row_end_the_run(nan_losses: set[int]) -> None:
    learner = learner_for(config_of())
    batches = batches_of(2 * SKIPS_IN_A_ROW + 1)
    nan_losses.update(set(range(2 * SKIPS_IN_A_ROW)) - {SKIPS_IN_A_ROW - 1})  # a good one in between: the count begins anew
    train(learner, batches[: 2 * SKIPS_IN_A_ROW - 1])
    learner.raise_if_diverged()
    results = train(learner, [batches[2 * SKIPS_IN_A_ROW - 1]])
    assert len(results) == 1, "the tenth is reported like the others"
    with pytest.raises(DivergedError) as caught:
        learner.raise_if_diverged()
    told = str(caught.value)
    assert all(words in told for words in ("10 steps in a row", "loss or gradient", "smaller --optimizer.learning-rate than 0.003"))


@pytest.mark.parametrize(
    ("precision", "way"),
    [
        (torch.bfloat16, "give --precision float32"),
        (torch.float32, "its weights may be damaged, or try --precision bfloat16"),
    ],
)
def test_after_ten_batches_of_bad_features_the_target_is_named_with_its_precision(precision: torch.dtype, way: str) -> None:
    learner = learner_for(config_of())
    weights = borrow_weights(MODEL, CPU)
    learner._target = TargetWeights(weights.embedding_VD.to(precision), weights.head_VD.to(precision))
    for batch in batches_of(SKIPS_IN_A_ROW):
        learner.raise_if_diverged()
        learner.learn(spoilt(batch))
    with pytest.raises(DivergedError) as caught:
        learner.raise_if_diverged()
    name = str(precision).removeprefix("torch.")
    told = str(caught.value)
    assert all(words in told for words in ("10 steps in a row", f"target 'tiny' in {name}", "features that are not finite"))
    assert told.endswith(f": {way}")
