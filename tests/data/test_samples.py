from collections.abc import Iterable
from typing import Any

import datasets
import pytest
import torch

from tests.data.test_chat_template import said
from trainer.data.chat_template import Chat, Tokenised
from trainer.data.samples import Sample, Tokeniser, Visit, Visits, epoch_order
from trainer.metrics.catalogue.training import DROP_REASONS
from trainer.target.tiny import MASK, tiny_tokenizer

CHAT = Chat(tiny_tokenizer())


def row(answer: str, question: str = "Q") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def dataset(*answers: str) -> datasets.Dataset:
    return datasets.Dataset.from_list([row(answer) for answer in answers])


def read(visits: Iterable[Visit], chat: Chat = CHAT) -> tuple[list[Sample], list[tuple[str, str]]]:
    dropped: list[tuple[str, str]] = []
    return list(Tokeniser(chat, lambda reason, example: dropped.append((reason, example)))(iter(visits))), dropped


def test_the_order_is_a_permutation_that_never_changes() -> None:
    assert epoch_order(8, seed=0, epoch=0).tolist() == [0, 3, 7, 5, 1, 2, 6, 4]
    assert sorted(epoch_order(1000, seed=3, epoch=7).tolist()) == list(range(1000))
    orders = {tuple(epoch_order(20, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_each_epoch_visits_every_conversation_once() -> None:
    visits = list(Visits(dataset(*"abcde"), seed=1, epochs=3))
    assert [visit.epoch for visit in visits] == [0] * 5 + [1] * 5 + [2] * 5
    assert [visit.position for visit in visits] == [*range(5)] * 3
    for epoch in range(3):
        assert [visit.index for visit in visits if visit.epoch == epoch] == epoch_order(5, 1, epoch).tolist()


@pytest.mark.parametrize("start", [(0, 0), (0, 3), (1, 0), (1, 4), (2, 5), (3, 0)])
def test_reading_goes_on_anywhere(start: tuple[int, int]) -> None:
    data = dataset(*"abcde")
    whole = list(Visits(data, seed=1, epochs=3))
    assert list(Visits(data, 1, 3, start=start)) == whole[start[0] * 5 + start[1] :]


def test_a_sample_holds_its_tokens_its_mask_and_where_it_comes_from() -> None:
    (sample,), _ = read(Visits(dataset("Answer"), seed=0, epochs=1))
    assert (sample.token_ids.dtype, sample.loss_mask.dtype) == (torch.int64, torch.bool)
    assert sample.token_ids.shape == sample.loss_mask.shape
    assert said(tiny_tokenizer(), Tokenised(sample.token_ids.numpy(), sample.loss_mask.numpy())) == ["Answer<|im_end|>"]
    assert (sample.index, sample.epoch, sample.position) == (0, 0, 0)
    assert sample.nbytes == 9 * len(sample.token_ids)


def test_what_nothing_can_be_learnt_from_is_dropped_and_told_of_once() -> None:
    rows = [row("Answer"), row(""), {"messages": [{"role": "user", "content": "Q"}]}, {"messages": []}, row("Answer")]
    samples, dropped = read(Visits(datasets.Dataset.from_list(rows), seed=0, epochs=2))
    assert [sample.index for sample in samples if sample.epoch == 1] == [i for i in epoch_order(5, 0, 1) if i in (0, 4)]
    assert sorted(dropped) == [
        ("no_answer", "conversation 1: no two tokens of an answer follow each other in the part that is kept"),
        ("no_answer", "conversation 2: it has no answer by the assistant"),
        ("no_answer", "conversation 3: it has no messages"),
    ]


def test_an_answer_that_is_cut_off_is_dropped() -> None:
    question = "Q" * 60
    rows = datasets.Dataset.from_list([row("Answer", question), row("Answer")])
    samples, dropped = read(Visits(rows, seed=0, epochs=1), Chat(tiny_tokenizer(), max_length=64))
    assert [sample.index for sample in samples] == [1]
    assert [reason for reason, _ in dropped] == ["no_answer"]


def test_a_conversation_that_the_chat_turns_away_is_dropped_with_its_reason() -> None:
    chat = Chat(tiny_tokenizer(), max_length=256, template_args={}, mask_token_id=MASK, vocab_size=260)
    samples, dropped = read(Visits(dataset("Yes", "It is <|mask|>", "No"), seed=0, epochs=2), chat)
    assert sorted(sample.index for sample in samples) == [0, 0, 2, 2]
    assert dropped == [("mask_token", "conversation 1: it holds token 259 (<|mask|>), which stands for masked positions")]


def test_the_reasons_are_those_of_the_catalogue() -> None:
    assert set(DROP_REASONS) == {"no_answer", "unaligned", "template", "malformed", "mask_token"}
