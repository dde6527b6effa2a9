"""trainer/evaluate/warnings.py: one sentence for each thing that makes an evaluation tell less than it seems to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest

from tests.support.made_runs import tiny_drafter
from trainer.data.conversations import fingerprint, load_conversations
from trainer.data.prompts import fingerprint_prompts, load_prompts
from trainer.evaluate.warnings import EvaluationSettings, evaluation_warnings
from trainer.formats.load import TrainedDrafter, TrainingDetails
from trainer.target.load import Target
from trainer.target.provenance import NAME

DRAFTER = tiny_drafter()
ASKED = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


def trained(*, target: str | None = "tiny", step: int | None = 3, **facts: Any) -> TrainedDrafter:
    known = {"run": "a", "precision": "float32", "template_args": {"enable_thinking": "false"}, **facts}
    return TrainedDrafter(drafter=DRAFTER, path=Path("here"), target=target, step=step, training=TrainingDetails(**known))


def told(drafter: TrainedDrafter, **other: Any) -> list[str]:
    target = other.pop("target", "tiny")
    use = {
        "target": Target(name=target, source=target),
        "precision": "float32",
        "template_args": {"enable_thinking": "false"},
        "prompts": "some.txt",
        **other,
    }
    return list(evaluation_warnings(drafter, EvaluationSettings(**use)))


def only(drafter: TrainedDrafter, **other: Any) -> str:
    (sentence,) = told(drafter, **other)
    return sentence


def test_what_is_used_as_it_was_trained_needs_no_caution() -> None:
    assert told(trained()) == []
    assert told(trained(template_args={"enable_thinking": "False"})) == [], "spelt in another way"


def test_an_untrained_drafter() -> None:
    assert only(trained(step=0), precision="bfloat16").startswith("The drafter is untrained")


def test_another_target() -> None:
    assert "trained for target 'Qwen/Qwen3-8B' and drafts for 'tiny' here" in only(trained(target="Qwen/Qwen3-8B"))
    assert told(trained(target="Qwen/Qwen3-8B"), target="./models/qwen3-8b") == [], "a copy of it"


def test_another_precision() -> None:
    sentence = only(trained(), precision="bfloat16")
    assert "in float32 and drafts for one in bfloat16 here" in sentence
    assert "--precision float32" in sentence


@pytest.mark.parametrize(
    ("before", "here", "said"),
    [
        ({"enable_thinking": "false"}, {}, "with the arguments enable_thinking=False for the target's chat template and is"),
        ({}, {"enable_thinking": "true"}, "with no arguments for the target's chat template and is"),
        ({"enable_thinking": "false"}, {"enable_thinking": "true"}, "is evaluated with the arguments enable_thinking=True: "),
    ],
)
def test_other_arguments_for_the_template(before: Mapping[str, str], here: Mapping[str, str], said: str) -> None:
    assert said in only(trained(template_args=before), template_args=here)


def test_nothing_is_made_up_about_a_drafter_of_unknown_origin() -> None:
    assert told(TrainedDrafter(drafter=DRAFTER, path=Path("here"), target=None, step=None, training=TrainingDetails())) == []


def test_data_that_were_not_made_as_the_target_is_used(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"target": "tiny", "precision": "bfloat16"}))
    drafter = trained(data=str(tmp_path), template_args={})
    sentence = only(drafter, template_args={})
    assert sentence.startswith("Of the training: the data's answers were made in bfloat16, but the target runs in float32")
    (tmp_path / NAME).write_text(json.dumps({"target": "tiny", "precision": "float64"}))
    assert "was trained beside" in only(drafter, template_args={}, precision="bfloat16"), "one sentence for one thing"


def test_prompts_of_the_training(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list([{"messages": ASKED}])
    for name, saved in (("plain", rows), ("split", datasets.DatasetDict({"train": rows, "held_out": rows}))):
        saved.save_to_disk(str(tmp_path / name))
    seen = trained(data_fingerprint=fingerprint(load_conversations(str(tmp_path / "plain"))))
    assert "that the drafter was trained on" in only(seen, prompts=str(tmp_path / "plain"))
    assert told(seen, prompts=str(tmp_path / "split")) == [], "its other split is asked"
    assert told(trained(data_fingerprint="another"), prompts=str(tmp_path / "plain")) == []


def test_prompts_that_the_training_data_were_made_from(tmp_path: Path) -> None:
    asked, other = str(tmp_path / "asked.txt"), str(tmp_path / "other.txt")
    Path(asked).write_text("Hi\nWhy?\nBye\n")
    Path(other).write_text("Hi\nWhy not?\n")
    known = fingerprint_prompts(load_prompts(asked, limit=2))
    (tmp_path / NAME).write_text(json.dumps({"prompts_fingerprint": known, "limit": 2, "seed": 5}))
    drafter = trained(data=str(tmp_path), template_args={})
    assert "those that the training data were made from" in only(drafter, template_args={}, prompts=asked)
    for name in (other, "stdlib", str(tmp_path / "nowhere")):
        assert told(drafter, template_args={}, prompts=name) == []
    (tmp_path / NAME).write_text(json.dumps({"target": "tiny"}))
    assert told(drafter, template_args={}, prompts=asked) == [], "data of unknown prompts"


def test_stdlib_prompts_are_known_in_whichever_order_they_are_asked(tmp_path: Path) -> None:
    known = fingerprint_prompts(load_prompts("stdlib", seed=5, limit=9))
    (tmp_path / NAME).write_text(json.dumps({"prompts_fingerprint": known, "limit": 9, "seed": 5}))
    drafter = trained(data=str(tmp_path), template_args={})
    assert "those that the training data were made from" in only(drafter, template_args={}, prompts="stdlib")
