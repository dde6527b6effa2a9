"""trainer/run/checkpointing.py: checkpoints when they are due and only then; one that fails is told and ends nothing."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Qwen3Config

from tests.support.small import drafter_config
from trainer.config import CheckpointConfig, TrainConfig
from trainer.drafter.checkpoint import START, Checkpoint, checkpoint_folder, list_checkpoints, read_checkpoint
from trainer.run import checkpointing
from trainer.run.checkpointing import Checkpointer, UnsavedError
from trainer.run.folder import Run


class FakeLearner:
    def __init__(self) -> None:
        self.train_state = START
        self.restored: Checkpoint | None = None

    def at(self, step: int) -> None:
        self.train_state = dataclasses.replace(START, step=step, next_seq=2 * step)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
        return {"w": torch.full((2,), float(self.train_state.step))}, {"steps": self.train_state.step}

    def restore(self, checkpoint: Checkpoint) -> None:
        self.restored, self.train_state = checkpoint, checkpoint.train_state


class FakeListener:
    def __init__(self) -> None:
        self.written: list[tuple[int, str, int]] = []
        self.failures: list[str] = []

    def checkpointed(self, step: int, path: str, size: int, seconds: float) -> None:
        assert 0 <= seconds < 60
        self.written.append((step, path, size))

    def checkpoint_failed(self, message: str) -> None:
        self.failures.append(message)


class Kept:
    """A checkpointer, with the fakes around it."""

    def __init__(self, folder: Path, checkpoint: Path | None = None, **config: int) -> None:
        self.learner, self.listener = FakeLearner(), FakeListener()
        self.run = Run(
            folder=folder, metadata={"id": "made", "git_commit": "c0ffee", "from": {"name": "older"}}, checkpoint=checkpoint
        )
        settings = TrainConfig(target="tiny", data="demo", checkpoint=CheckpointConfig(**config))
        plan: Any = SimpleNamespace(config=settings, identity=lambda: {"seed": 0}, drafter=drafter_config())
        self.checkpointer = Checkpointer(self.run, plan, self.learner, self.listener)  # type: ignore[arg-type]

    def steps(self, *steps: int) -> None:
        for step in steps:
            self.learner.at(step)
            self.checkpointer.save_if_due()

    @property
    def written(self) -> list[int]:
        return [step for step, _, _ in self.listener.written]


def break_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpointing, "write_checkpoint", full)


def test_a_checkpoint_is_due_every_so_many_steps(tmp_path: Path) -> None:
    kept = Kept(tmp_path, every=3, keep=9)
    kept.steps(*range(1, 8))
    assert kept.written == [3, 6]
    kept.checkpointer.save_last()
    assert kept.written == [3, 6, 7]
    assert [path.name for path in list_checkpoints(kept.run.checkpoints)] == [f"step-{step:09d}" for step in (3, 6, 7)]


def test_zero_writes_only_the_last(tmp_path: Path) -> None:
    kept = Kept(tmp_path, every=0)
    kept.steps(1, 2, 3)
    assert kept.written == []
    kept.checkpointer.save_last()
    assert kept.written == [3]


def test_a_step_is_not_written_twice(tmp_path: Path) -> None:
    kept = Kept(tmp_path, every=3)
    kept.steps(3, 3)
    kept.checkpointer.save()
    kept.checkpointer.save_last()
    assert kept.written == [3]


def test_a_run_without_a_step_has_nothing_to_keep(tmp_path: Path) -> None:
    kept = Kept(tmp_path, every=3)
    kept.checkpointer.restore()
    kept.checkpointer.save_last()
    assert (kept.written, kept.learner.restored) == ([], None)
    assert not kept.run.checkpoints.exists()


def test_a_checkpoint_holds_the_learner_and_what_it_fits_and_is_told_of(tmp_path: Path) -> None:
    kept = Kept(tmp_path, every=2, keep=1)
    kept.steps(2, 4)
    path = checkpoint_folder(kept.run.checkpoints, 4)
    assert list_checkpoints(kept.run.checkpoints) == [path], "keep is the config's"
    checkpoint = read_checkpoint(path)
    assert checkpoint.weights["w"].tolist() == [4, 4]
    assert (checkpoint.optimizer, checkpoint.train_state) == ({"steps": 4}, kept.learner.train_state)
    assert checkpoint.metadata["identity"] == {"seed": 0}
    assert checkpoint.metadata["config"]["checkpoint"] == {"every": 2, "keep": 1}
    assert Qwen3Config.from_dict(checkpoint.metadata["drafter"]).to_dict() == drafter_config().to_dict()
    assert (checkpoint.metadata["run"]["id"], checkpoint.metadata["run"]["git_commit"]) == ("made", "c0ffee")
    assert checkpoint.metadata["run"]["from"] == {"name": "older"}
    size = sum(file.stat().st_size for file in path.iterdir())
    assert kept.listener.written[-1] == (4, str(path), size)


def test_a_restored_step_is_a_written_one(tmp_path: Path) -> None:
    Kept(tmp_path, every=2).steps(4)
    path = checkpoint_folder(tmp_path / "checkpoints", 4)
    resumed = Kept(tmp_path, checkpoint=path, every=2)
    resumed.checkpointer.restore()
    assert resumed.learner.restored is not None
    assert resumed.learner.restored.path == path
    resumed.checkpointer.save_last()
    assert resumed.written == []
    resumed.steps(5, 6)
    assert resumed.written == [6]


def test_one_that_fails_is_told_and_the_next_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(tmp_path, every=1)
    with monkeypatch.context() as broken:
        break_disk(broken)
        kept.steps(1200)
    told = "The checkpoint of step 1,200 could not be written: [Errno 28] No space left on device."
    assert (kept.listener.failures, kept.written) == ([told], [])
    kept.checkpointer.save_last()
    assert kept.written == [1200], "the same step is tried again, since it has none"


def test_a_last_step_that_cannot_be_saved_fails_the_run_and_names_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path, every=1000)
    kept.steps(1000)
    break_disk(monkeypatch)
    kept.learner.at(1234)
    with pytest.raises(UnsavedError) as unsaved:
        kept.checkpointer.save_last()
    assert str(unsaved.value) == (
        "the checkpoint of the last step, 1,234, could not be written (No space left on device), "
        "and the newest one, to --resume from, is of step 1,000; make room first"
    )
    assert len(kept.listener.failures) == 1


def test_and_says_so_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(tmp_path, every=0)
    break_disk(monkeypatch)
    kept.learner.at(7)
    with pytest.raises(UnsavedError, match=r"the last step, 7, could not be written \(.*\), and there is none; make room first$"):
        kept.checkpointer.save_last()
