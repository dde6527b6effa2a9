"""Everything about a run that can be wrong, found before a weight is loaded or a folder made. Raises `ConfigError`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerFast, Qwen3Config

from trainer.config import TrainConfig
from trainer.data.chat_template import Chat, GuardedChat
from trainer.data.conversations import fingerprint, load_conversations
from trainer.data.held_out import HeldOut, load_held_out_set
from trainer.data.samples import check_learnable
from trainer.devices import Placement, name_of, place
from trainer.drafter.compatibility import check_fit
from trainer.drafter.model import Drafter, choose_layer_ids, drafter_architecture
from trainer.errors import ConfigError, require
from trainer.run.data_checks import (
    Survey,
    another_prompt,
    check_mask_unused,
    check_tokenizer,
    far_gamma,
    little_to_learn,
    missing_thoughts,
    other_answers,
    survey,
    unmeasured,
)
from trainer.run.warm_start import WarmStart, read_warm_start, resumed_shape, take_shape
from trainer.target.load import TargetDescription, describe, load_config, load_tokenizer, outline_target
from trainer.target.mask_token import choose_mask_token_id
from trainer.target.provenance import read_provenance

# What models do to their head's output before it is a distribution: the name in their configs, and the value that does nothing.
HEAD_CHANGES = {
    "final_logit_softcapping": None,  # Gemma
    "logits_soft_cap": None,  # RecurrentGemma
    "logit_scale": 1,  # Cohere
    "logits_scaling": 1,  # Granite
    "lm_head_multiplier": 1,  # Falcon-H1
    "output_multiplier": 1,  # Muse
}


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
    held_out: HeldOut | None
    """What acceptance is measured on, if it is."""
    warm_start: WarmStart | None = None
    """What the drafter begins with instead of random weights."""
    warnings: tuple[str, ...] = ()
    """What a person should know before anything else."""

    @property
    def keep_last(self) -> bool:
        """Whether the drafter learns from the target's last hidden state, so that it has to travel with the features."""
        return self.config.loss.objective == "distillation"

    @property
    def feature_width(self) -> int:
        """Numbers that are kept of each token: the tapped layers' outputs and, where it is wanted, the last hidden state."""
        return (len(self.layer_ids) + self.keep_last) * self.target.hidden_size

    @property
    def feature_slots(self) -> int:
        """Batches of features that the queue before the drafter may hold: as many as asked for, if they fit into its memory."""
        row = self.feature_width * self.placement.precision.itemsize
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
    """Look at devices, data and target, the cheap way: configs, tokenizer, some conversations, but no weights of the target."""
    placement = place(config)
    conversations = load_conversations(config.data)
    target = describe(config.target)
    tokenizer = load_tokenizer(config.target)
    architecture = load_config(config.target).get_text_config()
    check_tokenizer(tokenizer, architecture.vocab_size, target.name)
    outline = outline_target(config.target)
    if config.loss.objective == "distillation":
        _check_plain_head(architecture, config.target)
    warm_start = read_warm_start(config.warm_start, config.runs) if config.warm_start else None
    given = _given_shape(config, warm_start, architecture)
    if warm_start:
        config = replace(config, drafter=take_shape(config.drafter, warm_start.trained.config))
    layer_ids = choose_layer_ids(target.layers, config.drafter)
    mask_token_id = choose_mask_token_id(config.drafter.mask_token_id, architecture, tokenizer)
    drafter = given or drafter_architecture(architecture, config.drafter, layer_ids, mask_token_id)
    chat = _guarded_chat(config, target, tokenizer, mask_token_id)
    found = survey(conversations, chat)
    check_mask_unused(found, mask_token_id, tokenizer)
    check_learnable(conversations, chat)
    plan = Plan(
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
        held_out=load_held_out_set(config.evaluate, config.data, chat, target.max_positions),
        warm_start=warm_start,
    )
    return replace(plan, warnings=tuple(_warnings(plan, found, tokenizer)))


def _given_shape(config: TrainConfig, warm_start: WarmStart | None, architecture: Any) -> Qwen3Config | None:
    """The drafter's shape where it was decided before this attempt, found to fit the target; None for a drafter of this one's."""
    given = warm_start.trained.config if warm_start else resumed_shape(config.resume, config.runs) if config.resume else None
    if given is not None:
        check_fit(given, architecture, config.target)
    return given


def _guarded_chat(
    config: TrainConfig, target: TargetDescription, tokenizer: PreTrainedTokenizerFast, mask_token_id: int
) -> GuardedChat:
    fits = not target.max_positions or config.dataset.max_length <= target.max_positions
    require(fits, "dataset.max_length", f"at most the target's {target.max_positions} positions", config.dataset.max_length)
    return GuardedChat(
        tokenizer,
        max_length=config.dataset.max_length,
        template_args=config.dataset.template_values(),
        mask_token_id=mask_token_id,
        vocab_size=target.vocab_size,
    )


def _warnings(plan: Plan, found: Survey, tokenizer: PreTrainedTokenizerFast) -> Iterator[str]:
    """What may be meant, and often is not."""
    config, template_args, made = plan.config, plan.config.dataset.template_values(), read_provenance(plan.config.data)
    if plan.warm_start:
        yield from plan.warm_start.other_target(config.target)
    yield from little_to_learn(found)
    if made is None:
        yield from missing_thoughts(found, tokenizer, template_args)
    else:
        yield from other_answers(made, config.target, name_of(plan.placement.precision), template_args)
    yield from another_prompt(found)
    yield from far_gamma(config.loss, config.drafter.block_size)
    yield from unmeasured(config.evaluate.every, plan.held_out is not None, config.data)


def _check_plain_head(architecture: Any, name: str) -> None:
    """Distillation takes softmax(head @ last hidden state) for the target's distribution; refuse a target where it is another."""
    for key, nothing in HEAD_CHANGES.items():
        value = getattr(architecture, key, nothing)
        if value not in (nothing, None):
            raise ConfigError(
                f"loss.objective distillation cannot learn the distribution of target {name!r}, which changes its head's output "
                f"({key} {value:g}): choose cross_entropy or dpace"
            )


def _outline_drafter(config: Qwen3Config) -> Drafter:
    with torch.device("meta"):
        return Drafter(config)


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
