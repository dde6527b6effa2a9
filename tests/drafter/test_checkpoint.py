"""trainer/drafter/checkpoint.py: whole or not at all, whatever happens while it is written; broken ones are refused by name."""

import contextlib
import errno
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from trainer.config import OptimizerConfig
from trainer.drafter import checkpoint
from trainer.drafter.checkpoint import (
    FILES,
    MANIFEST,
    BrokenCheckpointError,
    TrainState,
    folder_bytes,
    list_checkpoints,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from trainer.drafter.optimizer import Optimizer

FACTS = {"target": "tiny", "layer_ids": [0, 2]}


def train_state(step: int) -> TrainState:
    return TrainState(
        step=step, next_seq=2 * step, epoch=1, position=7, context_tokens=10 * step, draft_tokens=160 * step, samples=3 * step
    )


def write(root: Path, step: int, keep: int = 9, value: float | None = None) -> Path:
    weights = {"layer.weight": torch.full((3, 4), float(step if value is None else value)), "norm": torch.ones(4)}
    return write_checkpoint(root, train_state(step), weights, {"state": {0: {"step": torch.tensor(step)}}}, FACTS, keep)


def steps(root: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(root)]


def newest_step(root: Path) -> int:
    found, _ = newest_checkpoint(root)
    assert found is not None
    assert torch.equal(found.weights["layer.weight"], torch.full((3, 4), float(found.train_state.step))), "not of one piece"
    return found.train_state.step


def latest(root: Path) -> str:
    return (root / "latest").read_text().strip()


def leftovers(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if ".tmp." in path.name]


# Written and read.


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "made" / "here", 12)
    found = read_checkpoint(path)
    assert path.name == "step-000000012"
    assert (found.path, found.train_state, found.metadata) == (path, train_state(12), FACTS)
    assert torch.equal(found.weights["layer.weight"], torch.full((3, 4), 12.0))
    assert found.optimizer["state"][0]["step"] == 12
    assert latest(path.parent) == path.name
    assert leftovers(path.parent) == []
    assert {file.name for file in path.iterdir()} == FILES | {MANIFEST}
    assert folder_bytes(path) == sum(len(file.read_bytes()) for file in path.iterdir())


def test_weights_that_are_views_are_written(tmp_path: Path) -> None:
    table = torch.arange(12.0).reshape(3, 4)
    path = write_checkpoint(tmp_path, train_state(1), {"turned": table.T}, {}, {}, keep=1)
    assert torch.equal(read_checkpoint(path).weights["turned"], table.T)


def model_and_optimizer(seed: int) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))
    return model, Optimizer(model, OptimizerConfig(learning_rate=0.01))


def take_step(model: nn.Module, optimizer: Optimizer, number: int) -> None:
    inputs = torch.randn(6, 5, generator=torch.Generator().manual_seed(number))
    model(inputs).square().sum().backward()
    optimizer.step(number / 10, optimizer.average_gradients(torch.tensor(6.0)))


def test_the_step_after_a_resume_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer(seed=0)
    for number in range(1, 4):
        take_step(model, optimizer, number)
    found = read_checkpoint(write_checkpoint(tmp_path, train_state(3), model.state_dict(), optimizer.state_dict(), FACTS, keep=1))
    again, optimizer_again = model_and_optimizer(seed=1)
    again.load_state_dict(found.weights)
    optimizer_again.load_state_dict(found.optimizer)
    for number in range(4, 7):
        take_step(model, optimizer, number)
        take_step(again, optimizer_again, number)
        for one, other in zip(model.parameters(), again.parameters(), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("keep", [1, 2, 9])
def test_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    for step in (100, 200, 300, 400, 500):
        write(tmp_path, step, keep)
    assert steps(tmp_path) == [100, 200, 300, 400, 500][-keep:]
    assert latest(tmp_path) == "step-000000500"


def test_a_step_written_again_replaces_the_one_before(tmp_path: Path) -> None:
    write(tmp_path, 5, value=-1)
    write(tmp_path, 5)
    assert (newest_step(tmp_path), steps(tmp_path), leftovers(tmp_path)) == (5, [5], [])


def test_steps_that_a_resume_overtook_do_not_push_out_the_new_one(tmp_path: Path) -> None:
    write(tmp_path, 100)
    (write(tmp_path, 300) / "state.json").unlink()
    write(tmp_path, 200, keep=1)
    assert newest_step(tmp_path) == 200
    assert (steps(tmp_path), latest(tmp_path)) == ([200, 300], "step-000000200")


def test_where_there_is_none(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "nowhere") == newest_checkpoint(tmp_path) == (None, [])


# Broken ones.


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def flip(file: Path, position: int = -1, bit: int = 0) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1 << bit
    file.write_bytes(data)


@pytest.mark.parametrize("name", sorted(FILES | {MANIFEST}))
@pytest.mark.parametrize("harm", [Path.unlink, truncate, flip, lambda file: file.write_bytes(b"")])
def test_a_broken_one_is_refused_by_name_and_the_one_before_used(tmp_path: Path, harm: Callable[[Path], object], name: str) -> None:
    write(tmp_path, 1)
    broken = write(tmp_path, 2)
    harm(broken / name)
    with pytest.raises(BrokenCheckpointError, match=r"step-000000002 is broken: \w"):
        read_checkpoint(broken)
    found, refused = newest_checkpoint(tmp_path)
    assert found is not None
    assert found.train_state.step == 1
    assert len(refused) == 1
    assert str(broken) in refused[0]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(FILES | {MANIFEST})), position=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_no_flipped_bit_goes_unnoticed(tmp_path: Path, name: str, position: int, bit: int) -> None:
    file = (tmp_path / "step-000000001" if (tmp_path / "latest").exists() else write(tmp_path, 1)) / name
    whole = file.read_bytes()
    try:
        flip(file, position % len(whole), bit)
        with pytest.raises(BrokenCheckpointError):
            read_checkpoint(file.parent)
    finally:
        file.write_bytes(whole)
    read_checkpoint(file.parent)


@pytest.mark.parametrize("manifest", ["{}", "[]", "null", "3", '{"state.json": 5}', '{"drafter.safetensors": {}}'])
def test_a_manifest_that_says_too_little_is_refused(tmp_path: Path, manifest: str) -> None:
    path = write(tmp_path, 1)
    (path / MANIFEST).write_text(manifest)
    with pytest.raises(BrokenCheckpointError):
        read_checkpoint(path)


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    path = write(tmp_path, 1)
    monkeypatch.undo()
    with pytest.raises(BrokenCheckpointError, match="format is 99"):
        read_checkpoint(path)


def test_all_broken(tmp_path: Path) -> None:
    for step in (1, 2):
        truncate(write(tmp_path, step) / "optimizer.pt")
    found, refused = newest_checkpoint(tmp_path)
    assert found is None
    assert [sentence.count("optimizer.pt") for sentence in refused] == [1, 1]


# Writing goes wrong.

OPERATIONS: list[tuple[Any, str]] = [
    (os, "fsync"),
    (Path, "mkdir"),
    (Path, "open"),
    (Path, "write_text"),
    (Path, "rename"),
    (Path, "replace"),
    (checkpoint, "save_file"),
    (torch, "save"),
]


class FaultyDisk:
    """Counts file operations; from the `first` on, `count` of them fail, half-done where they write."""

    def __init__(self, first: int, count: int) -> None:
        self.done, self.failing = 0, range(first, first + count)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for owner, name in OPERATIONS:
            patch.setattr(owner, name, self.wrap(getattr(owner, name)))

    def wrap(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            self.done += 1
            if self.done in self.failing:
                raise OSError(errno.ENOSPC, "No space left on device")
            return operation(*args, **options)

        return wrapped


@pytest.mark.parametrize("count", [1, 10**6], ids=["once", "from then on"])
@pytest.mark.parametrize("step", [3, 2], ids=["new step", "same step again"])
def test_whatever_fails_nothing_half_made_remains(tmp_path: Path, step: int, count: int) -> None:
    for before in (1, 2):
        write(tmp_path / "before", before)
    for number in itertools.count(1):
        root = shutil.copytree(tmp_path / "before", tmp_path / str(number))
        disk = FaultyDisk(number, count)
        with pytest.MonkeyPatch.context() as patch:
            disk.install(patch)
            try:
                write(root, step)
            except OSError:
                assert disk.done >= number
            else:
                break
        if count == 1 or step == 3:
            assert leftovers(root) == []
            assert newest_step(root) in (2, step)
        assert newest_step(root) >= 1
        assert (root / latest(root)).is_dir() or (step, count) == (2, 10**6)
    assert number > 15, "operations were not counted"
    assert (newest_step(root), steps(root)) == (step, sorted({1, 2, step}))


# A process that has imported torch and forks for the ones that are to die: starting from nothing takes seconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])


def write_to_a_full_disk(root: Path, told: Connection) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    big, small = torch.zeros(100_000), torch.zeros(1)
    for weights, optimizer in ((big, small), (small, big)):
        try:
            write_checkpoint(root, train_state(1), {"w": weights}, {"m": optimizer}, FACTS, keep=1)
        except OSError as error:
            told.send(str(error))


def test_a_file_that_cannot_be_written_in_full_is_an_os_error_too(tmp_path: Path) -> None:
    hears, tells = FORKS.Pipe(duplex=False)
    writer = FORKS.Process(target=write_to_a_full_disk, args=(tmp_path, tells))
    writer.start()
    for _ in range(2):
        assert hears.poll(60)
        assert "the tensors cannot be written to" in hears.recv()
    writer.join()
    assert list(tmp_path.iterdir()) == []


def write_for_ever(root: Path, told: Connection) -> None:
    weights = {"layer.weight": torch.empty(3, 4), "ballast": torch.zeros(300_000)}
    step = newest_step(root) if list_checkpoints(root) else 0
    while True:
        step += 1
        weights["layer.weight"].fill_(step)
        write_checkpoint(root, train_state(step), weights, {"m": torch.zeros(300_000)}, FACTS, keep=2)
        told.send(step)


def test_a_writer_killed_at_any_moment_leaves_a_whole_one(tmp_path: Path) -> None:
    chance, left = random.Random(0), 0
    for _ in range(8):
        hears, tells = FORKS.Pipe(duplex=False)
        writer = FORKS.Process(target=write_for_ever, args=(tmp_path, tells))
        writer.start()
        step = hears.recv()
        time.sleep(chance.uniform(0, 0.06))
        writer.kill()
        writer.join()
        tells.close()
        with contextlib.suppress(EOFError):
            while True:
                step = hears.recv()
        assert newest_step(tmp_path) >= step
        assert read_checkpoint(tmp_path / latest(tmp_path)).train_state.step >= step
        left += len(leftovers(tmp_path))
    assert left, "no writer was killed while it wrote: kill more of them"
    write(tmp_path, 10**6)
    assert leftovers(tmp_path) == []


def test_only_what_dead_writers_left_is_swept_away(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (f"step-000000001.tmp.{dead.pid}", f"step-000000002.tmp.{os.getpid()}", f"step-000000003.tmp.{os.getppid()}"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "optimizer.pt").write_text("half")
    (tmp_path / f"latest.tmp.{dead.pid}").write_text("step-")
    (tmp_path / "notes.tmp.old").mkdir()
    assert steps(tmp_path) == []
    write(tmp_path, 4)
    assert sorted(leftovers(tmp_path)) == ["notes.tmp.old", f"step-000000003.tmp.{os.getppid()}"]
    assert steps(tmp_path) == [4]
