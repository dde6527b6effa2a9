from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.data.chat_template import Chat
from trainer.data.prompts import Prompt
from trainer.decoding.generate import Answer
from trainer.prepare.answer_store import AnswerStore
from trainer.prepare.turns import ConversationBuilder
from trainer.target.tiny import tiny_tokenizer

SYSTEM = {"role": "system", "content": "Be brief."}
ASK, MORE, LAST = ({"role": "user", "content": text} for text in ("Who?", "And why?", "Bye"))


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[AnswerStore]:
    answers = AnswerStore(tmp_path)
    yield answers
    answers.close()


def spoken(text: str, number: int = 0, turn: int = 0, *, finished: bool = True) -> Answer:
    return Answer((number, turn), tiny_tokenizer()(text)["input_ids"], finished)


def builder(answers: AnswerStore, *prompts: Prompt, turns: int = 0, longest: int = 4096) -> ConversationBuilder:
    return ConversationBuilder(prompts, answers, Chat(tiny_tokenizer()), turns=turns, longest=longest)


def asked(question: object) -> str:
    assert question is not None
    return str(tiny_tokenizer().decode(question.token_ids))  # type: ignore[attr-defined]


THREE = Prompt([SYSTEM, ASK], "chat", (MORE, LAST))


def test_each_turn_is_asked_behind_the_targets_own_answers(answers: AnswerStore) -> None:
    talk = builder(answers, THREE)
    first = talk.next_question(0)
    assert asked(first) == ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n")
    second = talk.add_answer(spoken("Me"))
    assert second is not None
    assert second.key == (0, 1)
    assert asked(second) == asked(first) + "Me<|im_end|>\n<|im_start|>user\nAnd why?<|im_end|>\n<|im_start|>assistant\n"
    third = talk.add_answer(spoken("So", turn=1))
    assert asked(third).endswith("So<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n")
    assert talk.add_answer(spoken("Ciao", turn=2)) is None
    (made,) = talk.conversations(keep_unfinished=False)
    assert made.row == {
        "messages": [SYSTEM, ASK, said("Me"), MORE, said("So"), LAST, said("Ciao")],
        "category": "chat",
        "finished": True,
    }
    assert (made.turns, made.answer_tokens, made.exact) == (3, 8, True)
    assert not talk.dropped
    assert not talk.cut_short


@pytest.mark.parametrize(("turns", "asked_in_all"), [(1, 1), (2, 2), (3, 3), (9, 3), (0, 3)])
def test_no_more_turns_are_asked_than_wanted(answers: AnswerStore, turns: int, asked_in_all: int) -> None:
    talk = builder(answers, THREE, turns=turns)
    question, count = talk.next_question(0), 0
    while question:
        question, count = talk.add_answer(spoken("Ja", turn=count)), count + 1
    assert count == asked_in_all
    (made,) = talk.conversations(keep_unfinished=False)
    assert len(made.row["messages"]) == 1 + 2 * asked_in_all
    assert not talk.cut_short


def test_what_was_answered_before_is_not_asked_again(answers: AnswerStore) -> None:
    builder(answers, THREE).add_answer(spoken("Me"))
    again = builder(answers, THREE)
    question = again.next_question(0)
    assert question is not None
    assert question.key == (0, 1)
    assert "Me<|im_end|>" in asked(question)


@pytest.mark.parametrize("keep", [False, True])
def test_an_unfinished_answer_ends_a_conversation(answers: AnswerStore, keep: bool) -> None:
    talk = builder(answers, THREE)
    talk.add_answer(spoken("Me"))
    assert talk.add_answer(spoken("On and", turn=1, finished=False)) is None
    assert talk.next_question(0) is None, "nor when it is looked at again"
    (made,) = talk.conversations(keep)
    kept = [SYSTEM, ASK, said("Me")] + ([MORE, said("On and")] if keep else [])
    assert (made.row["messages"], made.row["finished"]) == (kept, not keep)
    assert dict(talk.cut_short) == {"unfinished": 1}
    assert not talk.dropped


def test_an_unfinished_first_answer_leaves_nothing(answers: AnswerStore) -> None:
    talk = builder(answers, THREE)
    talk.add_answer(spoken("On and", finished=False))
    assert list(talk.conversations(keep_unfinished=False)) == []
    assert dict(talk.dropped) == {"unfinished": 1}
    assert not talk.cut_short


def test_a_turn_that_does_not_fit_cuts_a_conversation_short(answers: AnswerStore) -> None:
    talk = builder(answers, THREE, Prompt([ASK, LAST] * 40), longest=len("#system\nBe brief.#\n#user\nWho?#\n#assistant\n"))
    warnings: list[str] = []
    assert talk.next_question(0, warnings.append) is not None
    assert talk.next_question(1, warnings.append) is None
    assert dict(talk.dropped) == {"too_long": 1}
    assert warnings[0].startswith("Prompt 2 is left out: its ")
    assert talk.add_answer(spoken("Me")) is None
    assert dict(talk.cut_short) == {"too_long": 1}
    (made,) = talk.conversations(keep_unfinished=False)
    assert made.row["messages"] == [SYSTEM, ASK, said("Me")]


def test_an_answer_of_nothing_is_nothing_to_learn(answers: AnswerStore) -> None:
    talk = builder(answers, Prompt([ASK]))
    talk.add_answer(spoken(""))
    assert list(talk.conversations(keep_unfinished=False)) == []
    assert dict(talk.dropped) == {"nothing_to_learn": 1}


def test_tokens_that_training_would_spell_otherwise_are_not_exact(answers: AnswerStore) -> None:
    talk = builder(answers, THREE, turns=2)
    talk.add_answer(Answer((0, 0), [*b"Me", 0xC3], True))  # half of a letter, which no text gives back
    talk.add_answer(spoken("So", turn=1))
    (made,) = talk.conversations(keep_unfinished=False)
    assert made.row["messages"][2]["content"] == "Me\ufffd"
    assert not made.exact
