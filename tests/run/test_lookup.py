"""trainer/run/lookup.py: a run is found by name, and what it says of itself is read or refused by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from trainer.drafter.checkpoint import START, write_checkpoint
from trainer.errors import ConfigError
from trainer.run.lookup import config_of, find_run, read_run_json


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def entry(runs: Path, name: str, **config: Any) -> Path:
    (runs / name).mkdir(parents=True)
    (runs / name / "run.json").write_bytes(orjson.dumps({"config": config}))
    return runs / name


def test_a_run_is_found_by_id_and_by_path(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = entry(runs, "one")
    assert find_run("one", runs) == folder
    assert find_run(str(folder), Path("elsewhere")) == folder
    monkeypatch.chdir(runs.parent)
    assert find_run("runs/one/", Path("elsewhere")) == Path("runs/one")


def test_a_run_named_by_a_dot_keeps_its_name(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(entry(runs, "one"))
    assert find_run(".", Path("runs")).name == "one"


def test_a_run_that_is_not_there_gets_the_newest_that_are(runs: Path) -> None:
    (runs / "no-run").mkdir(parents=True)
    with pytest.raises(ConfigError) as refused:
        find_run("no-run", runs)
    assert str(refused.value) == f"--resume names 'no-run', which is no run in {runs} (there are no runs there)"
    for number in range(7):
        entry(runs, f"run-{number}")
    with pytest.raises(ConfigError, match=r"\(runs there: run-6, run-5, run-4, run-3, run-2\)$"):
        find_run("no-run", runs)


@pytest.mark.parametrize("content", [b"{", None])
def test_a_run_json_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.json cannot be read: "):
        read_run_json(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"config": 3}'])
def test_facts_that_no_run_wrote(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ConfigError, match="is not what a run writes"):
        read_run_json(tmp_path)


def test_the_config_is_that_of_the_newest_checkpoint_else_of_the_first_attempt(runs: Path) -> None:
    folder = entry(runs, "one", seed=4)
    assert config_of(folder) == {"seed": 4}
    for step in (5, 9):
        train_state = replace(START, step=step)
        write_checkpoint(folder / "checkpoints", train_state, {"w": torch.zeros(2)}, {}, {"config": {"seed": step}}, keep=9)
    assert config_of(folder) == {"seed": 9}
    (folder / "checkpoints" / "latest").write_text("step-000000005\n")
    assert config_of(folder) == {"seed": 5}, "step 9 is of an attempt that a resume overtook"
