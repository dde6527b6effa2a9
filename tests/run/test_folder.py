"""trainer/run/folder.py: a run's folder, who may train in it, what it says of itself, and where a resume goes on."""

import datetime
import errno
import fcntl
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import torch

from trainer.config import OptimizerConfig, TrainConfig
from trainer.drafter import checkpoint as checkpoint_module
from trainer.drafter.checkpoint import START, Checkpoint, write_checkpoint
from trainer.errors import ConfigError
from trainer.run.checkpointing import Checkpointer
from trainer.run.folder import alone_in, open_run, run_metadata
from trainer.run.lookup import read_run_json
from trainer.run.preflight import Plan, check

HOLD = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def plan() -> Plan:
    plan = check(TrainConfig(target="tiny", data="demo", target_devices=("cpu", "cpu"), drafter_device="cpu"))
    return replace(plan, warnings=())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def configured(plan: Plan, runs: Path, **changes: Any) -> Plan:
    return replace(plan, config=replace(plan.config, runs=str(runs), **changes))


def make(plan: Plan, runs: Path, name: str = "one", **changes: Any) -> Path:
    """A new run, as after an attempt that was over at once."""
    made = configured(plan, runs, name=name, **changes)
    with open_run(made.config, made, ["first"]) as run:
        return run.folder


def save(folder: Path, plan: Plan, step: int, **facts: Any) -> Path:
    known = {"identity": plan.identity(), "config": {"seed": plan.config.seed}, **facts}
    train_state = replace(START, step=step, next_seq=step, position=step, samples=step)
    return write_checkpoint(folder / "checkpoints", train_state, {"w": torch.zeros(2)}, {}, known, keep=9)


@contextmanager
def held_elsewhere(folder: Path) -> Iterator[None]:
    """Another process has the lock."""
    words = [sys.executable, "-S", "-c", HOLD, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        yield
        other.stdin.close()
        assert other.wait(10) == 0


def is_free(folder: Path) -> bool:
    """Whether another process can have the lock."""
    words = [sys.executable, "-S", "-c", HOLD, str(folder)]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False).returncode == 0


def test_another_process_keeps_us_out_until_it_ends(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path), pytest.raises(ConfigError) as refused, alone_in(tmp_path):
        pytest.fail("two processes are alone in one run")
    assert str(refused.value) == f"run {tmp_path.name!r} is being trained by another process: stop that one first"
    with alone_in(tmp_path) as warnings:
        assert warnings == []


def test_we_keep_another_process_out_until_we_leave_well_or_not(tmp_path: Path) -> None:
    with alone_in(tmp_path):
        assert not is_free(tmp_path)
    assert is_free(tmp_path)
    with pytest.raises(ZeroDivisionError), alone_in(tmp_path):
        raise ZeroDivisionError
    assert is_free(tmp_path)


def test_a_file_system_without_locks_only_gets_a_warning(plan: Plan, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    made = configured(plan, runs, name="one")
    with open_run(made.config, made, []) as run:
        (warning,) = run.warnings
    assert warning == f"{runs / 'one'} cannot be locked (No locks available): take care that no other process trains in it."


def test_a_new_run_begins_at_the_start_and_is_nobody_elses(plan: Plan, runs: Path) -> None:
    note = "A tiny random target stands in for it."
    made = configured(replace(plan, target=replace(plan.target, note=note), warnings=("Odd.",)), runs)
    with open_run(made.config, made, ["python", "train"]) as run:
        assert (run.attempt, run.start, run.checkpoint, run.warnings) == (0, START, None, (note, "Odd."))
        assert run.folder.parent == runs
        assert run.metadata["id"] == run.metadata["name"] == run.folder.name
        assert read_run_json(run.folder) == orjson.loads(orjson.dumps(run.metadata))
        assert not is_free(run.folder)
    with open_run(made.config, made, []) as other:
        assert other.folder != run.folder, "a name of its own, within the same second too"


def test_what_a_run_says_of_itself(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.run.folder.git_commit", lambda: "0f3c")
    metadata = run_metadata("one", datetime.datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC), ["train"], plan)
    assert (metadata["schema"], metadata["started_at"]) == (1, "2030-01-02T03:04:05+00:00")
    assert (metadata["command"], metadata["git_commit"], metadata["pid"], metadata["max_steps"]) == (
        ["train"],
        "0f3c",
        os.getpid(),
        None,
    )
    assert metadata["loss_unit"] == "nats per draft token"
    assert metadata["devices"] == [{"index": None, "name": "CPU", "kind": "cpu"}], "each device once"
    assert metadata["config"]["drafter"]["block_size"] == metadata["drafter"]["block_size"] == 16
    assert metadata["target"]["precision"] == "float32"
    assert (metadata["target"]["parameters"], metadata["drafter"]["parameters"]) == (
        plan.target_parameters,
        plan.drafter_parameters,
    )
    data = {"path": "demo", "conversations": len(plan.conversations), "fingerprint": plan.fingerprint, "held_out": 16}
    assert (metadata["data"], metadata["from"]) == (data, None)
    unmeasured = run_metadata("one", datetime.datetime.now(datetime.UTC), ["train"], replace(plan, held_out=None))
    assert unmeasured["data"]["held_out"] == 0
    assert orjson.loads(orjson.dumps(metadata))["target"]["layer_ids"] == list(plan.layer_ids)


def test_a_run_whose_facts_cannot_be_written_leaves_no_folder(plan: Plan, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("trainer.record.writer.os.fsync", full)
    with pytest.raises(ConfigError) as refused:
        make(plan, runs)
    assert (
        str(refused.value) == f"the run's folder {runs / 'one'} cannot be made: No space left on device; choose another with --runs"
    )
    assert list(runs.iterdir()) == []


def test_runs_below_a_file_are_refused(plan: Plan, runs: Path) -> None:
    runs.touch()
    with pytest.raises(ConfigError, match="one cannot be made: Not a directory; choose another with --runs"):
        make(plan, runs)


def test_a_resume_goes_on_from_the_newest_whole_checkpoint(plan: Plan, runs: Path) -> None:
    folder = make(plan, runs)
    save(folder, plan, 5)
    (save(folder, plan, 9) / "drafter.safetensors").unlink()
    (folder / "events.jsonl").write_text('{"attempt": 0}\n')
    # What is not part of the identity may change.
    now = configured(
        replace(plan, warnings=("Odd.",)), runs, resume="one", max_steps=50, optimizer=OptimizerConfig(learning_rate=1e-3)
    )
    with open_run(now.config, now, ["again"]) as run:
        assert (run.attempt, run.start.step, run.checkpoint) == (1, 5, folder / "checkpoints" / "step-000000005")
        warning, odd = run.warnings
        assert odd == "Odd."
        assert warning.endswith("drafter.safetensors is missing; this run continues from step 5 instead")
        assert (run.metadata["id"], run.metadata["command"], run.metadata["max_steps"]) == ("one", ["again"], 50)
        assert not is_free(folder)
    assert read_run_json(folder)["command"] == ["first"], "a run's identity is written once"


def test_a_resume_hashes_and_reads_each_file_of_its_checkpoint_once(
    plan: Plan, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(make(plan, runs), plan, 5)
    calls: Counter[str] = Counter()
    for function in ("_digest", "load_file", "_load_optimizer"):
        whole = getattr(checkpoint_module, function)

        def counted(file: Path, whole: Callable[[Path], Any] = whole, name: str = function) -> Any:
            calls[f"{name} {file.name}"] += 1
            return whole(file)

        monkeypatch.setattr(checkpoint_module, function, counted)
    now = configured(plan, runs, resume="one")
    restored: list[Checkpoint] = []
    learner: Any = SimpleNamespace(restore=restored.append, train_state=START)
    with open_run(now.config, now, []) as run:
        Checkpointer(run, now, learner, SimpleNamespace()).restore()  # type: ignore[arg-type]
    assert restored[0].weights["w"].tolist() == [0, 0]
    hashed = {f"_digest {name}" for name in checkpoint_module.FILES}
    assert calls == Counter({*hashed, "load_file drafter.safetensors", "_load_optimizer optimizer.pt"})


def test_a_run_without_a_checkpoint_cannot_be_resumed(plan: Plan, runs: Path) -> None:
    folder = make(plan, runs)
    now = configured(plan, runs, resume="one")
    with pytest.raises(ConfigError, match="'one' has no whole checkpoint to continue from; start it again under another --name"):
        open_run(now.config, now, []).__enter__()
    assert is_free(folder)


def test_a_target_that_was_recorded_as_it_was_written_is_the_same(plan: Plan, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As runs of 0.1 did, where a config file names it below `~`."""
    home = "/somewhere"
    monkeypatch.setenv("HOME", home)
    now = configured(plan, runs, resume="one")
    folder = make(plan, runs)
    monkeypatch.setattr(Plan, "identity", lambda _: {"target": f"{home}/model"})
    save(folder, plan, 5, identity={"target": "~/model"})
    with open_run(now.config, now, []) as run:
        assert run.start.step == 5
    save(folder, plan, 6, identity={"target": "~/another"})
    with pytest.raises(ConfigError, match="target is '/somewhere/model'"), open_run(now.config, now, []):
        pass


def test_a_resume_that_changes_the_run_is_refused_with_both_values(plan: Plan, runs: Path) -> None:
    save(make(plan, runs), replace(plan, layer_ids=(1, 2)), 5)
    now = configured(plan, runs, resume="one")
    ids = list(plan.layer_ids)
    with pytest.raises(ConfigError) as refused, open_run(now.config, now, []):
        pass
    assert str(refused.value) == f"layer_ids is {ids}, but run 'one' was trained with [1, 2]: a resumed run cannot change it"
