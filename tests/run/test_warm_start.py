"""trainer/run/warm_start.py: a run begins with the weights and the shape of the drafter that `--from` names, nothing else."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.made_runs import checkpoint_of, cut_off, make_run, tiny_architecture, tiny_drafter, weights_at
from tests.system.test_train import conversation, lines, run, same, weights, words
from trainer.__main__ import EXIT_UNUSABLE, main
from trainer.cli import read_train_config
from trainer.config import DrafterConfig, LossConfig
from trainer.data.batches import pack
from trainer.data.chat_template import Chat
from trainer.data.samples import Tokeniser, Visits
from trainer.drafter.anchors import build_blocks, draw_anchors, generator_for
from trainer.drafter.loss import drafter_loss
from trainer.errors import ConfigError
from trainer.formats.export import ExportConfig, export
from trainer.formats.load import load_trained
from trainer.run.warm_start import digest, read_warm_start, resumed_shape, take_shape
from trainer.target.features import FeatureExtractor, FeatureRing, borrow_weights
from trainer.target.load import Target
from trainer.target.tiny import MASK, tiny_tokenizer
from trainer.train import train

SHAPE = tiny_architecture()  # blocks of 4, 2 layers, 3 tapped layers


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("data") / "conversations"
    datasets.Dataset.from_list([conversation(number) for number in range(24)]).save_to_disk(folder)
    return str(folder)


@pytest.fixture(scope="module")
def trained(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with `before`: 6 steps of blocks of 4 tokens, with a checkpoint after the third."""
    runs = tmp_path_factory.mktemp("trained")
    run(data, runs, "--name", "before", "--max-steps", "6", "--checkpoint.every", "3", *FAST)
    return runs


FAST = ("--optimizer.learning-rate", "3e-3", "--evaluate.every", "0")


@pytest.fixture(scope="module")
def exported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(ExportConfig(checkpoint="before", runs=str(trained), output=str(tmp_path_factory.mktemp("exported") / "drafter")))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def warm(data: str, runs: Path, name: str, start: Path | str, *more: str) -> dict[str, Any]:
    """Train on from `start`; the first line of its steps."""
    train(read_train_config([*bare(data, runs), "--name", name, "--from", str(start), *FAST, *more]), ["test"])
    first, *_ = lines(runs, name, "steps.jsonl")
    return first


def bare(data: str, runs: Path) -> Iterator[str]:
    """The usual words, without those that say what the drafter looks like."""
    all_words = iter(words(data, runs))
    for word in all_words:
        if word in ("--drafter.block-size", "--drafter.layers"):
            next(all_words)
        else:
            yield word


def loss_of(start: Path, data: str) -> float:
    """The loss of the drafter in `start` on the first batch of a run, put together by hand."""
    drafter = load_trained(str(start)).drafter
    model = Target.find("tiny").load(torch.float32, "cpu")
    visits = Visits(datasets.load_from_disk(data), seed=0, epochs=1)
    (batch, *_) = pack(Tokeniser(Chat(tiny_tokenizer(), max_length=128), print)(iter(visits)), token_budget=128)
    ids = tuple(drafter.config.dflash_config["target_layer_ids"])
    ring = FeatureRing(1, 128, len(ids) * 64, torch.float32, torch.device("cpu"))
    (features,) = FeatureExtractor(model, ids, ring).extract(iter([batch]))
    blocks = build_blocks(batch, *draw_anchors(batch, 8, generator_for(0, 0)), drafter.block_size)
    weights = borrow_weights(model, torch.device("cpu"))
    with torch.no_grad():
        sums = drafter_loss(drafter, weights, features, blocks, LossConfig())
    return float(sums.loss_sum / sums.weight)


# Whole runs.


@pytest.mark.parametrize("kind", ["run", "checkpoint", "exported"])
def test_the_first_loss_is_that_of_the_drafter_it_began_with(
    data: str, trained: Path, exported: Path, runs: Path, kind: str
) -> None:
    before = trained / "before"
    start = {"run": before, "checkpoint": before / "checkpoints" / "step-000000003", "exported": exported}[kind]
    first = warm(data, runs, "after", start, "--max-steps", "1")
    assert first["loss"] == pytest.approx(loss_of(start, data), rel=1e-5)
    cold = lines(trained, "before", "steps.jsonl")[0]["loss"]
    assert first["loss"] < 0.97 * cold, "the same batch and anchors met random weights there"
    assert (first["step"], first["samples"], first["learning_rate"] > 0) == (
        1,
        lines(trained, "before", "steps.jsonl")[0]["samples"],
        True,
    )


def test_the_record_says_where_it_came_from(data: str, trained: Path, runs: Path) -> None:
    checkpoint = trained / "before" / "checkpoints" / "step-000000006"
    warm(data, runs, "after", trained / "before", "--max-steps", "1")
    facts = json.loads((runs / "after" / "run.json").read_text())
    assert facts["from"] == {
        "name": str(trained / "before"),
        "path": str(checkpoint),
        "step": 6,
        "target": "tiny",
        "weights": digest(load_file(checkpoint / "drafter.safetensors")),
    }
    assert (facts["drafter"]["block_size"], facts["drafter"]["layers"]) == (4, 1), "the folder's, not the flags' 16 and 5"
    assert facts["config"]["drafter"]["block_size"] == 4
    assert json.loads((trained / "before" / "run.json").read_text())["from"] is None


def test_a_resume_needs_nothing_of_where_the_run_came_from(data: str, exported: Path, runs: Path, tmp_path: Path) -> None:
    start = tmp_path / "gone"
    shutil.copytree(exported, start)
    odd = json.loads((start / "config.json").read_text())
    odd["rms_norm_eps"] = 1e-3  # no flag says this: only the folder does, and then the checkpoint
    (start / "config.json").write_text(json.dumps(odd))
    warm(data, runs, "straight", start, "--max-steps", "4")
    warm(data, runs, "twice", start, "--max-steps", "4", "--checkpoint.every", "2")
    shutil.rmtree(runs / "twice" / "checkpoints" / "step-000000004")
    shutil.rmtree(start)
    train(read_train_config(["--resume", "twice", "--runs", str(runs)]), ["test"])
    assert same(weights(runs, "straight"), weights(runs, "twice"))
    assert load_trained(str(runs / "twice")).config.rms_norm_eps == 1e-3
    assert json.loads((runs / "twice" / "run.json").read_text())["from"]["path"] == str(start)


BAD = {
    "nothing there": ([], "is no folder and no run in", lambda folder: shutil.rmtree(folder)),
    "cut off": ([], "drafter.safetensors has", lambda folder: cut_off(folder / "drafter.safetensors")),
    "another block": (["--drafter.block-size", "8"], "drafter.block_size is 8, but the drafter that --from names has 4", None),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_sentence_and_leaves_nothing(
    data: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    more, sentence, spoil = BAD[case]
    start = checkpoint_of(make_run(tmp_path / "made"), 3)
    if spoil:
        spoil(start)
    assert main(["train", *bare(data, runs), "--from", str(start), *more]) == EXIT_UNUSABLE
    told = capsys.readouterr().err
    assert sentence in told
    assert "Traceback" not in told
    assert not runs.exists()


def test_a_resumed_run_has_its_own_drafter(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = str(trained / "before")
    assert main(["train", "--resume", before, "--from", before]) == EXIT_UNUSABLE
    assert "a run continues from its own checkpoint" in " ".join(capsys.readouterr().err.split())


MISFITS = {
    "vocabulary": ({"vocab_size": 261}, "a vocabulary of 261"),
    "hidden size": ({"hidden_size": 128}, "a hidden size of 128"),
    "RoPE": ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "RoPE has rope_theta 1000000.0"),
    "scaled RoPE": ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "RoPE has factor 2.0"),
    "layer ids": ({"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [1, 3, 7], "block_size": 4}}, "reads layer 7"),
    "end token": ({"dflash_config": {"mask_token_id": 257, "target_layer_ids": [1, 3, 5], "block_size": 4}}, "also the eos token"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_drafter_of_another_target_is_refused(
    data: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    changes, sentence = MISFITS[case]
    raw = {**SHAPE.to_dict(), **changes}
    drafter = tiny_drafter().__class__(SHAPE.__class__.from_dict(raw))
    start = make_run(tmp_path / "made", drafter=drafter)
    assert main(["train", *bare(data, runs), "--from", str(start)]) == EXIT_UNUSABLE
    assert sentence in capsys.readouterr().err
    assert not runs.exists()


# Its sums.


def test_weights_of_another_number_are_refused_by_name(tmp_path: Path) -> None:
    start = export(
        ExportConfig(target="tiny", dry_run=True, output=str(tmp_path / "d"), drafter=DrafterConfig(block_size=4, layers=1))
    )
    held = load_file(start / "model.safetensors")
    del held["layers.0.mlp.up_proj.weight"]
    save_file({**held, "lm_head.weight": torch.zeros(260, 64)}, start / "model.safetensors")
    with pytest.raises(ConfigError, match=r"layers.0.mlp.up_proj.weight is missing; lm_head.weight is unknown"):
        read_warm_start(str(start), "runs")


def test_what_was_left_at_its_default_follows_the_drafter() -> None:
    shape = take_shape(DrafterConfig(anchors=9), SHAPE)
    ids = tuple(SHAPE.dflash_config["target_layer_ids"])
    assert shape == DrafterConfig(block_size=4, layers=2, anchors=9, target_layers=3, target_layer_ids=ids, mask_token_id=MASK)
    assert take_shape(shape, SHAPE) == shape, "saying the same is no contradiction"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"block_size": 8}, "drafter.block_size is 8, but the drafter that --from names has 4: leave --drafter.block-size out"),
        ({"layers": 3}, "drafter.layers is 3, but the drafter that --from names has 2: "),
        ({"target_layers": 4}, "drafter.target_layers is 4, but the drafter that --from names has 3: "),
        ({"target_layer_ids": (1, 2, 3)}, "drafter.target_layer_ids is 1 2 3, but the drafter that --from names has 1 3 5: "),
        ({"mask_token_id": 7}, f"drafter.mask_token_id is 7, but the drafter that --from names has {MASK}: "),
    ],
)
def test_a_flag_that_contradicts_the_drafter_is_refused_with_both_values(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        take_shape(DrafterConfig(**asked), SHAPE)
    assert str(refused.value).startswith(sentence)
    assert str(refused.value).endswith(", or train without --from")


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        ({}, "Starts from the drafter in a (step 3, made for tiny): 2 layers, blocks of 4 tokens."),
        ({"step": 12000, "target": None}, "Starts from the drafter in a (step 12,000): 2 layers, blocks of 4 tokens."),
        ({"step": None, "target": None}, "Starts from the drafter in a: 2 layers, blocks of 4 tokens."),
    ],
)
def test_the_shape_that_it_brings_is_told(tmp_path: Path, known: dict[str, Any], sentence: str) -> None:
    make_run(tmp_path)
    start = read_warm_start("a", str(tmp_path))
    assert replace(start, trained=replace(start.trained, **known)).sentence() == sentence


@pytest.mark.parametrize(
    ("own", "target", "warned"), [("tiny", "demo", True), ("Q/Qwen3-8B", "models/qwen3-8b/", False), (None, "x", False)]
)
def test_a_drafter_made_for_a_model_of_another_name_is_warned_of(
    tmp_path: Path, own: str | None, target: str, warned: bool
) -> None:
    start = read_warm_start(str(make_run(tmp_path)), "runs")
    start = replace(start, trained=replace(start.trained, target=own))
    told = [f"The drafter that --from names was trained for target {own!r}; this run continues its training for {target!r}."]
    assert list(start.warn_of_other_target(target)) == (told if warned else [])


def test_a_digest_tells_weights_apart_and_nothing_else(tmp_path: Path) -> None:
    drafter = tiny_drafter()
    one = weights_at(drafter, 3)
    assert digest(one) == digest(dict(reversed(one.items())))
    make_run(tmp_path, steps=(3, 4), drafter=drafter)
    facts = [read_warm_start(str(checkpoint_of(tmp_path / "a", step)), "runs").metadata() for step in (3, 4)]
    assert facts[0]["weights"] == digest(one) != facts[1]["weights"]
    assert digest({name: tensor.bfloat16() for name, tensor in one.items()}) != digest(one)


def test_a_checkpoint_too_old_to_tell_its_shape_leaves_it_to_the_config(tmp_path: Path) -> None:
    make_run(tmp_path, "new")
    make_run(tmp_path, "old", facts={"config": {}})
    shape = resumed_shape("new", str(tmp_path))
    assert shape is not None
    assert shape.to_dict() == SHAPE.to_dict()
    assert resumed_shape("old", str(tmp_path)) is None
