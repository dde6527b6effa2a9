import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from trainer.target.load import Target
from trainer.target.provenance import mismatches, read_provenance, same_target, weights_fingerprint

MADE: dict[str, Any] = {"target": "tiny", "target_stand_in": None, "precision": "float32", "template_args": {}}


def folder_of_weights(folder: Path, numbers: bytes = b"\1" * 300_000) -> str:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(numbers)
    return str(folder)


def against(provenance: dict[str, Any], **run: Any) -> list[str]:
    target = Target(name=run.pop("target", "tiny"), source="", note=run.pop("note", ""))
    return mismatches({**MADE, **provenance}, target=target, **{"precision": "float32", "template_args": {}, **run})


TINY, DEMO = Target(name="tiny", source="tiny"), Target(name="demo", source="a folder")


def test_what_fits_gets_no_sentence() -> None:
    assert against({}) == []
    assert mismatches({}, target=TINY, precision="bfloat16") == [], "nothing is known"


def test_the_committed_data_is_known_and_fits_its_target() -> None:
    told = read_provenance("demo")
    assert told is not None
    assert (told["target"], told["precision"]) == ("demo", "float32")
    assert "template_args" not in told, "it was made before they were written"
    assert mismatches(told, target=DEMO, precision="float32", template_args={}) == []
    assert len(mismatches(told, target=TINY, precision="bfloat16", template_args={"enable_thinking": "false"})) == 3


@pytest.mark.parametrize("text", [None, "{", "[]", b"\xff"])
def test_a_provenance_that_cannot_be_read_is_none(tmp_path: Path, text: str | bytes | None) -> None:
    if text is not None:
        (tmp_path / "provenance.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert read_provenance(str(tmp_path)) is None


def test_a_provenance_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "provenance.json").write_text(json.dumps(MADE))
    assert read_provenance(str(tmp_path)) == MADE
    assert read_provenance(str(tmp_path / "nowhere")) is None


def test_answers_by_another_target_get_a_sentence() -> None:
    assert against({"target": "Qwen/Qwen3-8B"}) == [
        "the data's answers are by target 'Qwen/Qwen3-8B', but the target is 'tiny': "
        "the drafter would learn to guess what another model says"
    ]


def test_a_folder_is_the_same_target_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of_weights(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("model")
    for spelled in ("model", "./model/", str(tmp_path / "model"), "link"):
        assert against({"target": "model"}, target=spelled) == []
    folder_of_weights(tmp_path / "other", b"\2" * 300_000)
    assert len(against({"target": "model"}, target="other")) == 1


def test_weights_tell_a_target_wherever_it_lies(tmp_path: Path) -> None:
    model, copy = folder_of_weights(tmp_path / "model"), tmp_path / "copy"
    shutil.copytree(model, copy)
    made = {"target": model, "target_weights": weights_fingerprint(model)}
    assert made["target_weights"]
    assert against(made, target=str(copy)) == []
    other = folder_of_weights(tmp_path / "other", b"\1" * 299_999 + b"\2")
    assert "by target" in against(made, target=other)[0]
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\3" * 300_000)
    assert "are not those that made the data's answers" in against(made, target=model)[0]


@pytest.mark.parametrize(
    ("recorded", "asked", "same"),
    [
        ("tiny", "tiny", True),
        ("tiny", "demo", False),
        ("tiny", "models/tiny/", False),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", True),
        ("Qwen/Qwen3-8B", "qwen/qwen3-8b", True),
        ("Qwen/Qwen3-8B", "someone/Qwen3-8B", False),
        ("Qwen/Qwen3-8B", "/models/qwen3-8b/", True),
        ("/models/Qwen3-8B", "Qwen/Qwen3-8B", True),
        ("/models/Qwen3-4B", "Qwen/Qwen3-8B", False),
        ("/models/gone", "/models/gone/", True),
        ("/models/gone", "/elsewhere/gone", False),
    ],
)
def test_a_name_means_the_same_target_or_another(recorded: str, asked: str, same: bool) -> None:
    assert same_target(recorded, asked) is same


def test_folders_are_the_same_target_by_their_weights_and_not_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = folder_of_weights(tmp_path / "a" / "model"), folder_of_weights(tmp_path / "b" / "model", b"\2" * 300_000)
    copy = folder_of_weights(tmp_path / "copy")
    assert same_target(one, copy)
    assert not same_target(one, other)
    assert not same_target("Qwen/model", one, weights_fingerprint(other)), "what was written down decides"
    assert same_target("/gone/elsewhere", one, weights_fingerprint(one))
    assert same_target("Qwen/model", one)


def test_only_folders_of_weights_have_a_fingerprint(tmp_path: Path) -> None:
    assert weights_fingerprint(str(tmp_path)) is None
    assert weights_fingerprint("tiny") is None
    assert weights_fingerprint("Qwen/Qwen3-8B") is None


def test_a_stand_in_made_other_answers_than_the_demo_target() -> None:
    stood_in = {"target": "demo", "target_stand_in": "a tiny random target stands in for it"}
    assert len(against(stood_in, target="demo")) == 1
    assert against(stood_in, target="demo", note="stands in") == []
    assert len(against({"target": "demo"}, target="demo", note="stands in")) == 1


def test_another_precision_gets_a_sentence() -> None:
    (sentence,) = against({"precision": "bfloat16"})
    assert sentence.startswith("the data's answers were made in bfloat16, but the target runs in float32")


def test_another_thinking_mode_gets_a_sentence() -> None:
    (sentence,) = against({"template_args": {"enable_thinking": "false"}})
    assert "(enable_thinking false then and not given now)" in sentence
    (sentence,) = against({"template_args": {"a": "1", "b": "x"}}, template_args={"a": "1", "b": "y", "c": "null"})
    assert '(b "x" then and "y" now, c not given then and null now)' in sentence


@pytest.mark.parametrize("now", [{"enable_thinking": "False"}, {"enable_thinking": "false"}, {"enable_thinking": False}])
def test_the_same_template_arguments_may_be_spelled_in_several_ways(now: dict[str, Any]) -> None:
    assert against({"template_args": {"enable_thinking": "false"}}, template_args=now) == []


def test_odd_facts_are_passed_over() -> None:
    assert against({"target": 7, "precision": None, "template_args": ["x"], "target_weights": 5}) == []
