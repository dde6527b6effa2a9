import json
import shlex
from pathlib import Path

import datasets
import pytest
import torch
from rich.console import Console
from transformers import PreTrainedTokenizerFast

import trainer.prepare
from trainer.chat import Chat, Tokenised
from trainer.command import parse
from trainer.config import ConfigError
from trainer.conversations import load_conversations, load_held_out
from trainer.prepare import PrepareConfig, prepare
from trainer.tiny import tiny_tokenizer

QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def one_thread() -> object:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config(folder: Path, **knobs: object) -> PrepareConfig:
    given = {"target": "tiny", "prompts": "stdlib", "output": str(folder / "out"), "limit": 12, "max_new_tokens": 32}
    return PrepareConfig(**{**given, "device": "cpu", "batch_size": 6, **knobs})  # type: ignore[arg-type]


def test_conversations_are_written_with_how_they_were_made(tmp_path: Path) -> None:
    folder = prepare(config(tmp_path, keep_unfinished=True, held_out_ratio=0.25), QUIET)
    train, held_out = load_conversations(str(folder)), load_held_out(str(folder))
    assert held_out is not None
    assert train.column_names == ["messages", "category", "finished"]
    told = json.loads((folder / "provenance.json").read_text())
    assert told["conversations"] == len(train) + len(held_out) == 12 - sum(told["dropped"].values())
    assert len(held_out) == round(told["conversations"] * 0.25)
    assert told["unfinished"] == sum(not row["finished"] for row in [*train, *held_out]) > 0
    assert (told["target"], told["precision"], told["seed"]) == ("tiny", "float32", 0)
    assert told["exact"] == told["conversations"]
    assert all(row["category"] for row in train)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_unfinished_answers_are_left_out(tmp_path: Path) -> None:
    folder = prepare(config(tmp_path, held_out_ratio=0, max_new_tokens=64), QUIET)
    told = json.loads((folder / "provenance.json").read_text())
    train = load_conversations(str(folder))
    assert all(train["finished"])
    assert len(train) + told["dropped"]["unfinished"] + told["dropped"].get("nothing_to_learn", 0) == 12
    assert load_held_out(str(folder)) is None


def test_an_answer_is_what_the_target_says_to_the_question(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("Question 1?\nQuestion xx 3?\n")
    asked = config(tmp_path, prompts=str(tmp_path / "p.txt"), keep_unfinished=True, held_out_ratio=0)
    rows = load_conversations(str(prepare(asked, QUIET)))
    chat, model = Chat(tiny_tokenizer()), trainer.prepare.load_target_model("tiny", torch.float32, "cpu")
    for row in rows:
        tokenised = chat.tokenise(row["messages"])
        assert isinstance(tokenised, Tokenised)
        with torch.no_grad():
            guesses = model(torch.from_numpy(tokenised.token_ids)[None]).logits[0].argmax(-1)
        own = torch.from_numpy(tokenised.loss_mask).nonzero().flatten()
        own = own if row["finished"] else own[:-1]
        assert torch.equal(guesses[own - 1], torch.from_numpy(tokenised.token_ids)[own])


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError("disk full")])
def test_nothing_half_made_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    def fail(splits: datasets.DatasetDict, folder: str) -> None:
        (Path(folder) / "half").touch()
        raise failure

    monkeypatch.setattr(datasets.DatasetDict, "save_to_disk", fail)
    with pytest.raises(type(failure)):
        prepare(config(tmp_path, keep_unfinished=True), QUIET)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_work_is_said_before_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer.prepare, "load_target_model", lambda *_: pytest.fail("loaded a model"))
    (tmp_path / "there").mkdir()
    for knobs, complaint in [
        ({"output": str(tmp_path / "there")}, "exists already: name a folder that does not"),
        ({"prompts": "nowhere"}, "prompts 'nowhere' are neither"),
        ({"target": "./nowhere"}, "target './nowhere' is no folder"),
        ({"device": "cuda:77"}, "device names 'cuda:77'"),
    ]:
        with pytest.raises(ConfigError, match=complaint):
            prepare(config(tmp_path, **knobs), QUIET)


@pytest.mark.parametrize(
    ("knob", "value"),
    [("limit", 0), ("max_new_tokens", 1), ("held_out_ratio", 1.0), ("batch_size", 0), ("seed", -1), ("cpu_threads", 0)],
)
def test_bad_values(tmp_path: Path, knob: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{knob} must be .*, got {value}"):
        config(tmp_path, **{knob: value})


def test_if_nothing_is_left_the_reason_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none of the answers can be used \(12 unfinished\): raise --max-new-tokens"):
        prepare(config(tmp_path, max_new_tokens=2), QUIET)
    with pytest.raises(ConfigError, match=r"\(12 too_long\): look at the prompts"):
        prepare(config(tmp_path, max_new_tokens=4096), QUIET)


def test_the_command_told_asks_for_the_same(tmp_path: Path) -> None:
    asked = config(tmp_path, keep_unfinished=True, template_args={"enable_thinking": "false"}, output="a folder")
    words = shlex.split(trainer.prepare._command(asked))
    assert words[:4] == ["python", "-m", "trainer", "prepare"]
    assert parse(PrepareConfig, "prepare", words[4:]) == asked


def test_template_arguments_reach_the_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tokenizer(_: str) -> PreTrainedTokenizerFast:
        made = tiny_tokenizer()
        made.chat_template = "{% if loud is false %}quiet:{% endif %}" + made.chat_template
        return made

    asked: list[str] = []
    monkeypatch.setattr(trainer.prepare, "load_tokenizer", tokenizer)
    original = trainer.prepare.answer_prompts

    def spy(model: object, prompts: list[list[int]], **knobs: object) -> object:
        asked.extend(tiny_tokenizer().decode(prompt) for prompt in prompts)
        return original(model, prompts, **knobs)  # type: ignore[arg-type]

    monkeypatch.setattr(trainer.prepare, "answer_prompts", spy)
    prepare(config(tmp_path, keep_unfinished=True, limit=2, template_args={"loud": "false"}), QUIET)
    assert all(text.startswith("quiet:<|im_start|>") for text in asked)
    assert len(asked) == 2
