"""trainer/formats/export.py: a folder that others load, checked from disk, or no folder at all."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import trainer.formats.export
from tests.support.made_runs import checkpoint_of, cut_off, facts_of, make_run, tiny_architecture, tiny_drafter, weights_at
from trainer.__main__ import main
from trainer.config import DrafterConfig
from trainer.drafter.model import Drafter
from trainer.errors import ConfigError
from trainer.formats import zlab
from trainer.formats.export import CARD, ExportConfig, UnequalError, check_written, export
from trainer.formats.load import PROVENANCE, load_trained
from trainer.target.tiny import tiny_config, tiny_model, tiny_tokenizer


def config(folder: Path, **knobs: Any) -> ExportConfig:
    """An export of run `a` under `folder`, to `out` beside it."""
    return ExportConfig(**{"checkpoint": "a", "runs": str(folder), "output": str(folder / "out"), **knobs})


def dry_run(folder: Path, **knobs: Any) -> ExportConfig:
    return ExportConfig(**{"dry_run": True, "target": "tiny", "output": str(folder / "out"), **knobs})


def refusal(asked: ExportConfig) -> str:
    with pytest.raises(ConfigError) as refused:
        export(asked)
    return str(refused.value)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path, steps=(3, 6))


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_run_becomes_a_folder_of_four_files(tmp_path: Path, run: Path) -> None:
    folder = export(config(tmp_path))
    assert left_in(folder) == sorted([CARD, zlab.CONFIG, zlab.WEIGHTS, PROVENANCE])
    weights = load_file(folder / zlab.WEIGHTS)
    wanted = weights_at(tiny_drafter(), 6)
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    with safe_open(folder / zlab.WEIGHTS, "pt") as file:
        assert file.metadata() == {"format": "pt"}, "transformers refuses a file without it"
    assert (folder / zlab.WEIGHTS).stat().st_mode & 0o777 == 0o644, "a server may be another user"
    assert left_in(tmp_path) == ["a", "out"]


def test_a_run_that_was_really_trained(tmp_path: Path) -> None:
    shape = "--drafter.block-size 4 --drafter.layers 1 --drafter.anchors 8 --dataset.max-length 128 --batches.token-budget 128"
    quiet = "--watch.port -1 --watch.console off --evaluate.every 0 --cpu-threads 1 --max-steps 2 --name real"
    assert main(["train", "--target", "tiny", "--data", "demo", "--runs", str(tmp_path), *shape.split(), *quiet.split()]) == 0
    trained = load_trained(str(export(config(tmp_path, checkpoint="real"))))
    stored = load_file(checkpoint_of(tmp_path / "real", 2) / "drafter.safetensors")
    assert all(torch.equal(tensor, stored[name]) for name, tensor in trained.drafter.state_dict().items())
    assert (trained.target, trained.step, trained.training.run, trained.training.data) == ("tiny", 2, "real", "demo")
    told = json.loads((tmp_path / "real" / "run.json").read_text())
    assert trained.training.data_fingerprint == told["data"]["fingerprint"]
    assert (trained.training.conversations, trained.training.git_commit) == (told["data"]["conversations"], told["git_commit"])
    assert "--max-steps 2 --name real" in str(trained.training.command)


def test_one_checkpoint_can_be_picked(tmp_path: Path, run: Path) -> None:
    trained = load_trained(str(export(config(tmp_path, checkpoint=str(checkpoint_of(run, 3))))))
    assert trained.step == 3


def test_an_exported_folder_is_exported_again_as_it_is(tmp_path: Path, run: Path) -> None:
    first = export(config(tmp_path))
    again = export(config(tmp_path, checkpoint=str(first), output=str(tmp_path / "again")))
    for name in (zlab.CONFIG, zlab.WEIGHTS, PROVENANCE):
        assert (first / name).read_bytes() == (again / name).read_bytes()


@pytest.mark.parametrize(
    ("precision", "asked", "written"),
    [
        ("float32", "auto", torch.float32),
        ("bfloat16", "auto", torch.bfloat16),
        ("bfloat16", "float32", torch.float32),
        ("float32", "bfloat16", torch.bfloat16),
    ],
)
def test_weights_are_in_what_training_held_or_in_what_is_asked_for(
    tmp_path: Path, precision: str, asked: str, written: torch.dtype
) -> None:
    make_run(tmp_path, facts=facts_of(tiny_drafter(), "a", precision))
    folder = export(config(tmp_path, dtype=asked))
    wanted = weights_at(tiny_drafter(), 3)
    assert all(torch.equal(tensor, wanted[name].to(written)) for name, tensor in load_file(folder / zlab.WEIGHTS).items())
    name = str(written).removeprefix("torch.")
    assert json.loads((folder / zlab.CONFIG).read_text())["dtype"] == name
    assert json.loads((folder / PROVENANCE).read_text())["dtype"] == name
    again = export(config(tmp_path, checkpoint=str(folder), output=str(tmp_path / "again")))
    assert load_file(again / zlab.WEIGHTS)["fc.weight"].dtype == (torch.bfloat16 if precision == "bfloat16" else written)


def test_the_card_says_where_the_drafter_comes_from_and_how_it_is_served(tmp_path: Path, run: Path) -> None:
    event = {"event": "evaluated", "step": 5, "measured_length": 2.504, "prompts": 16}
    (run / "events.jsonl").write_text(json.dumps(event) + "\n")
    card = (export(config(tmp_path)) / CARD).read_text()
    assert "| optimizer steps | 6 |" in card
    assert "2.50 tokens per round, including the bonus token; real decoding of 16 held-out prompts at step 5 |" in card
    assert "`python -m trainer train --data 'my talks'`" in card
    assert "| talks (42 conversations, fingerprint f1a9) |" in card
    assert "c0ffee" in card
    assert '`{"enable_thinking": "false"}`' in card
    assert "rounded" not in card, "it is exported in the precision in which it was measured"
    assert "spec_generate(target, ids.to(target.device), 256, list(ends))" in card
    assert "--speculative-algorithm DFLASH --speculative-draft-model-path FOLDER --speculative-num-draft-tokens 4" in card
    assert '{"method": "dflash", "model": "FOLDER", "num_speculative_tokens": 3}' in card
    assert 'DFlashDraftModel.from_pretrained("FOLDER"' in card
    assert "UNTRAINED" not in card


def test_an_output_that_exists_is_left_alone(tmp_path: Path, run: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    assert "exists already" in refusal(config(tmp_path))
    assert (tmp_path / "out" / "mine").read_text() == "precious"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "exists already" in refusal(config(tmp_path, output=str(tmp_path / "link")))


def test_an_output_that_cannot_be_made(tmp_path: Path, run: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refusal(config(tmp_path, output=str(tmp_path / "file" / "out")))


def test_a_truncated_checkpoint_makes_no_folder(tmp_path: Path, run: Path) -> None:
    for step in (3, 6):
        cut_off(checkpoint_of(run, step) / "drafter.safetensors")
    assert "has no whole checkpoint" in refusal(config(tmp_path))
    assert "is broken" in refusal(config(tmp_path, checkpoint=str(checkpoint_of(run, 3))))
    assert left_in(tmp_path) == ["a"]


def test_an_unknown_checkpoint_makes_no_folder(tmp_path: Path, run: Path) -> None:
    assert "'b' is no folder and no run in" in refusal(config(tmp_path, checkpoint="b"))
    assert left_in(tmp_path) == ["a"]


def test_a_target_that_it_does_not_fit_is_refused(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_base() -> Any:
        config = tiny_config()
        config.rope_parameters = {"rope_type": "default", "rope_theta": 1e6}
        return config

    monkeypatch.setattr("trainer.target.load.tiny_config", other_base)
    assert "rope_theta 10000.0, that of target 'tiny' has rope_theta 1000000.0" in refusal(config(tmp_path))
    assert left_in(tmp_path) == ["a"]


def test_another_name_for_the_target_is_warned_of(
    tmp_path: Path, run: Path, target_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = export(config(tmp_path, target=str(target_folder)))
    assert f"trained for target 'tiny' and is exported for '{target_folder}', which has the same shape" in caplog.text
    assert load_trained(str(folder)).target == str(target_folder)
    caplog.clear()
    export(config(tmp_path, output=str(tmp_path / "same")))
    assert caplog.text == ""


def test_a_copy_of_the_target_is_the_target(tmp_path: Path, target_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    facts = facts_of(tiny_drafter(), "a")
    facts["identity"]["target"] = str(target_folder)
    make_run(tmp_path, facts=facts)
    shutil.copytree(target_folder, tmp_path / "copy")
    export(config(tmp_path, target=str(tmp_path / "copy")))
    assert caplog.text == ""


def test_a_target_that_is_gone_can_be_named(tmp_path: Path) -> None:
    facts = facts_of(tiny_drafter(), "a")
    facts["identity"]["target"] = str(tmp_path / "gone")
    make_run(tmp_path, facts=facts)
    told = refusal(config(tmp_path))
    assert "gone" in told
    assert "say where with --target" in told
    assert "'nowhere/at all' is no folder and no hub id" in refusal(config(tmp_path, target="nowhere/at all"))
    assert export(config(tmp_path, target="tiny")).is_dir()


def test_a_folder_without_a_story_needs_the_target_named(tmp_path: Path, run: Path) -> None:
    folder = export(config(tmp_path))
    (folder / PROVENANCE).unlink()
    asked = {"checkpoint": str(folder), "output": str(tmp_path / "again")}
    assert "does not say which target it was trained for: name it with --target" in refusal(config(tmp_path, **asked))
    assert export(config(tmp_path, **asked, target="tiny")).is_dir()


def test_a_diverged_run_is_not_exported(tmp_path: Path) -> None:
    drafter = tiny_drafter()
    with torch.no_grad():
        drafter.norm.weight[3] = torch.nan
    make_run(tmp_path, drafter=drafter)
    assert "norm.weight of" in (told := refusal(config(tmp_path)))
    assert "holds NaN or infinity" in told
    assert left_in(tmp_path) == ["a"]


@pytest.mark.parametrize("damage", ["bit", "name", "config", "rope", "cut"])
def test_what_reads_back_differently_leaves_no_folder(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    write = trainer.formats.export._write

    def damaged(folder: Path, *parts: Any) -> None:
        write(folder, *parts)
        file, config_file = folder / zlab.WEIGHTS, folder / zlab.CONFIG
        weights, told = load_file(file), json.loads(config_file.read_text())
        if damage == "bit":
            weights["fc.weight"][0, 0] += 1e-3
        elif damage == "name":
            weights["model.fc.weight"] = weights.pop("fc.weight")
        elif damage == "config":
            told["dflash_config"]["mask_token_id"] = 7
        elif damage == "rope":
            told |= {"rope_theta": 5e4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e4}}
        save_file(weights, file)
        config_file.write_text(json.dumps(told))
        if damage == "cut":
            cut_off(file)

    monkeypatch.setattr(trainer.formats.export, "_write", damaged)
    with pytest.raises(UnequalError):
        export(config(tmp_path))
    assert left_in(tmp_path) == ["a"]
    assert main(["export", "--checkpoint", "a", "--runs", str(tmp_path), "--output", str(tmp_path / "out")]) == 1
    assert left_in(tmp_path) == ["a"]


def test_a_disk_that_is_full_leaves_no_folder(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trainer.formats.export, "save_file", full)
    assert "No space left on device" in refusal(config(tmp_path))
    assert left_in(tmp_path) == ["a"]


def test_the_check_looks_at_what_the_drafter_does(tmp_path: Path, run: Path) -> None:
    """A config may differ in what no tensor shows: the same weights then draft something else."""
    folder = export(config(tmp_path))
    drafter = Drafter(tiny_architecture())
    drafter.load_state_dict(load_file(folder / zlab.WEIGHTS))
    check_written(folder, drafter, "zlab")
    told = json.loads((folder / zlab.CONFIG).read_text())
    (folder / zlab.CONFIG).write_text(json.dumps({**told, "rms_norm_eps": 1e-2}))
    with pytest.raises(UnequalError, match="drafts something else"):
        check_written(folder, drafter, "zlab")


def test_a_dry_run_exports_what_training_would_begin_with(tmp_path: Path) -> None:
    knobs = DrafterConfig(block_size=8, layers=1, target_layers=2)
    state = torch.get_rng_state()
    folder = export(dry_run(tmp_path, drafter=knobs, seed=5))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    fresh = Drafter(tiny_architecture(knobs)).state_dict()
    torch.set_rng_state(state)
    trained = load_trained(str(folder))
    if trained.training.precision == "float32":
        assert all(torch.equal(fresh[name], tensor) for name, tensor in trained.drafter.state_dict().items())
    assert (trained.step, trained.target, trained.drafter.block_size) == (0, "tiny", 8)
    card = (folder / CARD).read_text()
    assert "| run |" not in card
    assert "| data |" not in card
    assert "| command |" not in card, "nobody gave one"
    assert card.index("**UNTRAINED.**") < card.index("| target |"), "said before anything else"


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"dry_run": True}, "--target must be given with --dry-run"),
        ({"dry_run": True, "target": "tiny", "checkpoint": "a"}, "--checkpoint must be left out with --dry-run"),
        ({}, "^there is nothing to export: give --checkpoint, or --dry-run with --target$"),
        (
            {"checkpoint": "a", "drafter": DrafterConfig(layers=2)},
            "^--drafter.layers 2 only goes with --dry-run: a trained drafter has its shape$",
        ),
        ({"checkpoint": "a", "output": ""}, "--output must be a folder to make"),
        ({"checkpoint": "a", "seed": -1}, "--seed must be from 0"),
    ],
)
def test_options_that_do_not_go_together(knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ExportConfig(**{"output": "out", **knobs})


def test_a_dry_run_checks_its_drafter(tmp_path: Path) -> None:
    assert "must not be a pad or end token" in refusal(dry_run(tmp_path, drafter=DrafterConfig(mask_token_id=258)))
    assert "target_layer_ids must lie between 0 and 6" in refusal(dry_run(tmp_path, drafter=DrafterConfig(target_layer_ids=(7,))))
    assert left_in(tmp_path) == []


def test_the_command(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "--checkpoint", "a", "--runs", str(tmp_path), "--output", str(tmp_path / "out")]
    assert main(words) == 0
    assert capsys.readouterr().out == f"The drafter is in {tmp_path / 'out'}; its README.md says how to serve it.\n"
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"export: output '{tmp_path / 'out'}' exists already")
    assert main(["export", "--dry-run", "--target", "tiny", "--output", os.fspath(tmp_path / "dry"), "--drafter.layers", "1"]) == 0
    assert capsys.readouterr().out.startswith("An UNTRAINED drafter is in")
    command = f"python -m trainer export --dry-run --target tiny --output {tmp_path / 'dry'} --drafter.layers 1"
    assert f"| command | `{command}` |" in (tmp_path / "dry" / CARD).read_text()
    assert load_trained(str(tmp_path / "dry")).training.command == command
