"""The overfit proof with a small random target: eight answers of its own, learnt by heart, decoded by z-lab's loop and by ours."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.overfit import Exam, by_our_command, by_our_loop, by_their_loop, export, learn, said_in, tokens_per_round
from tests.support.talkers import conversations_of, save_talker, talker, tiny_chat
from tests.support.zlab import load_reference

pytestmark = pytest.mark.slow(seconds=35)

BLOCK, STEPS, HALF = 8, 200, 90
# Wide enough to learn three hundred tokens by heart in ten seconds.
SHAPE = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 6}
FLAGS = f"""--max-steps {STEPS} --checkpoint.every {HALF} --checkpoint.keep 5 --drafter.block-size {BLOCK} --drafter.layers 2
    --drafter.target-layers 3 --drafter.anchors 32 --dataset.max-length 128 --batches.token-budget 128
    --optimizer.learning-rate 2.5e-3 --cpu-threads 1"""


@dataclass(frozen=True)
class Learnt:
    exam: Exam
    exported: Path
    half: Path
    """The same drafter, exported while it still got many tokens wrong."""


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Learnt:
    folder = tmp_path_factory.mktemp("overfit")
    model = talker("Llama", seed=24, **SHAPE)
    conversations = conversations_of(model, tiny_chat(), count=8, tokens=(29, 57))
    exam = Exam(save_talker(model, folder / "target"), conversations, max_new_tokens=57)
    run = learn(exam, folder, FLAGS)
    half = export(run / "checkpoints" / f"step-{HALF:09d}", folder / "half")
    return Learnt(exam, export(run, folder / "exported"), half)


def test_what_was_learnt_is_accepted_where_it_is_served(learnt: Learnt, tmp_path: Path) -> None:
    theirs = by_their_loop(learnt.exam, learnt.exported)
    served = tokens_per_round(theirs)
    assert served >= 0.8 * BLOCK
    measured = by_our_command(learnt.exam, learnt.exported, tmp_path)
    assert measured["acceptance_length"] >= 0.8 * BLOCK
    assert measured["acceptance_length"] == pytest.approx(served, rel=0.02)
    assert (measured["prompts"], measured["lossless"]) == (8, True)
    chat = tiny_chat()
    assert [chat.decode(said) for said in said_in(theirs)] == [messages[-1]["content"] for messages in learnt.exam.conversations]


def test_both_loops_agree_round_by_round(learnt: Learnt) -> None:
    """With a drafter that is right now and then."""
    exam = learnt.exam.first(4)
    theirs, ours = by_their_loop(exam, learnt.half), by_our_loop(exam, learnt.half)
    assert [one.token_ids for one in ours] == said_in(theirs)
    assert [[one.kept for one in decoded.rounds] for decoded in ours] == [stats.acceptance_lengths for stats in theirs]
    assert set(range(1, 5)) <= {length for stats in theirs for length in stats.acceptance_lengths}
    assert 1.2 < tokens_per_round(theirs) < 0.7 * BLOCK


def another_target(exam: Exam) -> Any:
    """Every weight off by three hundredths of their spread: as a quantised copy of the target would be, or its next version."""
    model, dice = exam.model(), torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.add_(torch.randn(weight.shape, generator=dice) * weight.std().nan_to_num(), alpha=0.03)
    return model


SERVED_BY = {
    "the target in bfloat16": lambda exam: exam.model().to(torch.bfloat16),
    "another target": another_target,
}


@pytest.mark.parametrize("case", SERVED_BY)
def test_by_another_target_than_it_learnt_from_it_is_not_accepted(learnt: Learnt, case: str) -> None:
    theirs = by_their_loop(learnt.exam.first(1), learnt.exported, SERVED_BY[case](learnt.exam))
    assert tokens_per_round(theirs) < 0.4 * BLOCK


def with_another_mask(drafter: Any) -> Any:
    drafter.mask_token_id = ord("m")
    return drafter


def with_half_the_frequencies(drafter: Any) -> Any:
    drafter.rotary_emb.inv_freq /= 2
    return drafter


@pytest.mark.parametrize("misread", [with_another_mask, with_half_the_frequencies])
def test_an_export_that_says_something_wrong_is_found(learnt: Learnt, misread: Callable[[Any], Any]) -> None:
    """Each of these loads and runs without a word; only what is accepted tells."""
    theirs = by_their_loop(learnt.exam.first(1), learnt.exported, drafter=misread(load_reference(learnt.exported)))
    assert tokens_per_round(theirs) < 0.4 * BLOCK
