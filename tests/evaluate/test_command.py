"""`python -m trainer evaluate`: drafters decode for real, and what is told of it is true."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from tests.support.made_runs import checkpoint_of, make_run, tiny_architecture, tiny_drafter
from tests.support.talkers import answers_of, save_talker, talker, tiny_chat
from trainer.__main__ import main
from trainer.config import DrafterConfig
from trainer.decoding.speculative import Decoded, SpeculativeDecoder
from trainer.drafter.model import Drafter
from trainer.evaluate.lossless import Divergence
from trainer.formats.export import ExportConfig, export
from trainer.target.tiny import tiny_model, tiny_tokenizer

Evaluate = Callable[..., int]
DOCUMENT = Path(__file__).parents[2] / "docs" / "evaluate.md"


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With run `a` and two files of prompts."""
    make_run(tmp_path, steps=(3, 6))
    (tmp_path / "asked.txt").write_text("Say 1\nCount to 2\nWhy not 3?\n")
    rows = [{"prompt": "Say 1", "category": "talk"}, {"prompt": "Count to 9", "category": "sums"}]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def evaluate(folder: Path) -> Evaluate:
    """Runs the command on run `a` and asked.txt; later options win over those that are given here."""

    def run(*words: str) -> int:
        where = ["--checkpoint", "a", "--runs", str(folder), "--prompts", str(folder / "asked.txt")]
        try:
            return main(["evaluate", *where, "--max-new-tokens", "12", *words])
        except SystemExit as error:  # tyro's own way to refuse
            return int(error.code or 0)

    return run


Said = pytest.CaptureFixture[str]


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def documented() -> set[str]:
    """The fields in the first column of docs/evaluate.md."""
    rows = re.findall(r"^\| (`[^|]*) \|", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return set(re.findall(r"`(\w+)`", " ".join(rows)))


def test_json_is_all_that_stdout_gets(evaluate: Evaluate, capsys: Said) -> None:
    assert evaluate("--json") == 0
    told = strict(capsys.readouterr().out)
    assert set(told) == documented()
    assert (told["step"], told["target"], told["block_size"], told["prompts"]) == (6, "tiny", 4, 3)
    assert (told["lossless"], told["identical_prompts"], told["divergences"]) == (True, 3, [])
    assert 1 <= told["acceptance_length"] <= 4
    assert len(told["acceptance_by_position"]) == 3
    assert told["tokens"] == sum(row["tokens"] for row in told["by_prompt"]) == 3 + told["rounds"] + told["accepted_tokens"]
    assert told["speedup"] == pytest.approx(told["tokens_per_second"] / told["baseline_tokens_per_second"])
    assert told["settings"]["template_args"] == {"enable_thinking": "false"}, "those of the training"
    assert (told["by_category"], told["warnings"]) == ({}, [])


def test_a_table_for_people(evaluate: Evaluate, folder: Path, capsys: Said) -> None:
    assert evaluate("--prompts", str(folder / "asked.jsonl")) == 0
    said = capsys.readouterr()
    assert "a, step 6, drafting for tiny (greedy, float32 on cpu)" in said.out
    assert {"│ talk", "│ sums", "│ all "} <= {line[:6] for line in said.out.splitlines()}
    assert "Lossless: all 2 answers are the target's own, token for token." in said.out


def test_answers_are_those_of_transformers(evaluate: Evaluate, folder: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that ends some answers within the limit, from a folder, with its own drafter."""
    target = talker("Qwen3")
    place = save_talker(target, folder / "target")
    said: list[Decoded] = []
    real = SpeculativeDecoder.decode
    monkeypatch.setattr(SpeculativeDecoder, "decode", lambda self, ids, **how: said.append(real(self, ids, **how)) or said[-1])
    knobs = DrafterConfig(block_size=4, layers=1, target_layers=3)
    output = export(ExportConfig(dry_run=True, target=place, output=str(folder / "drafter"), drafter=knobs))
    assert evaluate("--checkpoint", str(output), "--json") == 0
    told = strict(capsys.readouterr().out)
    asked = [tiny_chat().prompt_ids([{"role": "user", "content": line}]) for line in ("Say 1", "Count to 2", "Why not 3?")]
    assert [text.token_ids for text in said[1:]] == answers_of(target, asked, 12)
    assert told["lossless"] is True
    assert told["step"] == 0
    assert told["warnings"][0].startswith("The drafter is untrained")


def test_a_checkpoint_and_its_export_are_told_the_same(evaluate: Evaluate, folder: Path, capsys: Said) -> None:
    output = export(ExportConfig(checkpoint="a", runs=str(folder), output=str(folder / "drafter")))
    facts = []
    for name in ("a", str(checkpoint_of(folder / "a", 6)), str(output)):
        assert evaluate("--checkpoint", name, "--json", "--limit", "1") == 0
        told = strict(capsys.readouterr().out)
        facts.append([told[field] for field in ("step", "target", "rounds", "tokens", "acceptance_by_position", "warnings")])
    assert facts[0] == facts[1] == facts[2]


def test_drafts_decide_the_speed_and_never_the_words(evaluate: Evaluate, folder: Path, capsys: Said) -> None:
    """Another drafter, of other weights and shape, gives the same texts in other rounds."""
    make_run(folder, "b", drafter=Drafter(tiny_architecture(DrafterConfig(block_size=7, layers=1, target_layers=3))))
    for name in ("a", "b"):
        assert evaluate("--checkpoint", name, "--json") == 0
    told = [strict(part) for part in capsys.readouterr().out.replace("}\n{", "}\0{").split("\0")]
    assert told[0]["tokens"] == told[1]["tokens"]
    assert [len(one["acceptance_by_position"]) for one in told] == [3, 6]


def test_sampled_text_is_not_compared(evaluate: Evaluate, capsys: Said) -> None:
    assert evaluate("--temperature", "0.8", "--top-k", "20", "--top-p", "0.9", "--limit", "1") == 0
    said = capsys.readouterr().out
    assert "sampled at temperature 0.8" in said
    assert "Sampled texts differ by chance" in said
    assert evaluate("--temperature", "0.8", "--limit", "1", "--json") == 0
    told = strict(capsys.readouterr().out)
    assert told["lossless"] is None
    assert told["baseline_tokens_per_second"] > 0


def test_the_target_need_not_be_asked_alone(evaluate: Evaluate, capsys: Said) -> None:
    assert evaluate("--no-baseline", "--limit", "1") == 0
    assert "(--no-baseline)" in capsys.readouterr().out
    assert evaluate("--no-baseline", "--limit", "1", "--json") == 0
    told = strict(capsys.readouterr().out)
    assert [told[field] for field in ("lossless", "speedup", "baseline_tokens_per_second", "identical_prompts")] == [None] * 4


def test_a_drafter_that_changes_the_text_is_found_out(evaluate: Evaluate, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, also where only one of the answers is wrong."""
    real = SpeculativeDecoder.decode

    def lie(self: SpeculativeDecoder, ids: list[int], **how: Any) -> Decoded:
        text = real(self, ids, **how)
        if len(calls) == 2:
            text.token_ids[3] = 0
        calls.append(ids)
        return text

    calls: list[list[int]] = []
    monkeypatch.setattr(SpeculativeDecoder, "decode", lie)
    assert evaluate("--json") == 1
    said = capsys.readouterr()
    told = strict(said.out)
    assert (told["lossless"], told["identical_prompts"]) == (False, 2)
    (divergence,) = told["divergences"]
    assert (divergence["prompt"], divergence["position"], divergence["token"], divergence["is_rounding"]) == (1, 3, 0, False)
    assert divergence["logit_gap"] > 1000 * divergence["rounding"]
    assert "NOT lossless: 2 of 3 answers" in said.err


def test_other_precision_than_in_training_is_warned_of_and_works(evaluate: Evaluate, capsys: Said) -> None:
    assert evaluate("--precision", "bfloat16", "--template-args", "--json") == 0
    said = capsys.readouterr()
    told = strict(said.out)
    assert told["settings"]["precision"] == "bfloat16"
    assert told["settings"]["template_args"] == {}
    assert "in float32 and drafts for one in bfloat16" in told["warnings"][0]
    assert "chat template" in told["warnings"][1]
    assert [f"Warning: {sentence}" for sentence in told["warnings"]] == [
        line for line in said.err.splitlines() if line.startswith("Warning: ")
    ]
    assert told["lossless"] or all(divergence["is_rounding"] for divergence in told["divergences"])


def test_long_prompts_are_left_out_and_told(evaluate: Evaluate, folder: Path, capsys: Said) -> None:
    with (folder / "asked.txt").open("a") as file:
        file.write("x" * 5000 + "\n")
    assert evaluate() == 0
    assert "Prompts left out: 1 too long." in capsys.readouterr().out
    assert evaluate("--json") == 0
    told = strict(capsys.readouterr().out)
    assert (told["prompts"], told["prompts_left_out"]) == (3, {"too_long": 1})


def test_json_into_a_file_beside_the_table(evaluate: Evaluate, folder: Path, capsys: Said) -> None:
    assert evaluate("--output", str(folder / "out.json")) == 0
    assert "acceptance length" in capsys.readouterr().out
    assert set(strict((folder / "out.json").read_text())) == documented()
    assert sorted(path.name for path in folder.iterdir()) == ["a", "asked.jsonl", "asked.txt", "out.json"]
    before = (folder / "out.json").read_bytes()
    assert evaluate("--output", str(folder / "out.json")) == 2
    assert "exists already" in capsys.readouterr().err
    assert (folder / "out.json").read_bytes() == before


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["table", "json"])
@pytest.mark.parametrize("trouble", ["full", "meanwhile"])
def test_a_file_that_cannot_be_written_costs_no_result(
    evaluate: Evaluate, folder: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch, trouble: str, words: list[str]
) -> None:
    """The disk is full, or another process made the file while the drafter was asked."""
    place, real = folder / "out.json", os.fdopen

    def open_(descriptor: int, mode: str) -> Any:
        if trouble == "full":
            return real(os.open("/dev/full", os.O_WRONLY), mode)
        place.write_text("another's")
        return real(descriptor, mode)

    monkeypatch.setattr("trainer.files.os.fdopen", open_)
    assert evaluate("--limit", "1", "--output", str(place), *words) == 2
    said = capsys.readouterr()
    assert ('"acceptance_length"' if words else "acceptance length") in said.out
    reason = "No space left on device" if trouble == "full" else "File exists"
    assert f"output '{place}' cannot be written ({reason}): " in said.err
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith((".", "out"))) == ["out.json"][trouble == "full" :]
    if trouble == "meanwhile":
        assert place.read_text() == "another's"


def test_numbers_that_json_has_no_word_for_are_null(evaluate: Evaluate, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Divergence(position=1, token=2, target_token=3, logit_gap=float("nan"), rounding=float("inf"))
    monkeypatch.setattr("trainer.evaluate.compare.find_divergence", lambda *_: broken)
    assert evaluate("--limit", "1", "--json") == 1
    (divergence,) = strict(capsys.readouterr().out)["divergences"]
    assert (divergence["logit_gap"], divergence["rounding"], divergence["is_rounding"]) == (None, None, False)


def test_the_split_that_is_asked_is_told(evaluate: Evaluate, folder: Path, capsys: Said) -> None:
    rows = {name: datasets.Dataset.from_list([{"prompt": f"Say {name}"}]) for name in ("train", "held_out")}
    datasets.DatasetDict(rows).save_to_disk(str(folder / "d1"))
    assert evaluate("--prompts", str(folder / "d1")) == 0
    assert f"Prompts: the split 'held_out' of '{folder / 'd1'}'" in capsys.readouterr().out
    for prompts, split in (("d1", "held_out"), ("asked.txt", None)):
        assert evaluate("--prompts", str(folder / prompts), "--json") == 0
        assert strict(capsys.readouterr().out)["settings"]["split"] == split


def test_progress_has_a_beginning_and_an_end(evaluate: Evaluate, capsys: Said) -> None:
    assert evaluate() == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Loading target 'tiny' in float32 on cpu."
    assert re.fullmatch(r"3 of 3 prompts answered, acceptance length \d\.\d\d", lines[-1])


def broken_weights(folder: Path) -> None:
    drafter = tiny_drafter()
    drafter.fc.weight.data[0, 0] = float("nan")
    make_run(folder, "nan", drafter=drafter)


def without_end(folder: Path) -> None:
    """A target whose template ends an answer with plain text, and that names no end token either."""
    model, tokenizer = tiny_model(), tiny_tokenizer()
    model.config.eos_token_id, model.generation_config.eos_token_id = [], None  # for None, a Llama's own default would come back
    model.save_pretrained(folder / "endless")
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", ".")
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder / "endless")


def other_target(folder: Path) -> None:
    (folder / "other").mkdir()
    config = tiny_model().config.to_dict() | {"hidden_size": 128}
    (folder / "other" / "config.json").write_text(json.dumps(config))
    (folder / "other" / "model.safetensors").write_bytes(b"")


def no_origin(folder: Path) -> None:
    output = export(ExportConfig(checkpoint="a", runs=str(folder), output=str(folder / "plain")))
    (output / "provenance.json").unlink()


def nothing(_: Path) -> None: ...


@pytest.mark.parametrize(
    ("prepare", "words", "said"),
    [
        (nothing, "--checkpoint nosuch", "'nosuch' is no folder and no run in"),
        (nothing, "--prompts {}/nosuch.txt", "are neither a file nor a folder"),
        (nothing, "--prompts {}/empty.txt", "hold no prompt"),
        (nothing, "--target nosuch/folder/here", "is no folder and no hub id"),
        (nothing, "--max-new-tokens 4096", "none of the 3 prompts can be answered (prompt 1: its "),
        (nothing, "--max-new-tokens 1", "--max-new-tokens must be at least 2, got 1"),
        (nothing, "--temperature -1", "--temperature must be 0 (greedy) or at least 0.001, got -1.0"),
        (nothing, "--limit 0", "--limit must be at least 1, got 0"),
        (nothing, "--device cuda:9", "device names 'cuda:9', but this machine has cpu"),
        (nothing, "--output {}/nosuch/out.json", "is in a folder that does not exist"),
        (broken_weights, "--checkpoint nan", "has weights that are NaN or infinite"),
        (without_end, "--target {}/endless", "names no token that ends an answer"),
        (other_target, "--target {}/other", "the drafter has a hidden size of 64, target "),
        (no_origin, "--checkpoint {}/plain", "does not say which target it drafts for: name it with --target"),
    ],
)
def test_what_cannot_work_is_told_in_a_sentence(
    evaluate: Evaluate, folder: Path, capsys: Said, prepare: Callable[[Path], None], words: str, said: str
) -> None:
    (folder / "empty.txt").write_text("\n")
    prepare(folder)
    assert evaluate(*words.replace("{}", str(folder)).split()) == 2
    told = capsys.readouterr()
    assert said in " ".join(told.err.split())
    assert "Traceback" not in told.err
    assert told.out == ""


def test_a_cut_off_checkpoint_is_refused(evaluate: Evaluate, folder: Path, capsys: Said) -> None:
    copy = shutil.copytree(checkpoint_of(folder / "a", 6), folder / "copy")
    (copy / "drafter.safetensors").write_bytes((copy / "drafter.safetensors").read_bytes()[:-9])
    assert evaluate("--checkpoint", str(copy)) == 2
    assert "is broken: drafter.safetensors has" in capsys.readouterr().err
