"""Batches of features in, steps out: the same whatever is packed with whatever, repeatable, resumable, and it learns."""

import dataclasses
import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.learning import MODEL, TARGET, WITH_LAST, assert_identical, batches_of, config_of, learner_for, train, weights_of
from trainer.config import LossConfig, OptimizerConfig
from trainer.data.batches import Cursor, TokenBatch
from trainer.drafter import learner as learner_module
from trainer.drafter.checkpoint import read_checkpoint, write_checkpoint
from trainer.drafter.learner import SKIPS_IN_A_ROW
from trainer.drafter.loss import drafter_loss
from trainer.drafter.model import Drafter
from trainer.drafter.optimizer import Optimizer

Anchors = tuple[torch.Tensor, torch.Tensor]
OBJECTIVES = [LossConfig(gamma=2.5), LossConfig(objective="dpace", dpace_alpha=0.3), LossConfig(objective="distillation")]
Anchors = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda config: config.objective)
def test_packed_and_unpacked_training_of_the_same_samples_are_equal(
    objective: LossConfig, monkeypatch: pytest.MonkeyPatch, gradients: list[dict[str, torch.Tensor]]
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
    together, one_by_one = learner_for(config_of(loss=objective)), learner_for(config_of(accumulate=3, loss=objective))
    (packed_result,), (alone_result,) = train(together, [packed]), train(one_by_one, alone)
    assert alone_result.line.loss == pytest.approx(packed_result.line.loss, rel=1e-5)
    assert alone_result.line.grad_norm == pytest.approx(packed_result.line.grad_norm, rel=1e-4)
    assert alone_result.line.position_accuracy == packed_result.line.position_accuracy
    of_packed, of_alone = gradients
    for name, gradient in of_packed.items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(of_alone[name], gradient, rtol=1e-4, atol=1e-6)


def test_the_loss_is_the_mean_over_all_batches_of_a_step_not_of_their_means() -> None:
    batches = [*batches_of(1, 30), dataclasses.replace(batches_of(2, 9)[1])]
    separate = [learner_for(config_of()) for _ in batches]
    losses = [train(learner, [batch])[0].line.loss for learner, batch in zip(separate, batches, strict=True)]
    (result,) = train(learner_for(config_of(accumulate=2)), batches)
    assert min(losses) < result.line.loss < max(losses)
    assert result.line.loss != pytest.approx(sum(losses) / 2, rel=1e-6), "the second has fewer guesses and so counts less"


def test_training_again_gives_the_same_weights_bit_for_bit() -> None:
    runs = []
    for _ in range(2):
        learner = learner_for(config_of())
        lines = [dataclasses.replace(result.line, step_seconds=0) for result in train(learner, batches_of(6))]
        runs.append((weights_of(learner), lines))
    assert_identical(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


def test_the_seed_decides_the_anchors() -> None:
    losses = {train(learner_for(config_of(seed=seed)), batches_of(1))[0].line.loss for seed in (0, 1)}
    assert len(losses) == 2


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda config: config.objective)
def test_the_loss_is_the_configs(objective: LossConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(*args: Any) -> Any:
        seen.append(args[-1])
        return drafter_loss(*args)

    monkeypatch.setattr(learner_module, "drafter_loss", watched)
    train(learner_for(config_of(loss=objective)), batches_of(1))
    assert seen == [objective]


@pytest.mark.parametrize("objective", [LossConfig(), LossConfig(objective="dpace")], ids=lambda config: config.objective)
def test_it_learns_a_few_samples_by_heart(objective: LossConfig) -> None:
    batches = batches_of(1, 30, 24)
    learner = learner_for(config_of(max_steps=200, loss=objective))
    repeated = [dataclasses.replace(batches[0], seq=seq) for seq in range(200)]
    lines = [result.line for result in train(learner, repeated)]
    first, last = lines[0], lines[-10:]
    # D-PACE's loss falls more slowly: its weights grow with the drafter's certainty.
    assert sum(one.loss for one in last) / 10 < (0.1 if objective.objective == "cross_entropy" else 0.5) * first.loss
    assert sum(one.estimated_acceptance_length for one in last) / 10 > 6.5 > 1.5 > first.estimated_acceptance_length
    assert learner.is_done


def test_it_learns_what_the_target_would_say() -> None:
    (batch,) = batches_of(1, 30, 24)
    learner = learner_for(config_of(max_steps=200, loss=LossConfig(objective="distillation")))
    lines = [result.line for result in train(learner, [dataclasses.replace(batch, seq=seq) for seq in range(200)])]
    (features,) = WITH_LAST.extract(iter([batch]))
    logit_TV = features.last_TD @ MODEL.lm_head.weight.T
    features.release()
    least = torch.distributions.Categorical(logits=logit_TV).entropy().mean().item()
    assert 0 < sum(one.loss for one in lines[-10:]) / 10 - least < 0.2 * (lines[0].loss - least)


def test_what_a_step_tells() -> None:
    learner = learner_for(config_of(max_steps=4), conversations=20)
    results = train(learner, batches_of(3))
    assert [result.skipped for result in results] == [""] * 3
    line, progress = results[-1].line, results[-1].progress_ratio
    assert (line.step, line.seq) == (3, 2)
    assert (line.context_tokens, line.draft_tokens, line.samples) == (3 * 35, 3 * 6 * 8, 3 * 2)
    assert line.epoch == pytest.approx(6 / 20)
    assert progress == learner.progress == 0.75
    assert line.loss == pytest.approx(math.log(260), rel=0.3)
    assert len(line.position_accuracy) == 7
    assert 1 <= line.estimated_acceptance_length <= 8
    assert line.grad_norm > 0
    assert 0 < line.learning_rate < 3e-3
    assert line.step_seconds > 0
    assert not learner.is_done


def test_each_step_has_the_rate_of_its_middle_so_that_none_is_wasted() -> None:
    optimizer = OptimizerConfig(learning_rate=3e-3, warmup_ratio=0.25)
    learner = learner_for(dataclasses.replace(config_of(max_steps=4), optimizer=optimizer))
    rates = [result.line.learning_rate for result in train(learner, batches_of(4))]
    falling = [(1 + math.cos(math.pi * done / 6)) / 2 for done in (1, 3, 5)]
    assert rates == pytest.approx([3e-3 * share for share in (0.5, *falling)])


def test_a_run_of_one_step_learns() -> None:
    learner = learner_for(config_of(max_steps=1))
    before = weights_of(learner)
    assert train(learner, batches_of(1))[0].line.learning_rate > 0
    assert not torch.equal(weights_of(learner)["fc.weight"], before["fc.weight"])


def test_the_train_state_moves_with_steps() -> None:
    learner = learner_for(config_of(accumulate=2))
    batches = batches_of(5)
    states = []
    for batch in batches:
        train(learner, [batch])
        states.append(learner.train_state)
    assert [state.step for state in states] == [0, 1, 1, 2, 2], "a batch that is in no step yet is read again"
    assert [state.next_seq for state in states] == [0, 2, 2, 4, 4]
    assert [state.position for state in states] == [0, 4, 4, 8, 8]
    assert [state.context_tokens for state in states] == [0, 70, 70, 140, 140]
    assert states[3].draft_tokens == 4 * 6 * 8
    assert states[3].samples == 8
    result = learner.finish()
    assert result is not None
    assert (learner.train_state.step, learner.train_state.next_seq, learner.train_state.samples) == (3, 5, 10)
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


def test_batches_with_nothing_to_guess_are_skipped_and_no_divergence() -> None:
    learner = learner_for(config_of())
    before = weights_of(learner)
    mute = [dataclasses.replace(batch, supervised_T=torch.zeros(35, dtype=torch.bool)) for batch in batches_of(SKIPS_IN_A_ROW + 2)]
    results = train(learner, mute)
    assert {result.skipped for result in results} == {"no_draft_tokens"}
    assert results[0].line.position_accuracy == (None,) * 7
    assert_identical(weights_of(learner), before)


def test_six_steps_a_restore_and_six_more_are_twelve_bit_for_bit(tmp_path: Path) -> None:
    batches = batches_of(24)
    straight = learner_for(config_of(accumulate=2, max_steps=12))
    train(straight, batches)

    stopped = learner_for(config_of(accumulate=2, max_steps=12))
    train(stopped, batches[:13])  # one batch more than six steps: what is not in a step is read again
    written = write_checkpoint(tmp_path, stopped.train_state, *stopped.state(), metadata={}, keep=1)

    resumed = learner_for(config_of(accumulate=2, max_steps=12), first_weights=9)
    resumed.restore(read_checkpoint(written))
    assert resumed.train_state.next_seq == 12
    results = train(resumed, batches[resumed.train_state.next_seq :])
    assert [result.line.step for result in results] == [7, 8, 9, 10, 11, 12]
    assert resumed.train_state == straight.train_state
    assert_identical(weights_of(resumed), weights_of(straight))
    assert repr(resumed.state()[1]) == repr(straight.state()[1])


def test_another_thread_that_leaves_its_autocast_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's cache of casts is one for the process, and any thread clears it: a measurement beside training would, at any time."""

    def leave_autocast() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            pass

    def disturbed(drafter: Drafter, *arguments: Any) -> torch.Tensor:
        thread = threading.Thread(target=leave_autocast)
        thread.start()
        thread.join()
        return draft(drafter, *arguments)

    draft = Drafter.draft
    alone, beside = (learner_for(config_of(), autocast=True) for _ in range(2))
    (batch,) = batches_of(1)
    train(alone, [batch])
    monkeypatch.setattr(Drafter, "draft", disturbed)
    train(beside, [batch])
    assert_identical(weights_of(alone), weights_of(beside))
