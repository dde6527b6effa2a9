"""The speculators format of a drafter, as `speculators` 0.9.0 writes and vLLM reads it.

The same tensors under the same names as z-lab's, and a config that also names the target. Its layer ids count from the embedding's
output and so are larger by one. The target's embedding and head are not stored: for a whole vocabulary 0.9.0 leaves them out too
and takes them from the target when it loads; vLLM shares the target's own.
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

# Of z-lab's keys those that are not the transformer's; here they have places of their own.
_NOT_OF_THE_LAYERS = {"architectures", "auto_map", "block_size", "dflash_config", "num_target_layers"}


def config_json(drafter: Qwen3Config, target: Target, dtype: torch.dtype) -> dict[str, Any]:
    """What `config.json` holds. Raises `ConfigError` for a target that nobody else could load by its name."""
    if target.source == "tiny":
        way = "give --target a folder or a hub id, or export to z-lab's format"
        raise ConfigError(
            f"the speculators format names the target for others to load, and `tiny` is known to Draftscope alone: {way}"
        )
    whole = zlab.config_json(drafter, target.text_config, dtype)
    return {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_version": VERSION,
        "speculators_config": _proposals(drafter.block_size, target.description),
        "transformer_layer_config": {key: value for key, value in whole.items() if key not in _NOT_OF_THE_LAYERS},
        "draft_vocab_size": drafter.vocab_size,
        "block_size": drafter.block_size,
        "target_hidden_size": None,  # of the drafter's own width
        "aux_hidden_state_layer_ids": [id_ + 1 for id_ in drafter.dflash_config["target_layer_ids"]],
        "mask_token_id": drafter.dflash_config["mask_token_id"],
        "sliding_window_non_causal": False,
        "sample_from_anchor": False,
        "tie_word_embeddings": False,
        "dtype": whole["dtype"],
        "transformers_version": whole["transformers_version"],
    }


def _proposals(block_size: int, target: TargetDescription) -> dict[str, Any]:
    """How drafts are made and checked, and for which target."""
    place = Path(target.source)
    greedy = {"proposal_type": "greedy", "speculative_tokens": block_size - 1, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "algorithm": "dflash",
        "proposal_methods": [greedy],
        "default_proposal_method": "greedy",
        "verifier": {
            "name_or_path": str(place.resolve()) if place.is_dir() else target.source,
            "architectures": [target.architecture],
        },
    }


def read_architecture(folder: Path) -> Qwen3Config:
    """The drafter's config again, to check what was written; the number of target layers is not in this format."""
    raw = zlab.read_json(folder / zlab.CONFIG)
    own = {
        "mask_token_id": raw["mask_token_id"],
        "target_layer_ids": [id_ - 1 for id_ in raw["aux_hidden_state_layer_ids"]],
        "block_size": raw["block_size"],
    }
    return Qwen3Config.from_dict({**raw["transformer_layer_config"], "block_size": raw["block_size"], "dflash_config": own})
