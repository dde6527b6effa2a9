"""Runs for the `tiny` target, put together by hand: what training leaves behind, without training."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config

from tests.support.small import lively_drafter
from trainer.config import DrafterConfig, TrainConfig
from trainer.drafter.checkpoint import START, checkpoint_folder, write_checkpoint
from trainer.drafter.model import Drafter, choose_layer_ids, drafter_architecture
from trainer.target.tiny import MASK, tiny_config

KNOBS = DrafterConfig(block_size=4, layers=2, target_layers=3)


def tiny_architecture(knobs: DrafterConfig = KNOBS) -> Qwen3Config:
    return drafter_architecture(tiny_config(), knobs, choose_layer_ids(8, knobs), MASK)


def tiny_drafter() -> Drafter:
    return lively_drafter(tiny_architecture())


def facts_of(drafter: Drafter, name: str, precision: str = "float32") -> dict[str, Any]:
    """As `Checkpointer` puts them into a checkpoint."""
    config = TrainConfig(target="tiny", data="talks", drafter=KNOBS)
    return {
        "identity": {
            "target": "tiny",
            "data": "f1a9",
            "layer_ids": drafter.config.dflash_config["target_layer_ids"],
            "mask_token_id": drafter.mask_token_id,
            "template_args": {"enable_thinking": "false"},
            "precision": precision,
        },
        "config": json.loads(json.dumps(dataclasses.asdict(config))),
        "drafter": drafter.config.to_dict(),
        "run": {
            "id": name,
            "command": ["python", "-m", "trainer", "train", "--data", "my talks"],
            "git_commit": "c0ffee",
            "versions": {"torch": "2.13.0"},
            "data": {"path": "talks", "conversations": 42, "fingerprint": "f1a9"},
        },
    }


def make_run(
    runs: Path, name: str = "a", *, steps: Sequence[int] = (3,), drafter: Drafter | None = None, facts: dict[str, Any] | None = None
) -> Path:
    """A run's folder with a checkpoint for each of `steps`; `facts` replace those that a checkpoint has today."""
    drafter = drafter or tiny_drafter()
    run = runs / name
    run.mkdir(parents=True)
    facts = facts_of(drafter, name) if facts is None else facts
    told = facts_of(drafter, name)
    (run / "run.json").write_text(json.dumps({**told["run"], "config": told["config"]}))
    for step in steps:
        train_state = dataclasses.replace(START, step=step, next_seq=step)
        write_checkpoint(run / "checkpoints", train_state, weights_at(drafter, step), {}, facts, keep=9)
    return run


def checkpoint_of(run: Path, step: int) -> Path:
    return checkpoint_folder(run / "checkpoints", step)


def cut_off(file: Path) -> None:
    """As a copy that was broken off."""
    file.write_bytes(file.read_bytes()[:-200])


def weights_at(drafter: Drafter, step: int) -> dict[str, torch.Tensor]:
    """Those that the checkpoint of `step` holds; no two steps have the same."""
    return {name: tensor.detach() * (1 + step / 100) for name, tensor in drafter.state_dict().items()}
