"""Warm start: a run that starts from the drafter that `--from` names instead of random weights, with that drafter's shape.

Only weights and shape are taken over; optimizer, schedule, steps and data begin anew. A resumed run does not read that drafter
again: its own checkpoint holds both.
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
    """The drafter that `--from` calls `name`, loaded and checked."""

    name: str
    trained: TrainedDrafter

    def metadata(self) -> dict[str, Any]:
        """What `run.json` says about it. Hashes all weights, which takes about a second per GB."""
        return {
            "name": self.name,
            "path": str(self.trained.path),
            "step": self.trained.step,
            "target": self.trained.target,
            "weights": digest(self.trained.drafter.state_dict()),
        }

    def sentence(self) -> str:
        """What the run starts from and the shape that it therefore has, whatever the flags' default values are."""
        config, details = self.trained.config, []
        if self.trained.step is not None:
            details.append(f"step {self.trained.step:,}")
        if self.trained.target:
            details.append(f"made for {self.trained.target}")
        layers = f"{config.num_hidden_layers} layer{'s' if config.num_hidden_layers > 1 else ''}"
        origin = f" ({', '.join(details)})" if details else ""
        return f"Starts from the drafter in {self.name}{origin}: {layers}, blocks of {config.block_size} tokens."

    def warn_of_other_target(self, target: str) -> Iterator[str]:
        """A warning where the drafter was trained for another model."""
        own = self.trained.target
        if own and not same_target(own, target):
            yield f"The drafter that --from names was trained for target {own!r}; this run continues its training for {target!r}."


def read_warm_start(name: str, runs: str) -> WarmStart:
    """The drafter called `name`: an exported folder, a run or a checkpoint. Raises `ConfigError`."""
    return WarmStart(name=name, trained=load_trained(name, runs))


def resumed_shape(name: str, runs: str) -> Qwen3Config | None:
    """The drafter's architecture in the checkpoints of run `name`; None where they are too old to hold it."""
    metadata = newest_metadata(find_run(name, Path(runs)) / "checkpoints") or {}
    return Qwen3Config.from_dict(metadata["drafter"]) if "drafter" in metadata else None


def take_shape(config: DrafterConfig, given: Qwen3Config) -> DrafterConfig:
    """`config` with the shape of the drafter that a run starts from.

    Options at their default take that drafter's value. Raises `ConfigError` for any other that contradicts it.
    """
    layer_ids = tuple(given.dflash_config["target_layer_ids"])
    shape = {
        "block_size": given.block_size,
        "layers": given.num_hidden_layers,
        "target_layer_ids": layer_ids,
        "target_layers": len(layer_ids),
        "mask_token_id": given.dflash_config["mask_token_id"],
    }
    defaults = DrafterConfig()
    for name, own in shape.items():
        requested = getattr(config, name)
        if requested not in (own, getattr(defaults, name)):
            way = f"leave --drafter.{name.replace('_', '-')} out, or train without --from"
            raise ConfigError(
                f"drafter.{name} is {_as_flag(requested)}, but the drafter that --from names has {_as_flag(own)}: {way}"
            )
    return replace(config, **shape)


def _as_flag(value: int | tuple[int, ...]) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def digest(weights: dict[str, torch.Tensor]) -> str:
    """A hash of tensors, their names and number formats: the same on every machine and for every file format."""
    total = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
