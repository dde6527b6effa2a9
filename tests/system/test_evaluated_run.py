"""Whole runs, in this process, that measure acceptance while they train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from safetensors.torch import load_file

from trainer.cli import read_train_config
from trainer.train import train

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("data") / "conversations"
    splits = {"train": range(12), "held_out": range(12, 15)}
    rows = {name: datasets.Dataset.from_list([conversation(number) for number in numbers]) for name, numbers in splits.items()}
    datasets.DatasetDict(rows).save_to_disk(folder)
    return str(folder)


def conversation(number: int) -> dict[str, Any]:
    answer = " ".join(WORDS[(number + place) % len(WORDS)] for place in range(4 + number % 3))
    return {"messages": [{"role": "user", "content": f"Say {number}."}, {"role": "assistant", "content": answer}]}


def run(data: str, runs: Path, *more: str) -> None:
    fixed = f"""--target tiny --data {data} --runs {runs} --dataset.max-length 128 --batches.token-budget 128 --drafter.block-size 4
        --drafter.layers 1 --drafter.anchors 8 --watch.port -1 --watch.console off --watch.sample-seconds 0.05 --cpu-threads 1
        --evaluate.max-new-tokens 6"""
    train(read_train_config([*fixed.split(), *more]), ["test"])


def events(runs: Path, name: str, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (runs / name / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


def weights(runs: Path, name: str) -> dict[str, Any]:
    folder = runs / name / "checkpoints"
    return load_file(folder / (folder / "latest").read_text().strip() / "drafter.safetensors")


def test_the_last_step_is_measured_whatever_every_says(data: str, tmp_path: Path) -> None:
    run(data, tmp_path, "--name", "a", "--max-steps", "3")
    (found,) = events(tmp_path, "a", "evaluated")
    assert (found["step"], found["prompts"]) == (3, 3)
    assert 1 <= found["measured_length"] <= 4
    assert 1 <= found["held_out_estimated_length"] <= 4
    assert len(found["acceptance_by_position"]) == 3


def test_measuring_changes_no_weight(data: str, tmp_path: Path) -> None:
    run(data, tmp_path, "--name", "measured", "--max-steps", "6", "--evaluate.every", "2")
    run(data, tmp_path, "--name", "not", "--max-steps", "6", "--evaluate.every", "0")
    assert [found["step"] for found in events(tmp_path, "measured", "evaluated")].count(6) == 1
    assert not [found for found in events(tmp_path, "measured", "warning") if "after step 6" in found["message"]], (
        "it was not left out"
    )
    assert events(tmp_path, "not", "evaluated") == []
    one, other = weights(tmp_path, "measured"), weights(tmp_path, "not")
    assert all((one[name] == other[name]).all() for name in one)


def test_distillation_is_measured_too(data: str, tmp_path: Path) -> None:
    """Its targets keep a column more than the drafter reads."""
    run(data, tmp_path, "--name", "a", "--max-steps", "2", "--loss.objective", "distillation")
    assert [found["step"] for found in events(tmp_path, "a", "evaluated")] == [2]
