import json
from pathlib import Path

import datasets
import pytest

from trainer.config import ConfigError
from trainer.prompts import Prompt, load_prompts

QUESTION = [{"role": "user", "content": "Hi"}]
ANSWERED = [{"role": "system", "content": "Be brief."}, *QUESTION, {"role": "assistant", "content": "Ho"}, *QUESTION]


def test_a_prompt_on_each_line(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("Hi\n\n  Why? \n")
    asked = [Prompt(QUESTION), Prompt([{"role": "user", "content": "Why?"}])]
    assert load_prompts(str(tmp_path / "p.txt")) == asked
    assert load_prompts(str(tmp_path / "p.txt"), limit=1) == asked[:1]


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"prompt": "Hi", "category": "greeting"}, {"messages": ANSWERED}, {"conversations": [{"from": "human", "value": "Hi"}]}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert load_prompts(str(tmp_path / "p.jsonl")) == [Prompt(QUESTION, "greeting"), Prompt(ANSWERED[:2]), Prompt(QUESTION)]


@pytest.mark.parametrize("split", ["", "train"])
def test_a_saved_dataset(tmp_path: Path, split: str) -> None:
    dataset = datasets.Dataset.from_list([{"prompt": "Hi", "category": "greeting"}])
    (datasets.DatasetDict({split: dataset}) if split else dataset).save_to_disk(str(tmp_path / "d"))
    assert load_prompts(str(tmp_path / "d")) == [Prompt(QUESTION, "greeting")]


def test_the_standard_library_asks_the_same_for_the_same_seed() -> None:
    first = load_prompts("stdlib", seed=1, limit=50)
    assert first == load_prompts("stdlib", seed=1, limit=50)
    assert first != load_prompts("stdlib", seed=2, limit=50)
    assert len(first) == 50


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("p.txt", "\n", "hold no prompt"),
        ("p.txt", b"\xff\xfe", "can't be read"),
        ("p.jsonl", '{"prompt": "Hi"}\n{', "line 2 of prompts .* is no JSON"),
        ("p.jsonl", '{"text": "Hi"}', "line 1 of prompts .* has neither"),
        ("p.jsonl", "[1]", "line 1 of prompts .* has neither"),
        ("p.jsonl", '{"messages": [{"role": "assistant", "content": "Ho"}]}', "does not begin with a question"),
        ("p.jsonl", '{"messages": [{"role": "narrator", "content": "Ho"}]}', "a message by 'narrator'"),
        ("p", None, "neither a file nor a folder"),
    ],
)
def test_bad_prompts_get_a_sentence(tmp_path: Path, name: str, text: str | bytes | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=complaint):
        load_prompts(str(tmp_path / name))


def test_bad_folders_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read by datasets"):
        load_prompts(str(tmp_path))
    datasets.DatasetDict({"a": datasets.Dataset.from_list([{"prompt": "Hi"}])}).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(ConfigError, match="have the splits a but none called `train`"):
        load_prompts(str(tmp_path / "d"))
