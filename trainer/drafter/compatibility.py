"""Compatibility of a drafter with a target, judged by their configs before any weights are loaded.

No loader checks all of this, and most of it fails silently: a drafter with another RoPE base loads, runs and is never right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PretrainedConfig, Qwen3Config

from trainer.config import DrafterConfig
from trainer.drafter.model import drafter_architecture
from trainer.errors import ConfigError

# Keys of a target's RoPE that do not concern a drafter, which rotates whole heads and reads text only.
_TARGET_ONLY = {"partial_rotary_factor", "mrope_section", "mrope_interleaved"}


def check_fit(drafter: Qwen3Config, target: PretrainedConfig, name: str) -> None:
    """Raise `ConfigError` with the first reason why a drafter of this config cannot draft for the target called `name`.

    `target` is the target's whole config; of a multimodal one the text part counts.
    """
    for sentence in mismatches(drafter, target, name):
        raise ConfigError(sentence)


def mismatches(drafter: Qwen3Config, target: PretrainedConfig, name: str) -> Iterator[str]:
    """Everything that keeps the drafter from drafting for this target, each as a sentence with both values and the way out."""
    text = target.get_text_config()
    way = "give the target that it was trained for, or train a drafter for this one"
    # The config that a new drafter for this target would get, so that the rules have one home.
    wanted = drafter_architecture(text, DrafterConfig(), layer_ids=(0,), mask_id=0)
    for field, what in (
        ("hidden_size", "a hidden size"),
        ("vocab_size", "a vocabulary"),
        ("num_target_layers", "a number of target layers"),
    ):
        if getattr(drafter, field) != getattr(wanted, field):
            yield f"the drafter has {what} of {getattr(drafter, field)}, target {name!r} one of {getattr(wanted, field)}: {way}"
    if (own := _rope(drafter)) != (rope := _rope(wanted)):
        keys = sorted(key for key in own.keys() | rope.keys() if own.get(key) != rope.get(key))
        yield (
            f"the drafter's RoPE has {_listed(own, keys)}, that of target {name!r} has {_listed(rope, keys)}, "
            f"and no draft would ever be right: {way}"
        )
    yield from _misplaced_layers(drafter, text.num_hidden_layers, name)
    yield from _bad_mask(drafter.dflash_config["mask_token_id"], text, name)


def _misplaced_layers(drafter: Qwen3Config, layers: int, name: str) -> Iterator[str]:
    # Servers disagree on the last layer's output: some read it after the final norm, others before.
    outside = [id_ for id_ in drafter.dflash_config["target_layer_ids"] if not 0 <= id_ <= layers - 2]
    if outside:
        ids = ", ".join(map(str, outside))
        yield (
            f"the drafter reads layer {ids}, but target {name!r} has {layers} layers, of which 0 to {layers - 2} can be read: "
            "train a drafter that reads other layers"
        )


def _bad_mask(mask_id: int, target: PretrainedConfig, name: str) -> Iterator[str]:
    if not 0 <= mask_id < target.vocab_size:
        yield (
            f"the drafter's mask token is {mask_id}, but the vocabulary of target {name!r} ends at {target.vocab_size - 1}: "
            "train a drafter with a --drafter.mask-token-id inside it"
        )
    for role in ("pad", "eos"):
        ids = getattr(target, f"{role}_token_id", None)
        if mask_id in (ids if isinstance(ids, list | tuple) else [ids]):
            yield (
                f"the drafter's mask token is {mask_id}, which is also the {role} token of target {name!r} and occurs in texts: "
                "train a drafter that masks with an unused token"
            )


def _rope(config: PretrainedConfig) -> dict[str, Any]:
    return {key: value for key, value in config.rope_parameters.items() if key not in _TARGET_ONLY and value is not None}


def _listed(rope: dict[str, Any], keys: list[str]) -> str:
    return ", ".join(f"{key} {rope[key]}" if key in rope else f"no {key}" for key in keys)
