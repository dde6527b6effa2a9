from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    FalconMambaConfig,
    FalconMambaForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

import trainer.decoding.generate
from tests.support.warpers import warped
from trainer.decoding.generate import (
    Answer,
    Request,
    RequestQueue,
    draw,
    generate_answers,
    prefill_groups,
    require_stop_token_ids,
    stop_token_ids,
)
from trainer.decoding.sampling import GREEDY, Sampling
from trainer.errors import ConfigError
from trainer.target.tiny import END, tiny_model, tiny_tokenizer

PROMPTS = [tiny_tokenizer()(f"Question {'x' * (7 * n % 20)} {n}?")["input_ids"] for n in range(9)]
MOST = 20
SIZES = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
STOPS = (36, 37, 38, 39)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them only get in each other's way over tensors this small
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return tiny_model()


def request(number: int, token_ids: Sequence[int], turn: int = 0) -> Request:
    return Request((number, turn), np.array(token_ids))


def answers(
    model: PreTrainedModel,
    batch_size: int,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    stop_ids: Sequence[int] = (END,),
    **knobs: Any,
) -> dict[int, Answer]:
    requests = RequestQueue()
    for number, prompt in enumerate(prompts):
        requests.put(request(number, prompt))
    steps = generate_answers(model, requests, **{"stop_ids": stop_ids, "max_new_tokens": MOST, "batch_size": batch_size, **knobs})
    return {answer.key[0]: answer for step in steps for answer in step.answers}


def greedy(model: PreTrainedModel, prompt: Sequence[int], stop_ids: Sequence[int] = (END,), most: int = MOST) -> list[int]:
    """Without a cache, padding or `generate`."""
    said: list[int] = []
    with torch.no_grad():
        while len(said) < most:
            token = int(model(torch.tensor([[*prompt, *said]]), use_cache=False).logits[0, -1].argmax())
            if token in stop_ids:
                break
            said.append(token)
    return said


def test_answers_in_batches_are_the_greedy_answers_to_each_prompt_alone(model: LlamaForCausalLM) -> None:
    alone = {number: greedy(model, prompt) for number, prompt in enumerate(PROMPTS)}
    for batch_size in (1, 3, 99):
        assert {number: answer.token_ids for number, answer in answers(model, batch_size).items()} == alone


def windowed(kind: str) -> PreTrainedModel:
    """A random model whose layers see only what is near: 8 tokens back, or the chunk of 8 that they are in."""
    torch.manual_seed(5)
    if kind == "gemma3":
        layers = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
        return Gemma3ForCausalLM(
            Gemma3TextConfig(
                **SIZES,
                num_hidden_layers=4,
                head_dim=8,
                sliding_window=8,
                layer_types=layers,
                initializer_range=0.3,
                tie_word_embeddings=False,
            )
        ).eval()
    if kind == "mistral":
        return MistralForCausalLM(MistralConfig(**SIZES, num_hidden_layers=3, sliding_window=8, initializer_range=0.3)).eval()
    config = Llama4TextConfig(
        **SIZES,
        num_hidden_layers=4,
        head_dim=8,
        attention_chunk_size=8,
        num_local_experts=2,
        intermediate_size_mlp=48,
        pad_token_id=0,
    )
    model = Llama4ForCausalLM(config).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)
    return model


@pytest.mark.parametrize("kind", ["gemma3", "mistral", "llama4"])
def test_layers_that_see_only_what_is_near_answer_as_they_would_alone(kind: str) -> None:
    model = windowed(kind)
    dice = np.random.default_rng(3)
    prompts = [dice.integers(0, 36, size).tolist() for size in (3, 30, 12, 5, 21, 9, 2, 17)]
    given = answers(model, 3, prompts, stop_ids=STOPS, max_new_tokens=30)
    alone = [greedy(model, prompt, STOPS, 30) for prompt in prompts]
    assert [given[number].token_ids for number in range(len(prompts))] == alone
    assert len({len(answer) for answer in alone}) > 1, "rows have to come and go"


def test_a_place_that_is_free_is_taken_while_others_go_on(model: LlamaForCausalLM) -> None:
    requests = RequestQueue()
    for number, prompt in enumerate(PROMPTS):
        requests.put(request(number, prompt))
    steps = generate_answers(model, requests, stop_ids=[END], max_new_tokens=60, batch_size=2)
    half_empty = sum(step.tokens == 1 for step in steps if requests)
    assert half_empty < len(PROMPTS), "one pass for each question that is read alone, and none besides"


def test_questions_may_be_put_while_others_are_answered(model: LlamaForCausalLM) -> None:
    requests, heard = RequestQueue(), {}
    requests.put(request(0, PROMPTS[0]))
    for step in generate_answers(model, requests, stop_ids=[END], max_new_tokens=MOST, batch_size=2):
        for answer in step.answers:
            heard[answer.key] = answer.token_ids
            if answer.key[1] < 2:
                requests.put(request(0, PROMPTS[0] + answer.token_ids, answer.key[1] + 1))
    assert list(heard) == [(0, 0), (0, 1), (0, 2)]
    assert heard[0, 1] == greedy(model, PROMPTS[0] + heard[0, 0])


def test_an_answer_is_finished_if_the_target_ended_it(model: LlamaForCausalLM) -> None:
    given = answers(model, 9).values()
    assert {answer.finished for answer in given} == {True, False}
    for answer in given:
        assert END not in answer.token_ids
        assert answer.finished == (len(answer.token_ids) < MOST)


def test_tokens_are_counted_as_they_are_said(model: LlamaForCausalLM) -> None:
    requests = RequestQueue()
    for number, prompt in enumerate(PROMPTS):
        requests.put(request(number, prompt))
    steps = list(generate_answers(model, requests, stop_ids=[END], max_new_tokens=MOST, batch_size=4))
    said = [answer for step in steps for answer in step.answers]
    assert sum(step.tokens for step in steps) == sum(len(answer.token_ids) + answer.finished for answer in said)


def test_habits_of_the_model_do_not_change_greedy_answers(model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = answers(model, 9)
    habits = GenerationConfig(do_sample=True, temperature=5.0, repetition_penalty=5.0, eos_token_id=[END])
    monkeypatch.setattr(model, "generation_config", habits)
    assert answers(model, 9) == usual


def test_every_end_token_stops(model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "generation_config", GenerationConfig(eos_token_id=[7, 9]))
    assert stop_token_ids(model, 3, None) == require_stop_token_ids(model, "tiny", 3, None) == [3, 7, 9, END]
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    with pytest.raises(ConfigError, match="target 'mine' names no token that ends an answer: set eos_token_id"):
        require_stop_token_ids(model, "mine", None)


def test_what_is_drawn_depends_on_the_seed_and_the_question_alone(model: LlamaForCausalLM) -> None:
    warm = {"sampling": Sampling(temperature=1.5, top_p=0.9, top_k=50)}
    given = answers(model, 5, **warm, seed=1)
    assert given == answers(model, 2, **warm, seed=1)
    assert {n: a.token_ids for n, a in given.items()} != {n: a.token_ids for n, a in answers(model, 5, **warm, seed=2).items()}
    twice = answers(model, 5, [PROMPTS[0]] * 2, **warm, seed=1)
    assert twice[0].token_ids != twice[1].token_ids, "each question has its own chances"


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=1.0), Sampling(temperature=0.7, top_p=0.5), Sampling(temperature=3.0, top_k=4)]
)
def test_tokens_are_drawn_as_often_as_the_target_would_say_them(model: LlamaForCausalLM, sampling: Sampling) -> None:
    draws = 1000
    given = answers(model, 1000, [PROMPTS[0]] * draws, sampling=sampling, max_new_tokens=1)
    seen = Counter(answer.token_ids[0] if answer.token_ids else END for answer in given.values())
    with torch.no_grad():
        share_V = warped(sampling, model(torch.tensor([PROMPTS[0]])).logits[0, -1:])[0].double()
    assert set(seen) <= set(share_V.nonzero().flatten().tolist())
    expected = {token: draws * share for token, share in enumerate(share_V.tolist()) if draws * share >= 5}
    surprise = sum((seen[token] - often) ** 2 / often for token, often in expected.items())
    assert surprise < len(expected) + 5 * (2 * len(expected)) ** 0.5, "chi-squared, five deviations above its mean"


def test_a_token_without_a_share_is_never_drawn() -> None:
    share_BV = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).expand(4, -1)
    chance_B = torch.tensor([0.0, 0.499, 0.5, 1 - 1e-12], dtype=torch.float64)
    assert draw(share_BV, chance_B).tolist() == [1, 1, 3, 3]


def test_questions_are_taken_longest_first() -> None:
    requests = RequestQueue()
    for number, size in enumerate([2, 5, 3, 5]):
        requests.put(request(number, range(size)))
    assert [one.key[0] for one in requests.take(3)] == [1, 3, 2]
    assert [one.key[0] for one in requests.take(3)] == [0]
    assert not requests


def test_what_is_read_in_one_pass_is_of_a_length_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer.decoding.generate, "PREFILL_TOKENS", 300)
    sizes = [100, 99, 98, 97, 50, 49, 10, 1]
    groups = [
        [len(one.token_ids) for one in group] for group in prefill_groups([request(n, range(size)) for n, size in enumerate(sizes)])
    ]
    assert groups == [[100, 99, 98], [97], [50, 49], [10], [1]]


def test_a_target_that_caches_something_else_is_refused() -> None:
    torch.manual_seed(0)
    model = FalconMambaForCausalLM(FalconMambaConfig(vocab_size=300, hidden_size=16, state_size=4, num_hidden_layers=2)).eval()
    with pytest.raises(ConfigError, match="something else than keys and values"):
        answers(model, 2, sampling=GREEDY)
