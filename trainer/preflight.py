"""Everything about a run that can be wrong, found before a weight is loaded or a folder made. Raises `ConfigError`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from transformers import Qwen3Config

from trainer.chat import Chat
from trainer.config import TrainConfig, require
from trainer.conversations import fingerprint, load_conversations
from trainer.dataset import check_learnable
from trainer.devices import Placement, name_of, place
from trainer.drafter import Drafter, choose_layer_ids, drafter_architecture
from trainer.models import (
    TargetDescription,
    check_mask_token_id,
    describe,
    find_mask_token_id,
    load_config,
    load_tokenizer,
    outline_target,
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will be made of, all of it checked."""

    config: TrainConfig
    placement: Placement
    conversations: Dataset
    fingerprint: str
    chat: Chat
    target: TargetDescription
    layer_ids: tuple[int, ...]
    mask_token_id: int
    drafter: Qwen3Config
    target_parameters: int
    drafter_parameters: int

    @property
    def feature_slots(self) -> int:
        """Batches of features that the queue before the drafter may hold: as many as asked for, if they fit into its memory."""
        row = len(self.layer_ids) * self.target.hidden_size * self.placement.precision.itemsize
        fit = int(self.config.queues.gigabytes * 1e9) // (row * self.config.batches.token_budget)
        return max(1, min(self.config.queues.features, fit))

    def identity(self) -> dict[str, Any]:
        """What a checkpoint of this run fits: a run with another identity cannot go on from it."""
        drafter = self.config.drafter
        return {
            "target": self.target.name,
            "data": self.fingerprint,
            "seed": self.config.seed,
            "block_size": drafter.block_size,
            "layers": drafter.layers,
            "layer_ids": list(self.layer_ids),
            "mask_token_id": self.mask_token_id,
            "token_budget": self.config.batches.token_budget,
            "max_length": self.config.dataset.max_length,
            "template_args": dict(self.config.dataset.template_args),
            "precision": name_of(self.placement.precision),
            "accumulate": self.config.optimizer.accumulate,
        }


def check(config: TrainConfig) -> Plan:
    """Look at devices, data and target, the cheap way: configs, tokenizer and the first conversations, but no weights."""
    placement = place(config)
    conversations = load_conversations(config.data)
    target = describe(config.target)
    tokenizer = load_tokenizer(config.target)
    architecture = load_config(config.target).get_text_config()
    layer_ids = choose_layer_ids(target.layers, config.drafter)
    mask_token_id = config.drafter.mask_token_id
    if mask_token_id is None:
        mask_token_id = find_mask_token_id(architecture, tokenizer)
    check_mask_token_id(mask_token_id, architecture, tokenizer)
    outline = outline_target(config.target)
    drafter = drafter_architecture(architecture, config.drafter, layer_ids, mask_token_id)
    fits = not target.max_positions or config.dataset.max_length <= target.max_positions
    require(fits, "dataset.max_length", f"at most the target's {target.max_positions} positions", config.dataset.max_length)
    chat = Chat(tokenizer, max_length=config.dataset.max_length, template_args=config.dataset.template_values())
    check_learnable(conversations, chat)
    return Plan(
        config=config,
        placement=placement,
        conversations=conversations,
        fingerprint=fingerprint(conversations),
        chat=chat,
        target=target,
        layer_ids=layer_ids,
        mask_token_id=mask_token_id,
        drafter=drafter,
        target_parameters=_count(outline),
        drafter_parameters=_count(_outline_drafter(drafter)),
    )


def _outline_drafter(config: Qwen3Config) -> Drafter:
    with torch.device("meta"):
        return Drafter(config)


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
