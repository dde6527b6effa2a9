"""Whether a drafter belongs to a target: two configs in, a sentence out for each thing that would spoil its drafts.

No loader checks all of this, and most of it fails in silence: a drafter with another RoPE base loads, runs and is never right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PretrainedConfig, Qwen3Config

from trainer.config import DrafterConfig
from trainer.drafter.model import drafter_architecture
from trainer.errors import ConfigError

# What a target says of its RoPE that a drafter, which turns whole heads and reads text alone, has no use for.
_NOT_OF_A_DRAFTER = {"partial_rotary_factor", "mrope_section", "mrope_interleaved"}


def check_fit(drafter: Qwen3Config, target: PretrainedConfig, name: str) -> None:
    """Raise `ConfigError` with the first reason why a drafter of this config cannot draft for the target called `name`.

    `target` is the target's own config; of one with several parts, that of its text is looked at.
    """
    for sentence in misfits(drafter, target, name):
        raise ConfigError(sentence)


def misfits(drafter: Qwen3Config, target: PretrainedConfig, name: str) -> Iterator[str]:
    """Each thing in which the drafter is not one for this target, as a sentence with both values and the way out."""
    text = target.get_text_config()
    way = "give the target that it was trained for, or train a drafter for this one"
    # What a new drafter for this target would be: so the rules stand in one place.
    wanted = drafter_architecture(text, DrafterConfig(), layer_ids=(0,), mask_id=0)
    for field, what in (
        ("hidden_size", "a hidden size"),
        ("vocab_size", "a vocabulary"),
        ("num_target_layers", "a number of target layers"),
    ):
        if getattr(drafter, field) != getattr(wanted, field):
            yield f"the drafter has {what} of {getattr(drafter, field)}, and target {name!r} of {getattr(wanted, field)}: {way}"
    if (own := _rope(drafter)) != (rope := _rope(wanted)):
        keys = sorted(key for key in own.keys() | rope.keys() if own.get(key) != rope.get(key))
        yield (
            f"the drafter's RoPE has {_told(own, keys)}, and that of target {name!r} has {_told(rope, keys)}, "
            f"with which no draft would ever be right: {way}"
        )
    yield from _misplaced_layers(drafter, text.num_hidden_layers, name)
    yield from _bad_mask(drafter.dflash_config["mask_token_id"], text, name)


def _misplaced_layers(drafter: Qwen3Config, layers: int, name: str) -> Iterator[str]:
    # The last layer's output is the normed state to some servers and the raw one to others.
    outside = [id_ for id_ in drafter.dflash_config["target_layer_ids"] if not 0 <= id_ <= layers - 2]
    if outside:
        ids = ", ".join(map(str, outside))
        yield (
            f"the drafter reads layer {ids}, and of target {name!r}, which has {layers}, "
            f"layers 0 to {layers - 2} can be read: train one that reads others"
        )


def _bad_mask(mask_id: int, target: PretrainedConfig, name: str) -> Iterator[str]:
    if not 0 <= mask_id < target.vocab_size:
        yield (
            f"the drafter's mask token is {mask_id}, and the vocabulary of target {name!r} ends at {target.vocab_size - 1}: "
            "train one with a --drafter.mask-token-id that lies in it"
        )
    for role in ("pad", "eos"):
        ids = getattr(target, f"{role}_token_id", None)
        if mask_id in (ids if isinstance(ids, list | tuple) else [ids]):
            yield (
                f"the drafter's mask token is {mask_id}, and so is the {role} token of target {name!r}, which texts do hold: "
                "train one that masks with an unused token"
            )


def _rope(config: PretrainedConfig) -> dict[str, Any]:
    return {key: value for key, value in config.rope_parameters.items() if key not in _NOT_OF_A_DRAFTER and value is not None}


def _told(rope: dict[str, Any], keys: list[str]) -> str:
    return ", ".join(f"{key} {rope[key]}" if key in rope else f"no {key}" for key in keys)
