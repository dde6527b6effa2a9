import json
import logging
from pathlib import Path

import datasets
import pytest

from trainer.data.conversations import load_held_out
from trainer.data.prompts import Prompt, fingerprint_prompts, fingerprint_source, held_out_split, load_prompts
from trainer.errors import ConfigError

SYSTEM = {"role": "system", "content": "Be brief."}
HI, WHY, BYE = ({"role": "user", "content": text} for text in ("Hi", "Why?", "Bye"))
HO = {"role": "assistant", "content": "Ho"}
TOOL = {"role": "tool", "content": "42"}


def saved(folder: Path, **splits: list[dict[str, object]]) -> str:
    made = {name: datasets.Dataset.from_list(rows) for name, rows in splits.items()}
    (made["only"] if "only" in made else datasets.DatasetDict(made)).save_to_disk(str(folder / "d"))
    return str(folder / "d")


def test_a_prompt_on_each_line(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("Hi\n\n  Why? \n")
    asked = [Prompt([HI]), Prompt([WHY])]
    assert load_prompts(str(tmp_path / "p.txt")) == asked
    assert load_prompts(str(tmp_path / "p.txt"), limit=1) == asked[:1]


def test_json_lines(tmp_path: Path) -> None:
    rows = [
        {"prompt": "Hi", "category": "greeting"},
        {"messages": [SYSTEM, HI, HO]},
        {"conversations": [{"from": "human", "value": "Hi"}]},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert load_prompts(str(tmp_path / "p.jsonl")) == [Prompt([HI], "greeting"), Prompt([SYSTEM, HI]), Prompt([HI])]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_file_may_hold_one_list(tmp_path: Path, indent: int | None) -> None:
    (tmp_path / "p.json").write_text(json.dumps([{"prompt": "Hi"}, {"messages": [WHY]}], indent=indent))
    assert load_prompts(str(tmp_path / "p.json")) == [Prompt([HI]), Prompt([WHY])]


def test_signs_that_look_like_ends_of_lines_do_not_end_a_line(tmp_path: Path) -> None:
    text = "Hi\u2028there\x85!"
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": text}, ensure_ascii=False), encoding="utf-8-sig")
    assert load_prompts(str(tmp_path / "p.jsonl"))[0].messages[0]["content"] == text


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ([SYSTEM, HI, HO, WHY, HO, BYE], Prompt([SYSTEM, HI], "", (WHY, BYE))),
        ([HI, WHY], Prompt([HI], "", (WHY,))),
        ([HI, HO, TOOL, WHY], Prompt([HI])),
        ([HI, HO, WHY, SYSTEM, BYE], Prompt([HI], "", (WHY,))),
    ],
)
def test_of_a_conversation_the_users_messages_are_kept_and_no_answer(
    tmp_path: Path, messages: list[object], prompt: Prompt
) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"messages": messages}))
    assert load_prompts(str(tmp_path / "p.jsonl")) == [prompt]


@pytest.mark.parametrize("split", ["only", "train"])
def test_a_saved_dataset(tmp_path: Path, split: str) -> None:
    path = saved(tmp_path, **{split: [{"prompt": "Hi", "category": "greeting"}]})
    assert load_prompts(path) == [Prompt([HI], "greeting")]


@pytest.mark.parametrize("split", ["held_out", "validation", "test"])
def test_what_is_held_out_is_read_where_it_is_asked_for(tmp_path: Path, split: str) -> None:
    path = saved(tmp_path, train=[{"prompt": "Hi"}], **{split: [{"prompt": "Why?"}]})
    assert load_prompts(path) == [Prompt([HI])]
    assert load_prompts(path, held_out=True) == [Prompt([WHY])]
    assert held_out_split(path) == split
    assert fingerprint_source(path, seed=0, limit=None) == fingerprint_prompts([Prompt([WHY])])


def test_what_has_no_splits_is_read_whole_even_if_held_out_prompts_are_asked_for(tmp_path: Path) -> None:
    path = saved(tmp_path, only=[{"prompt": "Hi"}])
    assert load_prompts(path, held_out=True) == [Prompt([HI])]
    assert held_out_split(path) is None
    assert held_out_split("stdlib") is None


def test_a_dataset_without_the_split_gets_a_sentence(tmp_path: Path) -> None:
    path = saved(tmp_path, train=[{"prompt": "Hi"}])
    with pytest.raises(ConfigError, match="have the splits train but none called `held_out` or `validation` or `test`"):
        load_prompts(path, held_out=True)


def test_the_demo_has_prompts_to_train_on_and_held_out_ones() -> None:
    train, held_out = load_prompts("demo"), load_prompts("demo", held_out=True)
    kept = load_held_out("demo")
    assert kept is not None
    assert [prompt.messages for prompt in held_out] == [row["messages"][:1] for row in kept]
    assert all(prompt.category and not prompt.later for prompt in [*train, *held_out])
    assert not {prompt.messages[0]["content"] for prompt in train} & {prompt.messages[0]["content"] for prompt in held_out}


def test_conversations_that_begin_with_no_question_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"messages": [HO, HI]}, {"messages": [HI]}, {"messages": []}, {"messages": [WHY]}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with caplog.at_level(logging.WARNING):
        assert load_prompts(str(tmp_path / "p.jsonl"), limit=2) == [Prompt([HI]), Prompt([WHY])]
    assert "2 of the prompts are left out; the first: line 1 of prompts" in caplog.text


def test_the_standard_library_asks_the_same_for_the_same_seed() -> None:
    first = load_prompts("stdlib", seed=1, limit=50)
    assert first == load_prompts("stdlib", seed=1, limit=50)
    assert first != load_prompts("stdlib", seed=2, limit=50)
    assert len(first) == 50


def test_the_fingerprint_knows_every_part() -> None:
    one = Prompt([SYSTEM, HI], "greeting", (WHY,))
    others = [Prompt([HI], "greeting", (WHY,)), Prompt([SYSTEM, HI], "", (WHY,)), Prompt([SYSTEM, HI], "greeting")]
    assert fingerprint_prompts([one]) == fingerprint_prompts([Prompt([SYSTEM, HI], "greeting", (WHY,))])
    assert len({fingerprint_prompts(some) for some in ([one], [one, one], [], *([other] for other in others))}) == 6


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("p.txt", "\n", "hold no prompt"),
        ("p.txt", "", "hold no prompt"),
        ("p.txt", b"\xff\xfe", "cannot be read as UTF-8 .*: save the file as UTF-8"),
        (
            "p.jsonl",
            '{"prompt": "Hi"}\n{',
            r"^line 2 of prompts .* is no JSON \(Expecting .*, at character 2\): correct that",
        ),
        ("p.jsonl", '{"text": "Hi"}', "line 1 of prompts .* has neither"),
        ("p.jsonl", "[1]", "line 1 of prompts .* has neither"),
        ("p.json", "[1,\n2", "line 2 of prompts .* is no JSON .*: correct that line"),
        ("p.jsonl", json.dumps({"messages": [HO]}), "does not begin with a question"),
        ("p.jsonl", '{"messages": [{"role": "narrator", "content": "Ho"}]}', "a message by 'narrator'"),
        ("p", None, "neither a file nor a folder"),
    ],
)
def test_bad_prompts_get_a_sentence(tmp_path: Path, name: str, text: str | bytes | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=complaint):
        load_prompts(str(tmp_path / name))


def test_people_count_prompts_from_1(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps([{"prompt": "Hi"}, {"text": "Ho"}], indent=2))
    with pytest.raises(ConfigError, match=r"^prompt 2 of .* has neither"):
        load_prompts(str(tmp_path / "p.json"))
    with pytest.raises(ConfigError, match=r"^row 1 of prompts .* does not begin with a question"):
        load_prompts(saved(tmp_path, only=[{"messages": [HO, HI]}]))


def test_a_fingerprint_of_a_source_is_of_the_prompts_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"messages": [HO]}, {"prompt": "Hi"}, {"prompt": "Why?"}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert fingerprint_source(str(tmp_path / "p.jsonl"), seed=0, limit=1) == fingerprint_prompts([Prompt([HI])])
    assert fingerprint_source("stdlib", seed=3, limit=9) == fingerprint_prompts(load_prompts("stdlib", seed=3, limit=9))
    assert caplog.text == "", "what is left out is told once, by whoever asks"


def test_bad_folders_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read by datasets"):
        load_prompts(str(tmp_path))
    with pytest.raises(ConfigError, match="have the splits a but none called `train`"):
        load_prompts(saved(tmp_path, a=[{"prompt": "Hi"}]))
