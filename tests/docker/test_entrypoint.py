"""docker/entrypoint.py: what a container begins or goes on with, whatever became of the one before it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from docker.entrypoint import arguments, has_checkpoint, is_finished, name_for, newest, next_name
from tests.support.sources import ROOT
from trainer import train
from trainer.cli import read_train_config
from trainer.config import RUN_ID


def leave(runs: Path, name: str, *events: dict[str, str], checkpoint: str = "") -> Path:
    folder = runs / name
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if checkpoint:
        (folder / "checkpoints" / checkpoint).mkdir(parents=True)
        (folder / "checkpoints" / checkpoint / "manifest.json").write_text("{}")
    return folder


def after(chosen: list[str] | str, flag: str) -> str | None:
    assert isinstance(chosen, list)
    return chosen[chosen.index(flag) + 1] if flag in chosen else None


def test_with_nothing_set_the_demo_begins(tmp_path: Path) -> None:
    chosen = arguments({"TARGET": "", "DATA": "", "NAME": "", "TRAIN_ARGS": ""}, tmp_path)
    assert chosen[:3] == ["train", "--config", "trainer/demo/config.toml"]
    assert (after(chosen, "--target"), after(chosen, "--data"), after(chosen, "--name")) == ("demo", "demo", "demo")
    assert after(chosen, "--resume") is None


def test_a_real_run_takes_the_mounted_data_and_the_targets_name(tmp_path: Path) -> None:
    chosen = arguments({"TARGET": "Qwen/Qwen3-8B", "DATA": "/somewhere/talks"}, tmp_path)
    assert (after(chosen, "--target"), after(chosen, "--data"), after(chosen, "--name")) == ("Qwen/Qwen3-8B", "/data", "Qwen3-8B")
    assert "--config" not in chosen


def test_the_words_are_a_config_that_the_trainer_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    chosen = arguments({"TARGET": "tiny", "TRAIN_ARGS": "--max-steps 7 --dataset.template-args enable_thinking 'false'"}, tmp_path)
    config = read_train_config(list(chosen[1:]))
    assert (config.target, config.data, config.name, config.max_steps) == ("tiny", "demo", "tiny", 7)
    assert (config.watch.host, config.watch.port, config.watch.allow_hosts) == ("0.0.0.0", 9400, ("trainer",))
    assert (config.watch.token_file, config.watch.linger_seconds) == ("/keys/token", 30)
    assert (config.runs, config.dataset.template_args) == (str(tmp_path), {"enable_thinking": "false"})


def test_a_run_with_a_whole_checkpoint_goes_on(tmp_path: Path) -> None:
    stopped = {"event": "finished", "message": "Stopped after step 11, as requested. Resume with: python"}
    leave(tmp_path, "demo", {"event": "started"}, stopped, checkpoint="step-000000011")
    chosen = arguments({}, tmp_path)
    assert (after(chosen, "--resume"), after(chosen, "--name")) == ("demo", None)


def test_a_run_that_was_killed_before_its_first_checkpoint_blocks_nothing_and_stays(tmp_path: Path) -> None:
    leave(tmp_path, "demo", {"event": "started"})
    assert after(arguments({}, tmp_path), "--name") == "demo-try2"
    leave(tmp_path, "demo-try2", {"event": "started"}, checkpoint="step-000000001.tmp.7")
    assert after(arguments({}, tmp_path), "--name") == "demo-try3", "half a checkpoint is none"
    leave(tmp_path, "demo-try3", {"event": "started"}, checkpoint="step-000000001")
    assert after(arguments({}, tmp_path), "--resume") == "demo-try3"
    assert (tmp_path / "demo" / "events.jsonl").exists()


def test_another_run_whose_name_only_looks_like_a_second_try_is_left_alone(tmp_path: Path) -> None:
    leave(tmp_path, "llama-3", {"event": "started"}, checkpoint="step-000000001")
    leave(tmp_path, "llama-3.2", {"event": "started"}, checkpoint="step-000000001")
    leave(tmp_path, "llama-4", {"event": "started"}, checkpoint="step-000000001")
    assert after(arguments({"NAME": "llama-3"}, tmp_path), "--resume") == "llama-3"


def test_a_run_that_has_reached_its_end_is_not_trained_again(tmp_path: Path) -> None:
    finished = {"event": "finished", "message": "Finished after step 1,000. The drafter is in /runs/demo."}
    folder = leave(tmp_path, "demo", {"event": "started"}, finished, checkpoint="step-000001000")
    assert arguments({}, tmp_path) == (
        "Run 'demo' has finished. Set NAME to start another; docs/operations.md says how to export or evaluate this one."
    )
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "resumed"}) + "\n")
    assert after(arguments({}, tmp_path), "--resume") == "demo", "a later attempt, by hand, has more to do"


def test_its_end_is_known_by_the_words_that_training_ends_with() -> None:
    run = SimpleNamespace(checkpoints=Path("/runs/demo/checkpoints"), folder=Path("/runs/demo"))
    learner = SimpleNamespace(train_state=SimpleNamespace(step=7))
    assert train.final_message(run, learner, interrupted=False).startswith("Finished ")
    assert not train.final_message(run, learner, interrupted=True).startswith("Finished ")


def test_a_failed_run_and_a_torn_record_are_no_end(tmp_path: Path) -> None:
    folder = leave(tmp_path, "demo", {"event": "started"}, {"event": "failed", "message": "Failed in stage target."})
    assert not is_finished(folder)
    (folder / "events.jsonl").write_bytes(b'{"event": "finished", "message": "Finished after step 9."}\n{"event": "chec')
    assert is_finished(folder)
    assert not is_finished(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("target", "name"),
    [("Qwen/Qwen3-8B", "Qwen3-8B"), ("/models/my target/", "my-target"), ("x" * 80, "x" * 56), ("/", "run"), (".hidden", "hidden")],
)
def test_a_name_is_made_of_the_target(target: str, name: str) -> None:
    assert name_for(target) == name
    assert RUN_ID.fullmatch(f"{name}-try99")


def test_tries_are_counted(tmp_path: Path) -> None:
    assert (next_name("a"), next_name("a-try2"), next_name("a-try19")) == ("a-try2", "a-try3", "a-try20")
    assert newest("a", tmp_path) == "a"
    assert not has_checkpoint(tmp_path / "a")


def test_words_of_ones_own_are_the_trainers() -> None:
    command = [sys.executable, "docker/entrypoint.py", "--help"]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("python -m trainer --help\n")
    assert "usage: python -m trainer COMMAND" in result.stdout
