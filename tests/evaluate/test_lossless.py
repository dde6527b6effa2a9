"""trainer/evaluate/lossless.py: where an answer parts from the target's own, and whether rounding or a bug is why."""

from collections.abc import Iterator

import pytest
import torch
from transformers import PreTrainedModel

from trainer.decoding.speculative import decode_alone
from trainer.evaluate.lossless import Divergence, find_divergence
from trainer.target.tiny import tiny_model

PROMPT = [ord(letter) for letter in "What is a drafter?"]
TWIN, OTHER = 200, 201


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    """In its head, token TWIN has the row of the one that the target says fifth."""
    model = tiny_model(request.param).requires_grad_(False)
    fifth = decode_alone(model, PROMPT, max_new_tokens=5, stop_ids=()).token_ids[4]
    model.lm_head.weight[TWIN] = model.lm_head.weight[fifth]
    return model


@pytest.fixture(scope="module")
def own(model: PreTrainedModel) -> list[int]:
    return decode_alone(model, PROMPT, max_new_tokens=12, stop_ids=()).token_ids


def divergence(model: PreTrainedModel, drafted: list[int], own: list[int]) -> Divergence:
    found = find_divergence(model, PROMPT, drafted, own)
    assert found is not None
    return found


def test_equal_answers_do_not_part(model: PreTrainedModel, own: list[int]) -> None:
    assert find_divergence(model, PROMPT, list(own), tuple(own)) is None


def test_two_tokens_that_the_target_likes_equally_well_part_by_rounding(model: PreTrainedModel, own: list[int]) -> None:
    found = divergence(model, [*own[:4], TWIN, 99], own)
    assert (found.position, found.token, found.target_token, found.logit_gap) == (4, TWIN, own[4], 0.0)
    assert found.is_rounding


def test_a_token_that_the_target_does_not_like_is_a_bug(model: PreTrainedModel, own: list[int]) -> None:
    found = divergence(model, [*own[:7], OTHER], own)
    logit_V = model(torch.tensor([PROMPT + own[:7]])).logits[0, -1].float()
    assert (found.position, found.token, found.target_token) == (7, OTHER, own[7])
    assert found.logit_gap == pytest.approx(float(logit_V[own[7]] - logit_V[OTHER]), abs=4 * found.rounding)
    assert not found.is_rounding


def test_an_answer_that_stops_short_is_a_bug(model: PreTrainedModel, own: list[int]) -> None:
    found = divergence(model, own[:5], own)
    assert (found.position, found.token, found.target_token, found.logit_gap) == (5, None, own[5], None)
    assert not found.is_rounding
    assert divergence(model, [*own, 9], own).target_token is None


def test_rounding_is_as_small_as_the_precision_is_fine(model: PreTrainedModel, own: list[int]) -> None:
    rounding = divergence(model, [*own[:7], OTHER], own).rounding
    fine = model.dtype == torch.float32
    assert (1e-8 if fine else 1e-3) < rounding < (1e-3 if fine else 1.0)


def test_the_first_token_of_the_shortest_prompt_can_be_looked_at(model: PreTrainedModel) -> None:
    found = find_divergence(model, [65], [OTHER], [66])
    assert found is not None
    assert found.rounding > 0


def test_the_gap_may_lie_on_either_side() -> None:
    def by(gap: float) -> Divergence:
        return Divergence(position=0, token=1, target_token=2, logit_gap=gap, rounding=0.1)

    assert [by(gap).is_rounding for gap in (-0.5, -0.3, 0.0, 0.3, 0.5)] == [False, True, True, True, False]
