"""Batches of features in, steps out: the same whatever is packed with whatever, repeatable, resumable, and it learns."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.small import lay_out
from trainer import learner as learner_module
from trainer.batches import Cursor, TokenBatch
from trainer.checkpoint import read_checkpoint, write_checkpoint
from trainer.config import BatchesConfig, DrafterConfig, LossConfig, OptimizerConfig, TrainConfig
from trainer.drafter import Drafter, choose_layer_ids, drafter_architecture
from trainer.learner import SKIPS_IN_A_ROW, DivergedError, Learner, Outcome
from trainer.loss import drafter_loss
from trainer.optimizer import Optimizer
from trainer.target import FeatureBatch, FeatureRing, Target, borrow_weights
from trainer.tiny import MASK, tiny_config, tiny_model

CPU = torch.device("cpu")
DRAFTER = DrafterConfig(block_size=8, layers=1, anchors=6, target_layers=2)
LAYERS = choose_layer_ids(8, DRAFTER)
MODEL = tiny_model()
TARGET = Target(MODEL, LAYERS, FeatureRing(64, 200, 2 * 64, torch.float32, CPU))
Anchors = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def config_of(*, accumulate: int = 1, max_steps: int | None = 100, **changes: Any) -> TrainConfig:
    optimizer = OptimizerConfig(accumulate=accumulate, learning_rate=3e-3)
    batches = BatchesConfig(epochs=changes.pop("epochs", 1000))
    return TrainConfig(
        target="tiny", data="demo", max_steps=max_steps, drafter=DRAFTER, batches=batches, optimizer=optimizer, **changes
    )


def learner_for(config: TrainConfig, *, first_weights: int = 0, conversations: int = 100) -> Learner:
    torch.manual_seed(first_weights)
    drafter = Drafter(drafter_architecture(tiny_config(), DRAFTER, LAYERS, MASK))
    return Learner(drafter, borrow_weights(MODEL, CPU), config, conversations, autocast=False)


def batches_of(count: int, *lengths: int) -> list[TokenBatch]:
    batches = [lay_out(lengths or (20, 15), seq=seq) for seq in range(count)]
    tokens = [32 + batch.token_T % 95 for batch in batches]  # printable: the tiny target never says anything else
    ends = [Cursor(0, (seq + 1) * len(lengths or (20, 15))) for seq in range(count)]
    return [dataclasses.replace(b, token_T=t, after=end) for b, t, end in zip(batches, tokens, ends, strict=True)]


def train(learner: Learner, batches: Sequence[TokenBatch]) -> list[Outcome]:
    outcomes = [learner.learn(features) for features in TARGET.extract(iter(batches))]
    return [outcome for outcome in outcomes if outcome is not None]


def weights_of(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in learner.drafter.state_dict().items()}


def assert_identical(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert {name for name in one if not torch.equal(one[name], other[name])} == set()


def spoilt(batch: TokenBatch) -> FeatureBatch:
    (features,) = TARGET.extract(iter([batch]))
    features.feature_TF[0] = math.nan
    return features


def unpacked(batch: TokenBatch) -> list[TokenBatch]:
    alone = []
    for document in range(batch.samples):
        rows = batch.document_T == document
        tensors = (batch.token_T[rows], batch.supervised_T[rows], batch.position_T[rows], batch.document_T[rows] * 0)
        alone.append(TokenBatch(document, *tensors, samples=1, after=Cursor(0, document + 1)))
    return alone


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """The averaged gradients of each step, before they are clipped."""
    seen: list[dict[str, torch.Tensor]] = []
    step = Optimizer.step

    def keep(optimizer: Optimizer, progress: float, norm: torch.Tensor) -> float:
        seen.append({str(i): weight.grad.clone() for i, weight in enumerate(optimizer._parameters) if weight.grad is not None})
        return step(optimizer, progress, norm)

    monkeypatch.setattr(Optimizer, "step", keep)
    return seen


def test_packed_and_unpacked_training_of_the_same_samples_are_equal(
    monkeypatch: pytest.MonkeyPatch, gradients: list[dict[str, torch.Tensor]]
) -> None:
    supervised = torch.rand(73, generator=torch.Generator().manual_seed(4)) < 0.8
    packed = dataclasses.replace(batches_of(1, 30, 8, 35)[0], supervised_T=supervised)
    alone = unpacked(packed)
    # The same places, a different number in each document, however it lies.
    chosen = {0: [2, 3, 17, 26], 1: [1], 2: [5, 30]}
    starts = [0, 30, 38]

    def at(places: list[int]) -> Anchors:
        return torch.tensor([*places, *[0] * (8 - len(places))]), torch.arange(8) < len(places)

    def same_places(batch: TokenBatch, count: int, generator: torch.Generator) -> Anchors:
        if batch.samples == 3:
            return at([starts[document] + place for document, places in chosen.items() for place in places])
        return at(chosen[batch.seq])

    monkeypatch.setattr(learner_module, "draw_anchors", same_places)
    together, one_by_one = learner_for(config_of()), learner_for(config_of(accumulate=3))
    (packed_outcome,), (alone_outcome,) = train(together, [packed]), train(one_by_one, alone)
    assert alone_outcome.facts.loss == pytest.approx(packed_outcome.facts.loss, rel=1e-5)
    assert alone_outcome.facts.grad_norm == pytest.approx(packed_outcome.facts.grad_norm, rel=1e-4)
    assert alone_outcome.facts.position_accuracy == packed_outcome.facts.position_accuracy
    of_packed, of_alone = gradients
    for name, gradient in of_packed.items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(of_alone[name], gradient, rtol=1e-4, atol=1e-6)


def test_the_loss_is_the_mean_over_all_batches_of_a_step_not_of_their_means() -> None:
    batches = [*batches_of(1, 30), dataclasses.replace(batches_of(2, 9)[1])]
    separate = [learner_for(config_of()) for _ in batches]
    losses = [train(learner, [batch])[0].facts.loss for learner, batch in zip(separate, batches, strict=True)]
    (outcome,) = train(learner_for(config_of(accumulate=2)), batches)
    assert min(losses) < outcome.facts.loss < max(losses)
    assert outcome.facts.loss != pytest.approx(sum(losses) / 2, rel=1e-6), "the second has fewer guesses and so counts less"


def test_training_again_gives_the_same_weights_bit_for_bit() -> None:
    runs = []
    for _ in range(2):
        learner = learner_for(config_of())
        facts = [dataclasses.replace(outcome.facts, step_seconds=0) for outcome in train(learner, batches_of(6))]
        runs.append((weights_of(learner), facts))
    assert_identical(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


def test_the_seed_decides_the_anchors() -> None:
    losses = {train(learner_for(config_of(seed=seed)), batches_of(1))[0].facts.loss for seed in (0, 1)}
    assert len(losses) == 2


@pytest.mark.parametrize(("given", "used"), [(None, 4.0), (2.5, 2.5)])
def test_the_decay_is_the_configs_or_goes_with_the_block_size(
    monkeypatch: pytest.MonkeyPatch, given: float | None, used: float
) -> None:
    seen = []

    def watched(*args: Any) -> Any:
        seen.append(args[-1])
        return drafter_loss(*args)

    monkeypatch.setattr(learner_module, "drafter_loss", watched)
    train(learner_for(config_of(loss=LossConfig(gamma=given))), batches_of(1))
    assert seen == [used]


def test_it_learns_a_few_samples_by_heart() -> None:
    batches = batches_of(1, 30, 24)
    learner = learner_for(config_of(max_steps=200))
    repeated = [dataclasses.replace(batches[0], seq=seq) for seq in range(200)]
    facts = [outcome.facts for outcome in train(learner, repeated)]
    first, last = facts[0], facts[-10:]
    assert sum(one.loss for one in last) / 10 < 0.1 * first.loss
    assert last[-1].estimated_acceptance_length > 7 > 1.5 > first.estimated_acceptance_length
    assert learner.is_done


def test_what_a_step_tells() -> None:
    learner = learner_for(config_of(max_steps=4), conversations=20)
    outcomes = train(learner, batches_of(3))
    assert [outcome.skipped for outcome in outcomes] == [""] * 3
    facts = outcomes[-1].facts
    assert (facts.step, facts.seq) == (3, 2)
    assert (facts.context_tokens, facts.draft_tokens, facts.samples) == (3 * 35, 3 * 6 * 8, 3 * 2)
    assert facts.epoch == pytest.approx(6 / 20)
    assert facts.progress_ratio == learner.progress == 0.75
    assert facts.loss == pytest.approx(math.log(260), rel=0.3)
    assert len(facts.position_accuracy) == 7
    assert 1 <= facts.estimated_acceptance_length <= 8
    assert facts.grad_norm > 0
    assert 0 < facts.learning_rate < 3e-3
    assert facts.step_seconds > 0
    assert not learner.is_done


def test_each_step_has_the_rate_of_its_middle_so_that_none_is_wasted() -> None:
    optimizer = OptimizerConfig(learning_rate=3e-3, warmup_ratio=0.25)
    learner = learner_for(dataclasses.replace(config_of(max_steps=4), optimizer=optimizer))
    rates = [outcome.facts.learning_rate for outcome in train(learner, batches_of(4))]
    falling = [(1 + math.cos(math.pi * done / 6)) / 2 for done in (1, 3, 5)]
    assert rates == pytest.approx([3e-3 * share for share in (0.5, *falling)])


def test_a_run_of_one_step_learns() -> None:
    learner = learner_for(config_of(max_steps=1))
    before = weights_of(learner)
    assert train(learner, batches_of(1))[0].facts.learning_rate > 0
    assert not torch.equal(weights_of(learner)["fc.weight"], before["fc.weight"])


def test_counters_and_place_follow_every_step() -> None:
    learner = learner_for(config_of(accumulate=2))
    batches = batches_of(5)
    places = []
    for batch in batches:
        train(learner, [batch])
        places.append(learner.place)
    assert [place.step for place in places] == [0, 1, 1, 2, 2], (
        "the place moves with steps: what is not in a step yet is read again"
    )
    assert [place.next_seq for place in places] == [0, 2, 2, 4, 4]
    assert [place.position for place in places] == [0, 4, 4, 8, 8]
    assert [place.context_tokens for place in places] == [0, 70, 70, 140, 140]
    assert places[3].draft_tokens == 4 * 6 * 8
    assert places[3].samples == 8
    outcome = learner.finish()
    assert outcome is not None
    assert (learner.place.step, learner.place.next_seq, learner.place.samples) == (3, 5, 10)
    assert learner.progress == 1, "whatever the last conversations were: the data is used up"
    assert learner.finish() is None


def test_progress_is_by_steps_or_by_data_whichever_is_further() -> None:
    by_steps = learner_for(config_of(max_steps=10, epochs=3), conversations=20)
    by_data = learner_for(config_of(max_steps=None, epochs=2), conversations=10)
    train(by_steps, batches_of(2))
    train(by_data, batches_of(2))
    assert by_steps.progress == pytest.approx(0.2)
    assert by_data.progress == pytest.approx(4 / 20)


def test_slots_come_back_and_gradients_do_not_pile_up() -> None:
    released = []
    learner = learner_for(config_of(accumulate=2))
    for features in TARGET.extract(iter(batches_of(4))):
        give_back = features.release
        learner.learn(
            dataclasses.replace(features, release=lambda seq=features.seq, back=give_back: (released.append(seq), back()))
        )
    assert released == [0, 1, 2, 3]
    assert all(weight.grad is None for weight in learner.drafter.parameters())


def test_a_loss_that_is_not_finite_leaves_the_weights_alone() -> None:
    learner = learner_for(config_of())
    first, second = batches_of(2)
    train(learner, [first])
    before, optimizer_before = weights_of(learner), repr(learner.state()[1])
    outcome = learner.learn(spoilt(second))
    assert outcome is not None
    assert outcome.skipped == "non_finite_loss"
    assert math.isnan(outcome.facts.loss)
    assert outcome.facts.learning_rate == 0
    assert learner.place.step == 2
    assert learner.place.next_seq == 2
    assert_identical(weights_of(learner), before)
    assert repr(learner.state()[1]) == optimizer_before
    assert train(learner, [batches_of(3)[2]])[0].skipped == "", "and nothing of it is left in the next step"


def test_a_gradient_that_is_not_finite_is_skipped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_for(config_of())
    before = weights_of(learner)
    monkeypatch.setattr(Optimizer, "average", lambda *_: torch.tensor(math.inf))
    assert train(learner, batches_of(1))[0].skipped == "non_finite_gradient"
    assert_identical(weights_of(learner), before)


def test_ten_such_steps_in_a_row_end_the_run() -> None:
    learner = learner_for(config_of())
    batches = batches_of(2 * SKIPS_IN_A_ROW + 1)
    for batch in batches[: SKIPS_IN_A_ROW - 1]:
        learner.learn(spoilt(batch))
    train(learner, [batches[SKIPS_IN_A_ROW - 1]])  # a good one in between: the count begins anew
    for batch in batches[SKIPS_IN_A_ROW : 2 * SKIPS_IN_A_ROW - 1]:
        learner.learn(spoilt(batch))
    learner.raise_if_diverged()
    outcome = learner.learn(spoilt(batches[2 * SKIPS_IN_A_ROW - 1]))
    assert outcome is not None, "the tenth is told like the others"
    with pytest.raises(DivergedError) as caught:
        learner.raise_if_diverged()
    assert str(caught.value) == (
        "10 steps in a row had a loss or a gradient that is not finite: "
        "begin anew with a smaller --optimizer.learning-rate than 0.003"
    )


def test_batches_with_nothing_to_guess_are_skipped_and_no_divergence() -> None:
    learner = learner_for(config_of())
    before = weights_of(learner)
    mute = [dataclasses.replace(batch, supervised_T=torch.zeros(35, dtype=torch.bool)) for batch in batches_of(SKIPS_IN_A_ROW + 2)]
    outcomes = train(learner, mute)
    assert {outcome.skipped for outcome in outcomes} == {"no_draft_tokens"}
    assert outcomes[0].facts.position_accuracy == (None,) * 7
    assert_identical(weights_of(learner), before)


def test_six_steps_a_restore_and_six_more_are_twelve_bit_for_bit(tmp_path: Path) -> None:
    batches = batches_of(24)
    straight = learner_for(config_of(accumulate=2, max_steps=12))
    train(straight, batches)

    stopped = learner_for(config_of(accumulate=2, max_steps=12))
    train(stopped, batches[:13])  # one batch more than six steps: what is not in a step is read again
    written = write_checkpoint(tmp_path, stopped.place, *stopped.state(), facts={}, keep=1)

    resumed = learner_for(config_of(accumulate=2, max_steps=12), first_weights=9)
    resumed.restore(read_checkpoint(written))
    assert resumed.place.next_seq == 12
    outcomes = train(resumed, batches[resumed.place.next_seq :])
    assert [outcome.facts.step for outcome in outcomes] == [7, 8, 9, 10, 11, 12]
    assert resumed.place == straight.place
    assert_identical(weights_of(resumed), weights_of(straight))
    assert repr(resumed.state()[1]) == repr(straight.state()[1])
