"""trainer/evaluate/online.py: measured beside training, on a copy, without a way to hurt it."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config

from tests.support.small import lay_out, lively_drafter
from tests.support.threads import eventually
from tests.support.watched import STEP
from trainer.config import DrafterConfig
from trainer.data.held_out import HeldOut
from trainer.decoding.acceptance_length import acceptance_length
from trainer.decoding.speculative import SpeculativeDecoder
from trainer.drafter.learner import StepResult
from trainer.drafter.model import Drafter, choose_layer_ids, drafter_architecture
from trainer.evaluate.online import ESTIMATES, Evaluator, NoEvaluator
from trainer.record.format import EvaluationLine
from trainer.target.tiny import MASK, tiny_config, tiny_model

PROMPTS = [list(range(40, 52)), list(range(60, 75)), list(range(33, 40))]
NEVER = 999  # an id that no answer holds: each is as long as it may be


@dataclass
class Told:
    done: list[EvaluationLine] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)

    def evaluated(self, facts: EvaluationLine) -> None:
        self.done.append(facts)

    def evaluation_failed(self, message: str) -> None:
        self.failed.append(message)

    def evaluation_skipped(self, step: int) -> None:
        self.skipped.append(step)


class Gate:
    """Holds the evaluator's thread at its start until it is opened."""

    def __init__(self) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.opened.wait(60)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model()


@pytest.fixture
def told() -> Told:
    return Told()


def architecture() -> Qwen3Config:
    config = DrafterConfig(block_size=4, layers=1, target_layers=2)
    return drafter_architecture(tiny_config(), config, choose_layer_ids(8, config), MASK)


def drafter() -> Drafter:
    return lively_drafter(architecture())


def evaluator(model: PreTrainedModel, told: Told, held_out: HeldOut | None = None, **changed: Any) -> Evaluator:
    held_out = held_out or HeldOut(prompts=PROMPTS, conversations=[])
    arguments: dict[str, Any] = {"every": 2, "anchors": 32, "max_new_tokens": 9, "stop_ids": [NEVER], **changed}
    return Evaluator(model, architecture(), held_out, told, **arguments)


def after(step: int, estimate: float = 1.5, skipped: str = "") -> StepResult:
    """What a training step was, as far as the evaluator asks."""
    return StepResult(replace(STEP, step=step, estimated_acceptance_length=estimate), skipped, 0.5)


def never() -> bool:
    return False


def hooks(model: PreTrainedModel) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


def test_what_it_measures_is_real_decoding_by_the_drafter_of_that_step(model: PreTrainedModel, told: Told) -> None:
    trained = drafter()
    with SpeculativeDecoder(model, trained) as speculator:
        texts = [speculator.decode(prompt, max_new_tokens=9, stop_ids=[NEVER]) for prompt in PROMPTS]
    rounds = [one for text in texts for one in text.rounds]
    with evaluator(model, told) as measuring:
        measuring.measure_last(5, trained, never)
    (facts,) = told.done
    assert (facts.step, facts.prompts, facts.tokens, facts.rounds) == (5, 3, 27, len(rounds))
    assert facts.measured_length == acceptance_length(rounds)
    assert facts.held_out_estimated_length is None
    assert len(facts.acceptance_by_position) == 3
    assert facts.tokens_per_second > 0
    assert facts.seconds > 0


def test_it_measures_when_it_is_due_and_the_last_step_once(model: PreTrainedModel, told: Told) -> None:
    with evaluator(model, told) as measuring:
        for step in range(1, 5):
            measuring.measure_if_due(step, drafter())
            eventually(lambda step=step: len(told.done) == step // 2, within=60)
        measuring.measure_last(4, drafter(), never)
        assert [facts.step for facts in told.done] == [2, 4]
        measuring.measure_last(5, drafter(), never)
    assert [facts.step for facts in told.done] == [2, 4, 5]
    assert told.skipped == told.failed == []


def test_the_training_estimate_is_of_the_steps_up_to_the_one_that_is_measured(model: PreTrainedModel, told: Told) -> None:
    with evaluator(model, told, every=31, max_new_tokens=4) as measuring:
        for step in range(1, 11):
            measuring.note(after(step, 9.0))
        for step in range(11, 30):
            measuring.note(after(step, 2.0))
        measuring.note(after(29, math.nan))
        measuring.note(after(30, 50.0, "no_draft_tokens"))
        measuring.note(after(31, 2.0))
        measuring.measure_if_due(31, drafter())
        measuring.note(after(32, 7.0))  # while it is measured
        eventually(lambda: len(told.done) == 1, within=60)
    assert told.done[0].training_estimated_length == 2.0
    assert ESTIMATES == 20


def test_training_goes_on_from_the_copy_and_does_not_change_what_is_measured(model: PreTrainedModel, told: Told) -> None:
    gate, trained = Gate(), drafter()
    with evaluator(model, told) as measuring:
        measuring.measure_last(1, trained, never)
    with evaluator(model, told, thread_start=gate) as measuring:
        measuring.measure_if_due(2, trained)
        assert gate.reached.wait(60)
        with torch.no_grad():
            for weight in trained.parameters():
                weight.zero_()
        gate.opened.set()
        eventually(lambda: len(told.done) == 2, within=60)
    assert told.done[0].measured_length == told.done[1].measured_length
    assert told.done[0].rounds == told.done[1].rounds


def test_one_that_is_due_while_another_runs_is_left_out(model: PreTrainedModel, told: Told) -> None:
    gate = Gate()
    with evaluator(model, told, thread_start=gate) as measuring:
        measuring.measure_if_due(2, drafter())
        measuring.measure_if_due(4, drafter())
        assert told.skipped == [4]
        gate.opened.set()
        eventually(lambda: len(told.done) == 1, within=60)


def test_leaving_gives_up_within_a_round_and_takes_the_taps_off(model: PreTrainedModel, told: Told) -> None:
    before = hooks(model)
    with evaluator(model, told, max_new_tokens=3000) as measuring:
        assert hooks(model) == before + 2
        measuring.measure_if_due(2, drafter())
        assert measuring._thread is not None
        assert measuring._thread.is_alive()
    assert not measuring._thread.is_alive()
    assert told.done == told.failed == []
    assert hooks(model) == before


def test_the_last_one_is_given_up_when_the_run_is_stopped(model: PreTrainedModel, told: Told) -> None:
    asked: list[bool] = []

    def after_a_while() -> bool:
        asked.append(True)
        return len(asked) > 3

    with evaluator(model, told, max_new_tokens=3000) as measuring:
        measuring.measure_last(3, drafter(), after_a_while)
    assert told.done == []


def test_a_failure_is_told_and_ends_nothing(model: PreTrainedModel, told: Told, caplog: pytest.LogCaptureFixture) -> None:
    def out_of_memory() -> None:
        raise RuntimeError("CUDA out of memory.\nTried to allocate")

    caplog.set_level(logging.INFO)
    with evaluator(model, told, thread_start=out_of_memory) as measuring:
        measuring.measure_last(7, drafter(), never)
    sentence = "The evaluation after step 7 failed (RuntimeError: CUDA out of memory. Tried to allocate)."
    assert told.failed == [sentence]
    assert "in out_of_memory" in caplog.text


def test_a_thread_that_hangs_is_left_behind(model: PreTrainedModel, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.evaluate.online.JOIN_SECONDS", 0.05)
    gate = Gate()
    with evaluator(model, told, thread_start=gate) as measuring:
        measuring.measure_if_due(2, drafter())
        assert gate.reached.wait(60)
    assert measuring._thread is not None
    assert measuring._thread.is_alive(), "nobody waited until it had given up by itself"
    gate.opened.set()
    measuring._thread.join(20)
    assert told.done == []


def test_answers_that_end_at_once_are_no_measurement(model: PreTrainedModel, told: Told) -> None:
    with evaluator(model, told, stop_ids=list(range(260))) as measuring:
        measuring.measure_last(7, drafter(), never)
    assert told.done == []
    assert "nothing was drafted" in told.failed[0]


def test_the_estimate_is_of_the_held_out_conversations(model: PreTrainedModel, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that says the same token always is right where the text does: here in every place, and then in none."""
    said = torch.full((40,), 65)
    same, other = (HeldOut(prompts=PROMPTS[:1], conversations=[with_tokens(said + shift)]) for shift in (0, 1))
    # The head's rows are looked up by a hidden state that points at token 65's.
    pointing = model.get_output_embeddings().weight[65]
    monkeypatch.setattr(Drafter, "draft", lambda self, context, draft_QD, *_: pointing.expand(len(draft_QD), -1) * 9)
    for held_out in (same, other):
        with evaluator(model, told, held_out) as measuring:
            measuring.measure_last(1, drafter(), never)
    assert [facts.held_out_estimated_length for facts in told.done] == [4.0, 1.0]


def test_a_guess_behind_a_wrong_one_is_not_counted(model: PreTrainedModel, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter says one token always, the text says it every second time: half of the anchors keep one draft token, none two."""
    said = torch.tensor([65, 66] * 20)
    pointing = model.get_output_embeddings().weight[65]
    monkeypatch.setattr(Drafter, "draft", lambda self, context, draft_QD, *_: pointing.expand(len(draft_QD), -1) * 9)
    with evaluator(model, told, HeldOut(prompts=PROMPTS[:1], conversations=[with_tokens(said)]), anchors=64) as measuring:
        measuring.measure_last(1, drafter(), never)
    assert told.done[0].held_out_estimated_length == pytest.approx(1.5, abs=0.05)


def with_tokens(token_T: torch.Tensor) -> Any:
    batch = lay_out([len(token_T)])
    return type(batch)(**{**{name: getattr(batch, name) for name in batch.__slots__}, "token_T": token_T})


def test_nothing_to_measure() -> None:
    with NoEvaluator() as measuring:
        measuring.measure_if_due(2, drafter())
        measuring.measure_last(2, drafter(), never)


@pytest.fixture(autouse=True)
def no_evaluator_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "evaluator"]
