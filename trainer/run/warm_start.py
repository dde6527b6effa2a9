"""What a run begins with, if not with random weights: the drafter that `--from` names, and the shape that it brings along.

A warm start takes weights and shape and nothing else: optimizer, schedule, steps and data begin anew. A resumed run reads neither
from where it once came: its own checkpoint holds both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config

from trainer.config import DrafterConfig
from trainer.drafter.checkpoint import newest_metadata
from trainer.errors import ConfigError
from trainer.formats.load import TrainedDrafter, load_trained
from trainer.run.lookup import find_run
from trainer.target.provenance import same_target


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """The drafter called `name`, read and found whole."""

    name: str
    trained: TrainedDrafter

    def facts(self) -> dict[str, Any]:
        """What `run.json` says of it. Reads all weights, about a second for each GB, to tell which ones they were."""
        return {
            "name": self.name,
            "path": str(self.trained.path),
            "step": self.trained.step,
            "target": self.trained.target,
            "weights": digest(self.trained.drafter.state_dict()),
        }

    def sentence(self) -> str:
        """What the run begins with and the shape that this gives it, also where flags of the usual values asked for another."""
        config, known = self.trained.config, []
        if self.trained.step is not None:
            known.append(f"step {self.trained.step:,}")
        if self.trained.target:
            known.append(f"made for {self.trained.target}")
        layers = f"{config.num_hidden_layers} layer{'s' if config.num_hidden_layers > 1 else ''}"
        origin = f" ({', '.join(known)})" if known else ""
        return f"Begins with the drafter in {self.name}{origin}: {layers}, blocks of {config.block_size}."

    def warn_of_other_target(self, target: str) -> Iterator[str]:
        """A warning where the drafter was trained for another model."""
        own = self.trained.target
        if own and not same_target(own, target):
            yield f"The drafter that --from names was trained for target {own!r}; this run trains it on for {target!r}."


def read_warm_start(name: str, runs: str) -> WarmStart:
    """The drafter called `name`: an exported folder, a run or a checkpoint. Raises `ConfigError`."""
    return WarmStart(name=name, trained=load_trained(name, runs))


def resumed_shape(name: str, runs: str) -> Qwen3Config | None:
    """The architecture of the drafter that run `name` trains, as its checkpoints hold it; None where they are too old for that."""
    facts = newest_metadata(find_run(name, Path(runs)) / "checkpoints") or {}
    return Qwen3Config.from_dict(facts["drafter"]) if "drafter" in facts else None


def take_shape(asked: DrafterConfig, given: Qwen3Config) -> DrafterConfig:
    """`asked` with the shape of the drafter that a run begins with.

    What was left at its default follows that drafter. Raises `ConfigError` for anything else that contradicts it.
    """
    layer_ids = tuple(given.dflash_config["target_layer_ids"])
    shape = {
        "block_size": given.block_size,
        "layers": given.num_hidden_layers,
        "target_layer_ids": layer_ids,
        "target_layers": len(layer_ids),
        "mask_token_id": given.dflash_config["mask_token_id"],
    }
    usual = DrafterConfig()
    for name, has in shape.items():
        wanted = getattr(asked, name)
        if wanted not in (has, getattr(usual, name)):
            way = f"leave --drafter.{name.replace('_', '-')} out, or train without --from"
            raise ConfigError(f"drafter.{name} is {_told(wanted)}, but the drafter that --from names has {_told(has)}: {way}")
    return replace(asked, **shape)


def _told(value: int | tuple[int, ...]) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def digest(weights: dict[str, torch.Tensor]) -> str:
    """A hash of tensors, their names and number formats, the same on every machine and whatever file they were in."""
    total = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
