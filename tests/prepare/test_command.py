import io
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from rich.console import Console
from transformers import PreTrainedTokenizerFast

import trainer.prepare.command
import trainer.target.load
from trainer.__main__ import main
from trainer.cli import parse
from trainer.data.chat_template import Chat, Tokenised
from trainer.data.conversations import load_conversations, load_held_out
from trainer.data.prompts import load_prompts
from trainer.errors import ConfigError
from trainer.prepare.answer_store import AnswerStore, StoredAnswer
from trainer.prepare.command import PrepareConfig, prepare
from trainer.target.load import Target
from trainer.target.provenance import mismatches, read_provenance
from trainer.target.tiny import END, tiny_tokenizer

QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config(folder: Path, **knobs: object) -> PrepareConfig:
    given = {"target": "tiny", "prompts": "stdlib", "output": str(folder / "out"), "limit": 8, "max_new_tokens": 24}
    return PrepareConfig(**{**given, "device": "cpu", "batch_size": 6, "keep_unfinished": True, **knobs})  # type: ignore[arg-type]


def rows(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {name: split.to_list() for name, split in datasets.load_from_disk(str(folder)).items()}


def several_turns(folder: Path) -> str:
    talks = [
        [{"role": "system", "content": "Be brief."}, *({"role": "user", "content": f"{n}.{turn}?"} for turn in range(1 + n))]
        for n in range(4)
    ]
    (folder / "p.jsonl").write_text("\n".join(json.dumps({"messages": talk, "category": "talk"}) for talk in talks))
    return str(folder / "p.jsonl")


def test_conversations_are_written_with_how_they_were_made(tmp_path: Path) -> None:
    folder = prepare(config(tmp_path, held_out_ratio=0.25, template_args={"loud": "true"}), QUIET)
    train, held_out = load_conversations(str(folder)), load_held_out(str(folder))
    assert held_out is not None
    assert train.column_names == ["messages", "category", "finished"]
    told = read_provenance(str(folder))
    assert told is not None
    assert told["conversations"] == told["answers"] == len(train) + len(held_out) == 8 - sum(told["dropped"].values())
    assert len(held_out) == round(told["conversations"] * 0.25)
    assert told["unfinished"] == sum(not row["finished"] for row in [*train, *held_out]) > 0
    assert (told["target"], told["precision"], told["decoding"], told["seed"], told["turns"]) == ("tiny", "float32", "greedy", 0, 1)
    assert (told["prompts"], told["template_args"]) == ("stdlib", {"loud": "true"})
    assert told["exact"] == told["conversations"]
    assert {"torch", "transformers", "tokenizers", "datasets", "python"} <= set(told["versions"])
    assert mismatches(told, target=Target.find("tiny"), precision="float32", template_args={"loud": "true"}) == []
    assert all(row["category"] for row in train)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_unfinished_answers_are_left_out(tmp_path: Path) -> None:
    folder = prepare(config(tmp_path, held_out_ratio=0, max_new_tokens=64, keep_unfinished=False), QUIET)
    told = json.loads((folder / "provenance.json").read_text())
    train = load_conversations(str(folder))
    assert all(train["finished"])
    assert len(train) + told["dropped"]["unfinished"] + told["dropped"].get("nothing_to_learn", 0) == 8
    assert load_held_out(str(folder)) is None


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some digits end an answer too, or `tiny` would hardly ever."""
    monkeypatch.setattr(trainer.prepare.command, "require_stop_token_ids", lambda *_: [*b"01234567", END])


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("turns", [1, 2, 0])
def test_an_answer_is_what_the_target_says_to_the_question(tmp_path: Path, turns: int) -> None:
    asked = config(tmp_path, prompts=several_turns(tmp_path), turns=turns, held_out_ratio=0)
    made = load_conversations(str(prepare(asked, QUIET)))
    assert max(len(row["messages"]) for row in made) == (3 if turns == 1 else 5 if turns == 2 else 9)
    chat, model = Chat(tiny_tokenizer()), Target.find("tiny").load(torch.float32, "cpu")
    for row in made:
        assert [message["role"] for message in row["messages"][:2]] == ["system", "user"]
        tokenised = chat.tokenise(row["messages"])
        assert isinstance(tokenised, Tokenised)
        with torch.no_grad():
            guesses = model(torch.from_numpy(tokenised.token_ids)[None]).logits[0].argmax(-1)
        own = torch.from_numpy(tokenised.loss_mask).nonzero().flatten()
        own = own[torch.from_numpy(tokenised.token_ids)[own] != END]  # which here is not what ended it
        assert torch.equal(guesses[own - 1], torch.from_numpy(tokenised.token_ids)[own])


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int, failure: type[BaseException] = KeyboardInterrupt) -> None:
    """Let so many answers be kept, and then interrupt, as Ctrl-C or a kill would."""
    original, left = AnswerStore.add, iter(range(after))

    def add(answers: AnswerStore, prompt: int, said: StoredAnswer) -> None:
        if next(left, None) is None:
            raise failure
        original(answers, prompt, said)

    monkeypatch.setattr(AnswerStore, "add", add)


def stopped(asked: PrepareConfig, after: int, failure: type[BaseException] = KeyboardInterrupt) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, after, failure)
        with pytest.raises(failure):
            prepare(asked, QUIET)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_it_goes_on_where_it_was_stopped_and_says_the_same(tmp_path: Path, temperature: float) -> None:
    knobs = {"prompts": several_turns(tmp_path), "turns": 0, "temperature": temperature, "held_out_ratio": 0.25, "seed": 3}
    undisturbed = rows(prepare(config(tmp_path, **knobs, output=str(tmp_path / "whole")), QUIET))
    for after, failure in ((2, KeyboardInterrupt), (3, SystemExit)):
        stopped(config(tmp_path, **knobs), after, failure)
    assert not (tmp_path / "out").exists()
    heard = io.StringIO()
    folder = prepare(config(tmp_path, **knobs, batch_size=2), Console(file=heard, width=300))
    assert "Found 5 answers in" in heard.getvalue()
    assert rows(folder) == undisturbed
    assert not (tmp_path / "out.partial").exists()


def test_ctrl_c_says_how_to_go_on_and_ends_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--target",
        "tiny",
        "--prompts",
        "stdlib",
        "--limit",
        "4",
        "--max-new-tokens",
        "16",
        "--keep-unfinished",
        "--device",
        "cpu",
    ]
    interrupt(monkeypatch, after=2)
    assert main(["prepare", *words, "--output", str(tmp_path / "out")]) == 130
    told = " ".join(capsys.readouterr().err.split())
    assert "Stopped: 2 answers are kept in" in told
    assert "The same command continues from them." in told
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]


def test_stopped_before_the_first_answer_nothing_is_left(tmp_path: Path) -> None:
    stopped(config(tmp_path), after=0)
    assert list(tmp_path.iterdir()) == []


def test_answers_made_in_another_way_are_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(config(tmp_path), after=2)
    for knobs, told in [
        ({"temperature": 0.7}, "decoding 'greedy', but now it is 'sampled'"),
        ({"max_new_tokens": 25}, "max_new_tokens 24, but now it is 25"),
        ({"limit": 9}, "limit 8, but now it is 9"),
        ({"seed": 1}, "seed 0, but now it is 1"),
        ({"precision": "bfloat16"}, "precision 'float32', but now it is 'bfloat16'"),
        ({"template_args": {"a": "b"}}, "template_args {}, but now it is {'a': 'b'}"),
    ]:
        with pytest.raises(ConfigError, match=rf"were made with {told}: .*remove .*out\.partial, or name another output"):
            prepare(config(tmp_path, **knobs), QUIET)
    monkeypatch.setattr(trainer.prepare.command, "load_prompts", lambda *_, **__: load_prompts("stdlib", seed=5, limit=8))
    with pytest.raises(ConfigError, match="prompts_fingerprint"):
        prepare(config(tmp_path), QUIET)


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_failure_at_the_end_loses_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    def fail(splits: datasets.DatasetDict, folder: str) -> None:
        (Path(folder) / "half").touch()
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(datasets.DatasetDict, "save_to_disk", fail)
        expected = KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else ConfigError
        with pytest.raises(expected) as told:
            prepare(config(tmp_path), QUIET)
    assert expected is KeyboardInterrupt or "(No space left on device)" in str(told.value)
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]
    monkeypatch.setattr(Target, "load", lambda *_: pytest.fail("everything is answered"))
    prepare(config(tmp_path), QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_cannot_work_is_said_before_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "load", lambda *_: pytest.fail("loaded a model"))
    (tmp_path / "there").mkdir()
    (tmp_path / "empty.txt").touch()
    for knobs, complaint in [
        ({"output": str(tmp_path / "there")}, "exists already: name a folder that does not"),
        ({"output": "/"}, "exists already"),
        ({"output": str(tmp_path / "empty.txt" / "out")}, "out.partial cannot be used: Not a directory"),
        ({"prompts": "nowhere"}, "prompts 'nowhere' are neither"),
        ({"prompts": str(tmp_path / "empty.txt")}, "hold no prompt"),
        ({"target": "./nowhere"}, r"target './nowhere' is no folder"),
        ({"device": "cuda:77"}, "device names 'cuda:77'"),
    ]:
        with pytest.raises(ConfigError, match=complaint):
            prepare(config(tmp_path, **knobs), QUIET)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.txt", "there"]


def test_an_output_that_another_process_has_made_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "outline", lambda _: (tmp_path / "out").mkdir())
    monkeypatch.setattr(Target, "load", lambda *_: pytest.fail("loaded a model"))
    with pytest.raises(ConfigError, match="exists already"):
        prepare(config(tmp_path), QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("limit", 0),
        ("turns", -1),
        ("max_new_tokens", 1),
        ("held_out_ratio", 1.0),
        ("held_out_ratio", float("nan")),
        ("batch_size", 0),
        ("seed", -1),
        ("cpu_threads", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 0.9),
        ("top_k", -1),
        ("top_k", 50),
    ],
)
def test_bad_values(tmp_path: Path, knob: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"--{knob.replace('_', '-')} must be .*, got {value}"):
        config(tmp_path, **{knob: value})


def test_if_nothing_is_left_the_reason_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\(8 with no room for .* in the 4,096 positions .*\): shorten the prompts"):
        prepare(config(tmp_path, max_new_tokens=4096), QUIET)
    assert list(tmp_path.iterdir()) == []
    told = r"none of the prompts becomes a conversation \(8 cut off by .*\): pass .*, or remove .*out\.partial and raise"
    with pytest.raises(ConfigError, match=told):
        prepare(config(tmp_path, max_new_tokens=2, keep_unfinished=False), QUIET)
    assert prepare(config(tmp_path, max_new_tokens=2), QUIET) == tmp_path / "out", "the answers were not lost"


@pytest.mark.usefixtures("brief")
def test_it_tells_what_it_does_and_what_came_of_it(tmp_path: Path) -> None:
    heard = io.StringIO()
    prepare(config(tmp_path, held_out_ratio=0.25, keep_unfinished=False, limit=12), Console(file=heard, width=300))
    told = json.loads((tmp_path / "out" / "provenance.json").read_text())
    lines, kept, held = heard.getvalue().splitlines(), told["conversations"], round(told["conversations"] / 4)
    assert lines[0] == "Loading target 'tiny' in float32 on cpu."
    assert lines[1].startswith("12 of 12 prompts answered, ")
    assert lines[2].startswith(f"Wrote {kept} conversations to {tmp_path / 'out'}: {kept - held} to train on, {held} held out.")
    assert f"Left out {12 - kept}: " in lines[2]
    assert lines[3].startswith("Warning: ")
    assert "acceptance measured on fewer than 8 says little" in lines[3]


def test_who_wants_nothing_held_out_is_not_warned(tmp_path: Path) -> None:
    heard = io.StringIO()
    prepare(config(tmp_path, held_out_ratio=0), Console(file=heard, width=300))
    assert "Warning" not in heard.getvalue()


def test_a_target_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.decoding.generate.stop_token_ids", lambda *_: [])
    with pytest.raises(ConfigError, match="target 'tiny' names no token that ends an answer: set eos_token_id"):
        prepare(config(tmp_path), QUIET)
    assert list(tmp_path.iterdir()) == []


def test_too_large_a_batch_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Iterator[object]:
        raise torch.OutOfMemoryError("CUDA out of memory")
        yield

    monkeypatch.setattr(trainer.prepare.command, "generate_answers", fail)
    with pytest.raises(ConfigError, match="batch_size 6 does not fit into the memory of cpu: give the same command with a smaller"):
        prepare(config(tmp_path), QUIET)


def test_the_command_told_asks_for_the_same(tmp_path: Path) -> None:
    asked = config(tmp_path, template_args={"enable_thinking": "false"}, output="a folder", temperature=0.7, top_p=0.9, turns=0)
    words = shlex.split(trainer.prepare.command._command(asked))
    assert words[:4] == ["python", "-m", "trainer", "prepare"]
    assert parse(PrepareConfig, "prepare", words[4:]) == asked


def test_template_arguments_reach_the_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tokenizer() -> PreTrainedTokenizerFast:
        made = tiny_tokenizer()
        made.chat_template = "{% if loud is false %}quiet:{% endif %}" + made.chat_template
        return made

    asked: list[str] = []
    monkeypatch.setattr(trainer.target.load, "tiny_tokenizer", tokenizer)
    original = trainer.prepare.command.generate_answers

    def spy(model: object, questions: Any, **knobs: Any) -> object:
        asked.extend(tiny_tokenizer().decode(question.token_ids) for *_, question in questions._waiting)
        return original(model, questions, **knobs)  # type: ignore[arg-type]

    monkeypatch.setattr(trainer.prepare.command, "generate_answers", spy)
    prepare(config(tmp_path, limit=2, template_args={"loud": "false"}), QUIET)
    assert all(text.startswith("quiet:<|im_start|>") for text in asked)
    assert len(asked) == 2
