import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from trainer.data.conversations import DEMO, Rejected, fingerprint, load_conversations, load_held_out, to_messages
from trainer.errors import ConfigError

ROLE_CONTENT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
FROM_VALUE = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]


def save(folder: Path, rows: list[dict[str, Any]], split: str = "") -> str:
    dataset = datasets.Dataset.from_list(rows)
    (datasets.DatasetDict({split: dataset}) if split else dataset).save_to_disk(str(folder))
    return str(folder)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": ROLE_CONTENT},
        {"messages": FROM_VALUE},
        {"conversations": ROLE_CONTENT},
        {"conversations": FROM_VALUE},
        {"prompt": "Hi", "response": "Ho"},
        {"messages": ROLE_CONTENT, "prompt": "other", "response": "other"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, {"role": "assistant", "content": "Ho"}]},
        {"messages": {"role": ["user", "assistant"], "content": ["Hi", "Ho"]}},
    ],
)
def test_every_spelling(row: dict[str, Any]) -> None:
    assert to_messages(row) == ROLE_CONTENT


@pytest.mark.parametrize("row", [{"messages": ROLE_CONTENT}, {"conversations": FROM_VALUE}, {"prompt": "Hi", "response": "Ho"}])
def test_spellings_survive_the_disk(tmp_path: Path, row: dict[str, Any]) -> None:
    assert to_messages(load_conversations(save(tmp_path / "d", [row]))[0]) == ROLE_CONTENT


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no_answer"),
        ([{"role": "narrator", "content": "Hi"}], "malformed"),
        ([{"role": "user", "content": None}], "malformed"),
        ([{"role": "user", "content": [{"type": "image", "url": "x"}]}], "malformed"),
        ([{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}], "malformed"),
    ],
)
def test_what_is_no_conversation_says_why(messages: list[dict[str, Any]], reason: str) -> None:
    rejected = to_messages({"messages": messages})
    assert isinstance(rejected, Rejected)
    assert rejected.reason == reason


def test_thoughts_of_an_answer_are_kept() -> None:
    messages = [
        {"role": "assistant", "content": "Ho", "reasoning_content": "hm"},
        {"role": "user", "content": "Hi", "reasoning_content": None},
    ]
    assert to_messages({"messages": messages}) == [messages[0], {"role": "user", "content": "Hi"}]


def test_the_split_train_is_read_and_the_other_held_out(tmp_path: Path) -> None:
    row = {"messages": ROLE_CONTENT}
    splits = {"train": datasets.Dataset.from_list([row] * 3), "test": datasets.Dataset.from_list([row] * 2)}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "d"))
    assert len(load_conversations(str(tmp_path / "d"))) == 3
    held_out = load_held_out(str(tmp_path / "d"))
    assert held_out is not None
    assert len(held_out) == 2


def test_nothing_is_held_out_of_a_single_dataset(tmp_path: Path) -> None:
    assert load_held_out(save(tmp_path / "d", [{"messages": ROLE_CONTENT}])) is None


def test_bad_folders_get_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    broken = Path(save(tmp_path / "broken", [{"messages": ROLE_CONTENT}]))
    next(broken.glob("*.arrow")).write_bytes(b"not arrow")
    cases = {
        str(tmp_path / "nowhere"): "is no folder",
        str(tmp_path / "empty"): "cannot be read",
        str(broken): "cannot be read",
        save(tmp_path / "validation", [{"messages": ROLE_CONTENT}], split="validation"): "none called `train`",
        save(tmp_path / "columns", [{"text": "x", "label": 1}]): "has the columns text, label: accepted are `messages`",
        save(tmp_path / "fields", [{"messages": [{"who": "x", "what": "y"}]}]): "holds who, what: accepted are",
        save(tmp_path / "strings", [{"messages": "Hi"}]): "holds no messages: accepted are",
    }
    for path, complaint in cases.items():
        with pytest.raises(ConfigError, match=complaint) as raised:
            load_conversations(path)
        assert path in str(raised.value)
        assert "\n" not in str(raised.value)


def test_an_empty_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = datasets.Dataset.from_dict({"prompt": [], "response": []})
    empty.save_to_disk(str(tmp_path / "d"))
    with pytest.raises(ConfigError, match="at least one"):
        load_conversations(str(tmp_path / "d"))
    monkeypatch.setattr(datasets, "load_from_disk", lambda _: empty)  # some versions of `datasets` can read it
    with pytest.raises(ConfigError, match="holds no conversation: give a folder with at least one"):
        load_conversations(str(tmp_path / "d"))


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": f"Hi {n}"}], "category": "c"} for n in range(5)]
    first = fingerprint(load_conversations(save(tmp_path / "a", rows)))
    assert first == fingerprint(load_conversations(save(tmp_path / "b", rows))) == "d0fb315d8f5df6e2abb9e30590008cea"
    assert first == fingerprint(load_conversations(save(tmp_path / "c", [{**row, "category": "other"} for row in rows])))
    assert first != fingerprint(load_conversations(save(tmp_path / "d", rows[::-1])))
    assert first != fingerprint(load_conversations(save(tmp_path / "e", rows[:4])))


def test_the_demo_conversations_are_the_ones_that_the_readme_tells_of() -> None:
    train, held_out = load_conversations("demo"), load_held_out("demo")
    assert held_out is not None
    told = json.loads((DEMO / "provenance.json").read_text())
    assert told["conversations"] == len(train) + len(held_out) >= 300
    assert len(held_out) >= 20
    assert (told["precision"], told["target"], told["unfinished"]) == ("float32", "demo", 0)
    assert told["command"] in (DEMO.parent / "README.md").read_text()
    for row in [*train, *held_out]:
        messages = to_messages(row)
        assert isinstance(messages, list)
        assert [message["role"] for message in messages] == ["user", "assistant"]
    assert sum(path.stat().st_size for path in DEMO.rglob("*")) < 2_000_000
