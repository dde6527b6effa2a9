"""trainer/run/data_checks.py: each thing that spoils a drafter in silence is stopped or warned of, and nothing else is."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import datasets
import pytest
from tokenizers import AddedToken

from tests.support import chat_templates as shapes
from tests.support.sources import ROOT
from trainer.config import LossConfig
from trainer.data.chat_template import Chat, Tokenised
from trainer.data.conversations import Message, Rejected
from trainer.errors import ConfigError
from trainer.run.data_checks import (
    SURVEY_SIZE,
    Survey,
    check_learnable,
    check_mask_unused,
    check_tokenizer,
    survey,
    warn_of_gamma,
    warn_of_little_to_learn,
    warn_of_missing_thoughts,
    warn_of_no_evaluation,
    warn_of_other_prompts,
)
from trainer.target.tiny import MASK, tiny_tokenizer

TINY = tiny_tokenizer()
QWEN3 = shapes.byte_level(shapes.QWEN3, "<|im_start|> <|im_end|>", bos="<|im_start|>", eos="<|im_end|>")


def chat(tokenizer: Any = TINY, *, mask: int = 0, size: int = 1000, length: int = 4096, **template_args: Any) -> Chat:
    """Its mask token is tiny's own, and with other tokenizers one behind all of theirs."""
    mask = mask or (MASK if tokenizer is TINY else 999)
    return Chat(tokenizer, max_length=length, template_args=template_args, mask_token_id=mask, vocab_size=size)


def talk(answer: str, question: str = "Why?", **more: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer, **more}]


def saved(talks: Sequence[list[dict[str, str]]]) -> datasets.Dataset:
    return datasets.Dataset.from_list([{"messages": messages} for messages in talks])


# What neither the target nor the drafter can tell from something else.


def test_a_conversation_with_the_mask_token_is_turned_away() -> None:
    turned_away = Rejected("mask_token", "it holds token 259 (<|mask|>), which stands for masked positions")
    assert chat().tokenise(talk("It says <|mask|> here.")) == turned_away
    assert chat().tokenise(talk("Because.", "What is <|mask|>?")) == turned_away, "the context counts too"
    assert chat().prompt_ids(talk("", "What is <|mask|>?")[:1]) == turned_away
    assert not isinstance(chat().tokenise(talk("It says [mask] here.")), Rejected)


def test_a_mask_token_that_is_cut_off_does_no_harm() -> None:
    assert not isinstance(chat(length=64).tokenise(talk(f"{'Long. ' * 20}<|mask|>")), Rejected)


def test_a_token_without_an_embedding_is_turned_away() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("<|picture|>", special=True)])
    guarded = chat(tokenizer, size=260)
    told = Rejected("malformed", "it holds token 260 (<|picture|>), for which the target has no embedding")
    assert guarded.tokenise(talk("See <|picture|>.")) == told
    assert guarded.prompt_ids(talk("", "What is on <|picture|>?")[:1]) == told
    assert not isinstance(guarded.tokenise(talk("See.")), Rejected)
    assert not isinstance(chat(tokenizer, size=261).tokenise(talk("See <|picture|>.")), Rejected)


def test_a_tokenizer_of_another_model_is_refused_and_added_tokens_are_not() -> None:
    tokenizer = tiny_tokenizer()
    check_tokenizer(tokenizer, 260, "mine")
    check_tokenizer(tokenizer, 256, "mine")  # the four behind are added ones
    with pytest.raises(ConfigError) as refused:
        check_tokenizer(tokenizer, 255, "mine")
    assert str(refused.value) == (
        "target 'mine' has embeddings for 255 tokens, but its tokenizer gives ids up to 255: "
        "give a folder whose tokenizer is the model's own"
    )


def test_a_mask_token_that_texts_commonly_use_is_refused_and_a_single_row_is_not() -> None:
    e = ord("e")
    found = survey(saved([talk("Yes, the end.", "W")] * 3 + [talk("No.", "W")] * 17), chat(mask=e))
    assert found.reasons == {"mask_token": 20}, "the template's own words hold it"
    with pytest.raises(ConfigError) as refused:
        check_mask_unused(found, e, TINY)
    assert str(refused.value) == (
        "drafter.mask_token_id must be a token that no text uses, got 101 (e), which 20 of the 20 conversations examined hold: "
        "leave it out to have an unused one chosen"
    )
    for poisoned, rows in ((1, 2), (1, 20), (6, 128)):
        check_mask_unused(found_with(examined=rows, mask_token=poisoned), MASK, TINY)
    for poisoned, rows in ((2, 20), (7, 128)):
        with pytest.raises(ConfigError, match=f"which {poisoned} of the {rows} conversations"):
            check_mask_unused(found_with(examined=rows, mask_token=poisoned), MASK, TINY)


def found_with(*, examined: int = 20, with_thoughts: int = 0, other_prompt: int = 0, **reasons: int) -> Survey:
    return Survey(
        examined=examined, reasons=Counter(reasons), details=Counter(), with_thoughts=with_thoughts, other_prompt=other_prompt
    )


# What the data are like.


def test_the_survey_looks_at_rows_from_everywhere() -> None:
    rows = [talk("Yes.")] * 900 + [talk("")] * 100
    found = survey(saved(rows), chat())
    assert found.examined == SURVEY_SIZE
    assert found.reasons == {"no_answer": 12}
    assert found.learnable == SURVEY_SIZE - 12
    assert survey(saved(rows[:3]), chat()).examined == 3


def check_all(talks: Sequence[list[dict[str, str]]]) -> int:
    """`check_learnable` after its survey; returns how many conversations were tokenised."""
    data, counting = saved(talks), CountingChat(TINY)
    check_learnable(data, counting, survey(data, counting))
    return counting.tokenised


class CountingChat(Chat):
    tokenised = 0

    def tokenise(self, messages: Sequence[Message]) -> Tokenised | Rejected:
        self.tokenised += 1
        return super().tokenise(messages)


def test_data_without_anything_to_learn_is_refused_with_its_reasons() -> None:
    assert check_all([talk(""), talk(""), talk("Answer")]) == 3
    with pytest.raises(ConfigError, match=r"none of the 2 conversations has anything to learn from \(2: no two tokens"):
        check_all([talk(""), talk("")])


def test_data_are_read_beyond_the_survey_only_until_there_is_something_to_learn() -> None:
    rows = [talk("")] * 900
    rows[14] = talk("Answer")
    assert check_all(rows) == SURVEY_SIZE, "the survey has rows 0, 7, 14 …"
    rows[10], rows[14] = talk("Answer"), talk("")
    assert check_all(rows) == SURVEY_SIZE + 9, "rows 1 to 10 without 7"
    with pytest.raises(ConfigError, match=r"none of the 300 conversations .* \(300: no two tokens"):
        check_all([talk("")] * 300)


def test_data_of_which_little_can_be_learnt_get_a_warning_with_the_share() -> None:
    found = survey(saved([talk("Yes.")] * 4 + [talk("")] * 5 + [talk("<|mask|> it is.")]), chat())
    assert list(warn_of_little_to_learn(found)) == [
        "Only 4 of the 10 conversations examined can be learnt from (5 no answer, 1 mask token); the rest will be dropped."
    ]
    assert list(warn_of_little_to_learn(found_with(examined=10, no_answer=5))) == []


# Template and thinking mode.

THOUGHTS = [
    talk("<think>\nHm.\n</think>\n\nYes."),
    talk("Yes.", reasoning_content="Hm."),
    [*talk("No."), *talk("<think>\nHm.\n</think>\n\nYes.")],
]
PLAIN = [talk("Yes."), [*talk("No."), *talk("Yes.", "And now?")]]


@pytest.mark.parametrize("messages", THOUGHTS)
def test_thoughts_in_data_whose_template_switches_them_off_are_warned_of(messages: list[dict[str, str]]) -> None:
    found = survey(saved([messages] * 10), chat(QWEN3, enable_thinking=False))
    assert (found.with_thoughts, found.other_prompt, found.learnable) == (10, 10, 10)
    (sentence,) = warn_of_other_prompts(found)
    assert sentence.startswith(
        "In 10 of the 10 conversations examined, the answer does not follow the prompt that the target is given"
    )
    served = survey(saved([messages] * 10), chat(QWEN3))
    assert (served.with_thoughts, served.other_prompt) == (10, 0)
    assert list(warn_of_other_prompts(served)) == []


@pytest.mark.parametrize("messages", PLAIN)
def test_answers_without_thoughts_stand_where_they_are_asked_for(messages: list[dict[str, str]]) -> None:
    for arguments in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
        found = survey(saved([messages] * 10), chat(QWEN3, **arguments))
        assert (found.with_thoughts, found.other_prompt, found.learnable) == (0, 0, 10)


def test_a_few_such_answers_are_no_mode() -> None:
    assert list(warn_of_other_prompts(found_with(examined=20, other_prompt=1))) == []
    assert list(warn_of_other_prompts(found_with(examined=128, other_prompt=6))) == []
    assert len(list(warn_of_other_prompts(found_with(examined=128, other_prompt=7)))) == 1


@pytest.mark.parametrize(
    "template", [shapes.CHATML, shapes.LLAMA3, shapes.MISTRAL, shapes.GEMMA, shapes.LLAMA2, shapes.PLAIN, shapes.QWEN3]
)
def test_no_known_template_is_warned_of_for_plain_answers(template: str) -> None:
    tokenizer = shapes.byte_level(template, "<|im_start|> <|im_end|>", bos="<|im_start|>", eos="<|im_end|>")
    found = survey(saved(PLAIN), chat(tokenizer))
    assert (found.other_prompt, found.learnable) == (0, 2)


def test_a_target_that_is_asked_to_think_and_never_does_in_the_data_is_warned_of() -> None:
    found = found_with(examined=20)
    (sentence,) = warn_of_missing_thoughts(found, QWEN3, {})
    assert sentence == (
        "None of the 20 conversations examined has thoughts, but the target's template asks for them: add "
        "--dataset.template-args enable_thinking false if it is served without, or train on answers that have them."
    )
    assert len(list(warn_of_missing_thoughts(found, QWEN3, {"enable_thinking": True}))) == 1
    assert list(warn_of_missing_thoughts(found, QWEN3, {"enable_thinking": False})) == []
    assert list(warn_of_missing_thoughts(found_with(examined=20, with_thoughts=1), QWEN3, {})) == []
    assert list(warn_of_missing_thoughts(found, TINY, {})) == [], "its template has no such switch"


# Settings.


@pytest.mark.parametrize(("block", "gamma"), [(16, 3.4), (16, 14.1), (10, 2.4), (8, 8.1)])
def test_a_decay_far_from_the_rule_is_warned_of(block: int, gamma: float) -> None:
    (sentence,) = warn_of_gamma(LossConfig(gamma=gamma), block)
    usual = {16: 7, 10: 5, 8: 4}[block]
    assert sentence.startswith(
        f"loss.gamma is {gamma:g}, and the usual value for blocks of {block} tokens is {usual}: late positions"
    )
    assert ("next to nothing" in sentence) == (gamma < usual)


@pytest.mark.parametrize(("block", "gamma"), [(16, None), (16, 7.0), (16, 4.0), (16, 14.0), (8, 7.0), (10, 2.5)])
def test_a_decay_near_the_rule_is_not(block: int, gamma: float | None) -> None:
    assert list(warn_of_gamma(LossConfig(gamma=gamma), block)) == []


def test_nothing_to_measure_acceptance_on_is_said_unless_nobody_asked() -> None:
    assert list(warn_of_no_evaluation(500, False, "talks")) == [
        "No acceptance will be measured while training, since data 'talks' has no held-out conversation that can be used: "
        "give --evaluate.prompts, or --evaluate.every 0 to go without."
    ]
    assert list(warn_of_no_evaluation(500, True, "talks")) == list(warn_of_no_evaluation(0, False, "talks")) == []


# Their page.


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "guards.md").read_text(encoding="utf-8"))
    assert len(named) > 30
    there = {file: (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).is_file() else "" for file, _ in named}
    assert [(file, name) for file, name in named if f"\ndef {name}(" not in there[file]] == []
