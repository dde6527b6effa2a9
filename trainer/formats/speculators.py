"""Writes the speculators format of a drafter, as `speculators` 0.9.0 writes it and vLLM reads it.

Tensors and their names are z-lab's; the config also names the target. Its layer ids count from the embedding's output, so they are
larger by one. The target's embedding and head are not stored: `speculators` takes them from the target when it loads a drafter with
the whole vocabulary, and vLLM shares the target's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config

from trainer.errors import ConfigError
from trainer.formats import zlab
from trainer.target.load import Target, TargetDescription

VERSION = "0.9.0"

# Keys of z-lab's config that are not the transformer's: this format stores them elsewhere.
_NOT_TRANSFORMER_KEYS = {"architectures", "auto_map", "block_size", "dflash_config", "num_target_layers"}


def config_json(drafter: Qwen3Config, target: Target, dtype: torch.dtype) -> dict[str, Any]:
    """The content of `config.json`. Raises `ConfigError` for a target that other programs cannot load by its name."""
    if target.source == "tiny":
        way = "give --target a folder or a hub id, or export to z-lab's format"
        raise ConfigError(f"the speculators format names the target for others to load, and only Draftscope knows `tiny`: {way}")
    whole = zlab.config_json(drafter, target.text_config, dtype)
    return {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_version": VERSION,
        "speculators_config": _proposals(drafter.block_size, target.description),
        "transformer_layer_config": {key: value for key, value in whole.items() if key not in _NOT_TRANSFORMER_KEYS},
        "draft_vocab_size": drafter.vocab_size,
        "block_size": drafter.block_size,
        "target_hidden_size": None,  # the same as the drafter's
        "aux_hidden_state_layer_ids": [id_ + 1 for id_ in drafter.dflash_config["target_layer_ids"]],
        "mask_token_id": drafter.dflash_config["mask_token_id"],
        "sliding_window_non_causal": False,
        "sample_from_anchor": False,
        "tie_word_embeddings": False,
        "dtype": whole["dtype"],
        "transformers_version": whole["transformers_version"],
    }


def _proposals(block_size: int, target: TargetDescription) -> dict[str, Any]:
    """How drafts are made and verified, and for which target."""
    folder = Path(target.source)
    greedy = {"proposal_type": "greedy", "speculative_tokens": block_size - 1, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "algorithm": "dflash",
        "proposal_methods": [greedy],
        "default_proposal_method": "greedy",
        "verifier": {
            "name_or_path": str(folder.resolve()) if folder.is_dir() else target.source,
            "architectures": [target.architecture],
        },
    }


def read_architecture(folder: Path) -> Qwen3Config:
    """The drafter's config, read back to check what was written; this format does not hold the number of target layers."""
    raw = zlab.read_json(folder / zlab.CONFIG)
    own = {
        "mask_token_id": raw["mask_token_id"],
        "target_layer_ids": [id_ - 1 for id_ in raw["aux_hidden_state_layer_ids"]],
        "block_size": raw["block_size"],
    }
    return Qwen3Config.from_dict({**raw["transformer_layer_config"], "block_size": raw["block_size"], "dflash_config": own})
