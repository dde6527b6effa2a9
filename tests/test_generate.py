from collections.abc import Iterator

import pytest
import torch
from transformers import GenerationConfig, LlamaForCausalLM

from trainer.generate import Answer, answer_prompts, stop_token_ids
from trainer.tiny import END, tiny_model, tiny_tokenizer

PROMPTS = [tiny_tokenizer()(f"Question {'x' * (7 * n % 20)} {n}?")["input_ids"] for n in range(6)]
MOST = 24


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaForCausalLM]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them only get in each other's way over tensors this small
    yield tiny_model()
    torch.set_num_threads(threads)


def answers(model: LlamaForCausalLM, batch_size: int) -> dict[int, Answer]:
    batches = answer_prompts(model, PROMPTS, stop_ids=[END], max_new_tokens=MOST, batch_size=batch_size)
    return {answer.index: answer for batch in batches for answer in batch}


def greedy(model: LlamaForCausalLM, prompt: list[int]) -> list[int]:
    """Without a cache, padding or `generate`."""
    said: list[int] = []
    with torch.no_grad():
        while len(said) < MOST:
            token = int(model(torch.tensor([prompt + said]), use_cache=False).logits[0, -1].argmax())
            if token == END:
                break
            said.append(token)
    return said


def test_answers_in_batches_are_the_greedy_answers_to_each_prompt_alone(model: LlamaForCausalLM) -> None:
    batched = answers(model, batch_size=4)
    assert batched == answers(model, batch_size=1)
    for index in (0, 3):
        assert batched[index].token_ids == greedy(model, PROMPTS[index])


def test_an_answer_is_finished_if_the_target_ended_it(model: LlamaForCausalLM) -> None:
    given = answers(model, batch_size=9).values()
    assert {answer.finished for answer in given} == {True, False}
    for answer in given:
        assert END not in answer.token_ids
        assert answer.finished == (len(answer.token_ids) < MOST)


def test_habits_of_the_model_do_not_change_greedy_answers(model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = answers(model, batch_size=9)
    habits = GenerationConfig(do_sample=True, temperature=5.0, repetition_penalty=5.0, eos_token_id=[END])
    monkeypatch.setattr(model, "generation_config", habits)
    assert answers(model, batch_size=9) == usual
    assert model.generation_config is habits


def test_every_end_token_stops(model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "generation_config", GenerationConfig(eos_token_id=[7, 9]))
    assert stop_token_ids(model, 3, None) == [3, 7, 9, END]
