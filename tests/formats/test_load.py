"""trainer/formats/load.py: a drafter by name, from wherever it lies, whole or not at all."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.made_runs import checkpoint_of, cut_off, facts_of, make_run, tiny_drafter, weights_at
from tests.support.small import drafter_config, lively_drafter
from trainer.drafter.model import Drafter
from trainer.errors import ConfigError
from trainer.formats import zlab
from trainer.formats.export import ExportConfig, export
from trainer.formats.load import PROVENANCE, MeasuredAcceptance, TrainedDrafter, build_drafter, load_trained


def refusal(name: str, runs: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        load_trained(name, runs)
    return str(refused.value)


def holds_step(trained: TrainedDrafter, step: int) -> bool:
    weights = weights_at(tiny_drafter(), step)
    return all(torch.equal(weights[name], tensor) for name, tensor in trained.drafter.state_dict().items())


def test_a_run_by_its_id_or_its_folder_is_its_newest_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path, steps=(3, 6))
    for name, runs in (("a", tmp_path), (str(run), tmp_path / "elsewhere")):
        trained = load_trained(name, runs)
        assert (trained.step, trained.path) == (6, checkpoint_of(run, 6))
        assert holds_step(trained, 6)
        assert (trained.target, trained.drafter.block_size, trained.drafter.mask_token_id) == ("tiny", 4, 259)


def test_the_one_that_latest_names_comes_first(tmp_path: Path) -> None:
    run = make_run(tmp_path, steps=(3, 6))
    (run / "checkpoints" / "latest").write_text("step-000000003\n")
    assert load_trained("a", tmp_path).step == 3


def test_a_broken_one_is_passed_over_in_a_run_and_refused_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run(tmp_path, steps=(3, 6))
    cut_off(checkpoint_of(run, 6) / "drafter.safetensors")
    assert load_trained("a", tmp_path).step == 3
    assert "step-000000006 is broken: drafter.safetensors has" in caplog.text
    assert "step 3 is taken instead" in caplog.text
    assert "is broken" in refusal(str(checkpoint_of(run, 6)), tmp_path)
    cut_off(checkpoint_of(run, 3) / "drafter.safetensors")
    assert "run 'a' has no whole checkpoint (checkpoint " in refusal("a", tmp_path)


def test_a_checkpoint_stands_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, steps=(3, 6))
    alone = shutil.copytree(checkpoint_of(run, 3), tmp_path / "elsewhere" / "taken")
    shutil.rmtree(run)
    monkeypatch.setattr("trainer.formats.load.Target.find", lambda name: pytest.fail("its target is not needed"))
    trained = load_trained(str(alone), tmp_path)
    assert holds_step(trained, 3)
    training = trained.training
    assert (training.run, training.git_commit, training.data, training.data_fingerprint, training.conversations) == (
        "a",
        "c0ffee",
        "talks",
        "f1a9",
        42,
    )
    assert training.command == "python -m trainer train --data 'my talks'"
    assert (training.precision, training.template_args, training.versions) == (
        "float32",
        {"enable_thinking": "false"},
        {"torch": "2.13.0"},
    )


def test_the_optimizer_stays_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)
    monkeypatch.setattr("torch.load", lambda *_, **__: pytest.fail("nobody needs it"))
    for name in ("a", str(checkpoint_of(run, 3))):
        assert holds_step(load_trained(name, tmp_path), 3)


def test_a_warm_start_is_remembered_through_checkpoint_and_export(tmp_path: Path) -> None:
    facts = facts_of(tiny_drafter(), "a")
    facts["run"]["from"] = {"name": "older", "step": 7}
    make_run(tmp_path, facts=facts)
    assert load_trained("a", tmp_path).training.began_with == {"name": "older", "step": 7}
    folder = export(ExportConfig(checkpoint="a", runs=str(tmp_path), output=str(tmp_path / "out")))
    assert load_trained(str(folder)).training.began_with == {"name": "older", "step": 7}


def test_an_older_checkpoint_takes_its_shape_from_the_target_and_its_facts_from_the_run(tmp_path: Path) -> None:
    facts = facts_of(tiny_drafter(), "a")
    run = make_run(tmp_path, facts={"identity": facts["identity"], "config": facts["config"]})
    trained = load_trained("a", tmp_path)
    assert holds_step(trained, 3)
    new = load_trained("b", make_run(tmp_path, "b").parent)
    assert trained.config.to_dict() == new.config.to_dict()
    assert (trained.training.git_commit, trained.training.conversations) == ("c0ffee", 42)
    shutil.move(checkpoint_of(run, 3), tmp_path / "taken")
    assert load_trained(str(tmp_path / "taken"), tmp_path).training.git_commit is None


def test_an_older_checkpoint_whose_target_is_gone_is_refused(tmp_path: Path) -> None:
    facts = facts_of(tiny_drafter(), "a")
    facts["identity"]["target"] = str(tmp_path / "gone")
    make_run(tmp_path, facts={"identity": facts["identity"], "config": facts["config"]})
    told = refusal("a", tmp_path)
    assert "does not say how its drafter is built, and its target cannot be read (target " in told


def test_facts_that_nobody_wrote_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path, facts={})
    assert "does not say how its drafter is built" in refusal("a", tmp_path)


@pytest.mark.parametrize("kind", ["missing", "too many", "shape"])
def test_weights_are_compared_by_name_number_and_shape(tmp_path: Path, kind: str) -> None:
    drafter = tiny_drafter()
    weights = dict(drafter.state_dict())
    if kind == "missing":
        del weights["fc.weight"], weights["norm.weight"]
    elif kind == "too many":
        weights["layers.0.mlp_conv.base_kernel"] = torch.zeros(2)
    else:
        weights["layers.1.self_attn.k_proj.weight"] = torch.zeros(64, 64)
    with pytest.raises(ConfigError) as refused:
        build_drafter(drafter.config, weights, "here")
    assert (
        str(refused.value)
        == "the weights in here are not those of its config: "
        + {
            "missing": "fc.weight is missing; norm.weight is missing",
            "too many": "layers.0.mlp_conv.base_kernel is unknown",
            "shape": "layers.1.self_attn.k_proj.weight is [64, 64] instead of [32, 64]",
        }[kind]
    )


def test_weights_that_are_whole_numbers_are_refused() -> None:
    drafter = tiny_drafter()
    with pytest.raises(ConfigError, match=r"norm\.weight holds torch\.int8"):
        build_drafter(drafter.config, {**drafter.state_dict(), "norm.weight": torch.zeros(64, dtype=torch.int8)}, "here")


def test_a_loaded_drafter_drafts_as_the_one_that_was_saved() -> None:
    saved = lively_drafter(drafter_config())
    loaded = build_drafter(saved.config, saved.state_dict(), "here")
    assert not any(tensor.is_meta for tensor in (*loaded.parameters(), *loaded.buffers()))
    assert all(weight.requires_grad for weight in loaded.parameters()), "training may go on from it"

    def hidden(drafter: Drafter) -> torch.Tensor:
        dice = torch.Generator().manual_seed(3)
        features, draft = torch.randn(5, 192, generator=dice), torch.randn(8, 64, generator=dice)
        with torch.no_grad():
            return drafter(features, torch.arange(5), draft, torch.arange(5, 13), torch.ones(8, 13, dtype=torch.bool))

    assert torch.equal(hidden(saved), hidden(loaded))


def exported(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs")
    return export(ExportConfig(checkpoint="a", runs=str(tmp_path / "runs"), output=str(tmp_path / "out")))


def test_an_exported_folder_is_read_with_what_it_tells(tmp_path: Path) -> None:
    before = load_trained("a", exported(tmp_path).parent / "runs")
    after = load_trained(str(tmp_path / "out"), tmp_path)
    assert holds_step(after, 3)
    assert (after.target, after.step, after.training, after.path) == ("tiny", 3, before.training, tmp_path / "out")


def test_a_folder_of_somebody_else_has_no_story(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    (folder / PROVENANCE).unlink()
    trained = load_trained(str(folder), tmp_path)
    assert (trained.target, trained.step, trained.measured, trained.training.run) == (None, None, None, None)
    (folder / PROVENANCE).write_text('{"facts": {"colour": "red"}}')
    assert "provenance.json is not what export writes" in refusal(str(folder), tmp_path)


def test_a_truncated_export_is_refused(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    cut_off(folder / zlab.WEIGHTS)
    told = refusal(str(folder), tmp_path)
    assert "model.safetensors is there but cannot be read (" in told
    assert told.endswith("): the folder was not copied completely, so copy it or export it again")
    (folder / zlab.WEIGHTS).unlink()
    assert "model.safetensors is missing: the folder was not copied completely" in refusal(str(folder), tmp_path)


def test_a_tensor_too_many_in_an_export_is_refused(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    save_file({**load_file(folder / zlab.WEIGHTS), "lm_head.weight": torch.zeros(260, 64)}, folder / zlab.WEIGHTS)
    assert "lm_head.weight is unknown" in refusal(str(folder), tmp_path)


def test_what_is_no_drafter_is_told_with_what_is_there(tmp_path: Path) -> None:
    assert "no folder and no run in" in refusal("zzz", tmp_path)
    assert "(there are none there)" in refusal("zzz", tmp_path)
    make_run(tmp_path, "one")
    assert "(runs there: one)" in refusal("zzz", tmp_path)
    (tmp_path / "empty").mkdir()
    assert "a folder without run.json, manifest.json or config.json" in refusal(str(tmp_path / "empty"), tmp_path)


def test_the_newest_measurement_up_to_its_step_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path, steps=(3, 6))
    assert load_trained("a", tmp_path).measured is None
    events = [
        {"event": "evaluated", "step": 2, "measured_length": 1.5, "prompts": 16},
        {"event": "checkpoint", "step": 3, "message": "not an evaluated one"},
        {"event": "evaluated", "step": 5, "measured_length": 2.5, "prompts": 16},
        {"event": "evaluated", "step": 6, "measured_length": "NaN", "prompts": 16},
        {"event": "evaluated", "step": 7, "measured_length": 3.5, "prompts": 16},
    ]
    (run / "events.jsonl").write_text("\n".join(map(json.dumps, events)) + '\n{"event": "evaluated", "st')
    assert load_trained("a", tmp_path).measured == MeasuredAcceptance(step=5, measured_length=2.5, prompts=16)
    assert load_trained(str(checkpoint_of(run, 3)), tmp_path).measured == MeasuredAcceptance(
        step=2, measured_length=1.5, prompts=16
    )
