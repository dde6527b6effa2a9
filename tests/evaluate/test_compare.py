"""trainer/evaluate/compare.py: which prompts are asked, and that each is answered twice on equal settings."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.talkers import tiny_chat
from trainer.data.conversations import Rejected
from trainer.data.prompts import Prompt
from trainer.decoding.acceptance_length import Round
from trainer.decoding.sampling import Sampling
from trainer.decoding.speculative import Decoded
from trainer.errors import ConfigError
from trainer.evaluate import compare
from trainer.evaluate.compare import AnsweredPrompt, DecodingSettings, TokenisedPrompt, answer_prompts, read_prompts
from trainer.evaluate.lossless import Divergence

PROMPTS = [TokenisedPrompt(number, "", [10 + number]) for number in (0, 1, 3)]
TERMS = DecodingSettings(max_new_tokens=100, stop_ids=[2], seed=7)


def ask(text: str, category: str = "") -> Prompt:
    return Prompt([{"role": "user", "content": text}], category)


def test_prompts_become_tokens_with_their_number_and_category() -> None:
    asked, left_out = read_prompts(tiny_chat(), [ask("Hi", "talk"), ask("Ho")], limit=99)
    assert [(one.number, one.category) for one in asked] == [(0, "talk"), (1, "")]
    assert [one.token_ids for one in asked] == [tiny_chat().prompt_ids(ask(text).messages) for text in ("Hi", "Ho")]
    assert left_out == Counter()


def test_prompts_that_are_too_long_are_left_out_and_counted() -> None:
    length = len(tiny_chat().prompt_ids(ask("Hi").messages))
    asked, left_out = read_prompts(tiny_chat(), [ask("longer"), ask("Hi"), ask("longest")], limit=length)
    assert [one.number for one in asked] == [1]
    assert left_out == Counter({"too_long": 2})


class Picky:
    def prompt_ids(self, messages: Sequence[dict[str, str]], limit: int) -> list[int] | Rejected:
        rejected = {
            "bad": Rejected("template", "the template refuses it"),
            "long": Rejected("too_long", "its 2 tokens are too many"),
        }
        return rejected.get(messages[0]["content"], [1, 2])


def test_what_the_template_refuses_is_left_out() -> None:
    asked, left_out = read_prompts(Picky(), [ask("bad"), ask("long"), ask("good")], limit=9)  # type: ignore[arg-type]
    assert [one.number for one in asked] == [2]
    assert left_out == Counter({"template": 1, "too_long": 1})


def test_nothing_left_is_an_error_with_an_example() -> None:
    with pytest.raises(ConfigError, match=r"none of the 1 prompts can be answered \(prompt 1: the template refuses it\): check"):
        read_prompts(Picky(), [ask("bad")], limit=9)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"its 2 tokens are too many.*: shorten them, or give a smaller number of --max-new-tokens"
    ):
        read_prompts(Picky(), [ask("long")], limit=1)  # type: ignore[arg-type]


class Log:
    """Stands for both ways to decode, and notes who was asked what, and how."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, wrong: int | None = None) -> None:
        self.calls: list[tuple[str, int, dict[str, Any]]] = []
        self._wrong = wrong
        monkeypatch.setattr(compare, "decode_alone", lambda _, ids, **how: self._answer("alone", ids, how))
        monkeypatch.setattr(compare, "find_divergence", self._part)

    def decode(self, ids: list[int], **how: Any) -> Decoded:
        return self._answer("drafted", ids, how)

    def _answer(self, who: str, ids: list[int], how: dict[str, Any]) -> Decoded:
        self.calls.append((who, ids[0], how))
        said = [5, 6, 7 if who == "drafted" and ids[0] == self._wrong else 8]
        return Decoded(token_ids=said, rounds=(Round(4, 2, 2),), prefill_seconds=1.0, decode_seconds=1.0)

    @staticmethod
    def _part(_: Any, __: Sequence[int], drafted: Sequence[int], alone: Sequence[int]) -> Divergence | None:
        parted = Divergence(position=2, token=drafted[2], target_token=alone[2], logit_gap=3.0, rounding=0.1)
        return None if drafted == alone else parted

    def answers(self, settings: DecodingSettings) -> list[AnsweredPrompt]:
        return list(answer_prompts(None, self, PROMPTS, settings))  # type: ignore[arg-type]


def test_each_prompt_is_answered_twice_in_turns_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    answers = log.answers(TERMS)
    assert [answer.prompt for answer in answers] == PROMPTS
    assert [(who, prompt) for who, prompt, _ in log.calls[:2]] == [("drafted", 10), ("alone", 10)]
    assert [how["max_new_tokens"] for *_, how in log.calls] == [32, 32, *[100] * 6]
    assert [how["stop_ids"] for *_, how in log.calls] == [(), (), *[[2]] * 6], "a warm-up must not end at once"
    order = [(who, prompt) for who, prompt, _ in log.calls[2:]]
    assert order == [("drafted", 10), ("alone", 10), ("alone", 11), ("drafted", 11), ("drafted", 13), ("alone", 13)]
    assert [how["seed"] for *_, how in log.calls[2:]] == [7, 7, 8, 8, 10, 10]


def test_every_prompt_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Log(monkeypatch, wrong=11).answers(TERMS)
    assert [answer.divergence and answer.divergence.token for answer in answers] == [None, 7, None]


def test_a_warm_up_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    log, looked = Log(monkeypatch, wrong=10), []
    monkeypatch.setattr(compare, "find_divergence", lambda _, ids, *__: looked.append(ids[0]))
    log.answers(TERMS)
    assert looked == [10, 11, 13]


def test_sampled_answers_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, wrong=11)
    answers = log.answers(DecodingSettings(max_new_tokens=9, stop_ids=[2], sampling=Sampling(temperature=1.0)))
    assert [answer.divergence for answer in answers] == [None] * 3
    assert all(answer.alone for answer in answers)
    assert {how["sampling"].temperature for *_, how in log.calls} == {1.0}


def test_the_target_need_not_be_asked_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, wrong=11)
    answers = log.answers(DecodingSettings(max_new_tokens=9, stop_ids=[2], baseline=False))
    assert {who for who, *_ in log.calls} == {"drafted"}
    assert [(answer.alone, answer.divergence) for answer in answers] == [(None, None)] * 3
