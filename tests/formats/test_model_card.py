"""trainer/formats/model_card.py: what people read before they serve a drafter, or mistake it for a good one."""

import dataclasses
from pathlib import Path

import pytest
import torch

from tests.support.made_runs import make_run
from trainer.formats.load import MeasuredAcceptance, TrainedDrafter, TrainingDetails, load_trained
from trainer.formats.model_card import Exported, model_card
from trainer.target.load import TargetDescription

HUB = TargetDescription(
    name="Qwen/Qwen3-8B",
    source="Qwen/Qwen3-8B",
    architecture="Qwen3ForCausalLM",
    layers=36,
    hidden_size=4096,
    vocab_size=1,
    max_positions=1,
)


@pytest.fixture
def trained(tmp_path: Path) -> TrainedDrafter:
    make_run(tmp_path)
    return load_trained("a", tmp_path)


def card(trained: TrainedDrafter, target: TargetDescription = HUB, format_: str = "zlab") -> str:
    return model_card(Exported(trained=trained, target=target, dtype=torch.bfloat16, format=format_))  # type: ignore[arg-type]


def test_a_target_on_the_hub_is_linked_and_served_by_name(trained: TrainedDrafter) -> None:
    text = card(trained)
    assert text.startswith("---\nbase_model: Qwen/Qwen3-8B\ntags:")
    assert "vllm serve Qwen/Qwen3-8B --speculative-config" in text
    assert "TARGET" not in text


def test_a_folder_that_looks_like_a_hub_id_is_none(
    trained: TrainedDrafter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Qwen" / "Qwen3-8B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    text = card(trained)
    assert "base_model" not in text
    assert "`TARGET` the folder or hub id of the target" in text
    assert "vllm serve TARGET" in text


def test_what_is_not_known_is_said(trained: TrainedDrafter) -> None:
    unknown = dataclasses.replace(trained, step=None, training=TrainingDetails(), measured=None)
    text = card(unknown)
    assert "| measured acceptance length | not measured |" in text
    assert "| optimizer steps | – |" in text
    for row in ("command", "run", "data", "versions", "started from"):
        assert f"| {row} |" not in text
    assert "chat template" not in text
    assert "UNTRAINED" not in text, "unknown is not untrained"


@pytest.mark.parametrize(
    ("precision", "said"),
    [
        ("bfloat16", "in mixed precision (weights in float32, products in bfloat16). The weights here are\nrounded to bfloat16"),
        ("float32", "during training, in float32. The weights here are\nrounded to bfloat16"),
    ],
)
def test_weights_that_were_rounded_since_they_were_measured(trained: TrainedDrafter, precision: str, said: str) -> None:
    measured = dataclasses.replace(
        trained,
        measured=MeasuredAcceptance(step=3, measured_length=2.5, prompts=16),
        training=dataclasses.replace(trained.training, precision=precision),
    )
    assert said in card(measured)
    assert "rounded" not in model_card(Exported(trained=measured, target=HUB, dtype=torch.float32, format="zlab"))
    assert "rounded" not in card(trained), "nothing was measured"


def test_what_a_warm_start_took_over_is_told(trained: TrainedDrafter) -> None:
    began_with = {"name": "old|one", "path": "runs/old", "step": 1200, "target": "tiny", "weights": "d1ce"}
    text = card(dataclasses.replace(trained, training=dataclasses.replace(trained.training, began_with=began_with)))
    assert "| started from | the drafter in old\\|one (step 1,200, made for tiny, weights d1ce) |" in text
    assert "started from" not in card(trained)


def test_a_name_cannot_break_the_tables(trained: TrainedDrafter) -> None:
    odd = dataclasses.replace(trained.training, data="a|b\nc", command="say 'a|b'")
    text = card(dataclasses.replace(trained, training=odd))
    assert "| data | a\\|b c (" in text
    assert "| command | `say 'a\\|b'` |" in text


def test_the_speculators_format_is_served_by_the_folder_alone(trained: TrainedDrafter) -> None:
    text = card(trained, format_="speculators")
    assert "vllm serve FOLDER" in text
    assert "SGLang" not in text
    assert "| format | speculators 0.9.0 |" in text
