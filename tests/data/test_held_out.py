"""trainer/data/held_out.py: which prompts are asked, and which conversations the estimate is made on."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from trainer.config import EvaluateConfig
from trainer.data.chat_template import Chat
from trainer.data.held_out import load_held_out_set
from trainer.errors import ConfigError
from trainer.target.tiny import tiny_tokenizer


@pytest.fixture
def chat() -> Chat:
    return Chat(tiny_tokenizer(), max_length=200)


def conversation(question: str, answer: str = "Yes, of course.") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def saved(folder: Path, **splits: list[dict[str, Any]]) -> str:
    datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()}).save_to_disk(folder)
    return str(folder)


def said(token_ids: Any) -> str:
    return bytes(token for token in token_ids if token < 256).decode()


def test_it_is_the_held_out_split_of_the_data(tmp_path: Path, chat: Chat) -> None:
    data = saved(
        tmp_path / "data", train=[conversation("Seen?")] * 3, held_out=[conversation("Not seen?"), conversation("Nor this?")]
    )
    held_out = load_held_out_set(EvaluateConfig(), data, chat, 0)
    assert held_out is not None
    assert [said(prompt) for prompt in held_out.prompts] == ["user\nNot seen?\nassistant\n", "user\nNor this?\nassistant\n"]
    assert [said(batch.token_T.tolist()) for batch in held_out.conversations] == [
        "user\nNot seen?\nassistant\nYes, of course.\n",
        "user\nNor this?\nassistant\nYes, of course.\n",
    ]
    assert said(held_out.conversations[0].token_T[held_out.conversations[0].supervised_T].tolist()) == "Yes, of course."


def test_the_first_ones_and_those_that_leave_room_for_an_answer(tmp_path: Path, chat: Chat) -> None:
    data = saved(
        tmp_path / "data",
        train=[conversation("Seen?")],
        held_out=[conversation("Long " * 20), conversation("Two?"), conversation("Three?")],
    )
    config = EvaluateConfig(limit=2, max_new_tokens=20)
    held_out = load_held_out_set(config, data, chat, max_positions=100)
    assert held_out is not None
    assert [said(prompt) for prompt in held_out.prompts] == ["user\nTwo?\nassistant\n"]
    everything = load_held_out_set(config, data, chat, max_positions=0)
    assert everything is not None
    assert len(everything.prompts) == len(everything.conversations) == 2


def test_nothing_is_measured_without_a_split_or_where_nobody_wants_it(tmp_path: Path, chat: Chat) -> None:
    data = saved(tmp_path / "data", train=[conversation("Seen?")])
    assert load_held_out_set(EvaluateConfig(), data, chat, 0) is None
    both = saved(tmp_path / "both", train=[conversation("Seen?")], held_out=[conversation("Not?")])
    assert load_held_out_set(EvaluateConfig(every=0), both, chat, 0) is None


def test_only_the_first_question_is_asked_and_its_answer_estimated_on(tmp_path: Path, chat: Chat) -> None:
    long = {"messages": [*conversation("One?", "Yes.")["messages"], *conversation("Two?", "No.")["messages"]]}
    data = saved(tmp_path / "data", train=[conversation("Seen?")], held_out=[long])
    held_out = load_held_out_set(EvaluateConfig(), data, chat, 0)
    assert held_out is not None
    assert [said(batch.token_T.tolist()) for batch in held_out.conversations] == ["user\nOne?\nassistant\nYes.\n"]


def test_rows_that_cannot_be_asked_are_passed_over(tmp_path: Path, chat: Chat) -> None:
    greeting = {"messages": [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Hello."}]}
    data = saved(tmp_path / "data", train=[conversation("Seen?")], held_out=[greeting, conversation("Two?")])
    held_out = load_held_out_set(EvaluateConfig(), data, chat, 0)
    assert held_out is not None
    assert [said(prompt) for prompt in held_out.prompts] == ["user\nTwo?\nassistant\n"]
    assert len(held_out.conversations) == 1
    none = saved(tmp_path / "none", train=[conversation("Seen?")], held_out=[greeting])
    assert load_held_out_set(EvaluateConfig(), none, chat, 0) is None


def test_prompts_of_ones_own_have_no_answers_to_estimate_on(tmp_path: Path, chat: Chat) -> None:
    data = saved(tmp_path / "data", train=[conversation("Seen?")])
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("One?", "Two?")))
    held_out = load_held_out_set(EvaluateConfig(prompts=str(tmp_path / "mine.jsonl")), data, chat, 0)
    assert held_out is not None
    assert [said(prompt) for prompt in held_out.prompts] == ["user\nOne?\nassistant\n", "user\nTwo?\nassistant\n"]
    assert held_out.conversations == []


def test_prompts_that_cannot_be_asked_are_told(tmp_path: Path, chat: Chat) -> None:
    (tmp_path / "long.txt").write_text("word " * 50)
    config = EvaluateConfig(prompts=str(tmp_path / "long.txt"), max_new_tokens=50)
    with pytest.raises(ConfigError, match=r"none of the prompts of evaluate.prompts '.*long.txt' can be asked and answered"):
        load_held_out_set(config, "demo", chat, max_positions=100)
    with pytest.raises(ConfigError, match="nowhere"):
        load_held_out_set(EvaluateConfig(prompts=str(tmp_path / "nowhere.txt")), "demo", chat, 0)
