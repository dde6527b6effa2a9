"""Preflight: checks everything that can be wrong with a run before a weight is loaded or a folder made. Raises `ConfigError`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from datasets import Dataset
from transformers import Qwen3Config

from trainer.config import TrainConfig
from trainer.data.chat_template import Chat
from trainer.data.conversations import fingerprint, load_conversations
from trainer.data.held_out import HeldOut, load_held_out_set
from trainer.devices import Placement, choose_placement, precision_name
from trainer.drafter.compatibility import check_fit
from trainer.drafter.model import Drafter, choose_layer_ids, drafter_architecture
from trainer.errors import ConfigError, require
from trainer.run.data_checks import (
    Survey,
    check_learnable,
    check_mask_unused,
    check_tokenizer,
    survey,
    warn_of_gamma,
    warn_of_little_to_learn,
    warn_of_missing_thoughts,
    warn_of_no_evaluation,
    warn_of_other_answers,
    warn_of_other_prompts,
)
from trainer.run.warm_start import WarmStart, read_warm_start, resumed_shape, take_shape
from trainer.target.load import Target
from trainer.target.mask_token import choose_mask_token_id
from trainer.target.provenance import read_provenance

# How models change their head's output before the softmax: the name in their configs, and the value that changes nothing.
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
    """Everything a run is made of, checked."""

    config: TrainConfig
    placement: Placement
    conversations: Dataset
    fingerprint: str
    chat: Chat
    target: Target
    layer_ids: tuple[int, ...]
    mask_token_id: int
    drafter: Qwen3Config
    target_parameters: int
    drafter_parameters: int
    held_out: HeldOut | None
    """What acceptance is measured on while training; None where it is not measured."""
    warm_start: WarmStart | None = None
    """The drafter that training starts from instead of random weights."""
    warnings: tuple[str, ...] = ()
    """Sentences for people, shown before the run begins."""

    @property
    def keep_last(self) -> bool:
        """Whether the drafter learns from the target's last hidden state, which then travels with the features."""
        return self.config.loss.objective == "distillation"

    @property
    def feature_width(self) -> int:
        """Numbers kept for each token: the tapped layers' outputs and, with `keep_last`, the last hidden state."""
        return (len(self.layer_ids) + self.keep_last) * self.target.description.hidden_size

    @property
    def feature_slots(self) -> int:
        """Batches of features that the queue before the drafter may hold: as many as configured, if they fit into its memory."""
        row = self.feature_width * self.placement.precision.itemsize
        fit = int(self.config.queues.gigabytes * 1e9) // (row * self.config.batches.token_budget)
        return max(1, min(self.config.queues.features, fit))

    def identity(self) -> dict[str, Any]:
        """What decides batches and weights: a checkpoint can only be resumed by a run with the same identity."""
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
            "precision": precision_name(self.placement.precision),
            "accumulate": self.config.optimizer.accumulate,
        }


def check(config: TrainConfig) -> Plan:
    """Check devices, data and target from configs, tokenizer and 128 conversations; no weights of the target are read."""
    placement = choose_placement(config)
    conversations = load_conversations(config.data)
    target = Target.find(config.target)
    description, architecture = target.description, target.text_config
    check_tokenizer(target.tokenizer, description.vocab_size, target.name)
    outline = target.outline()
    if config.loss.objective == "distillation":
        _check_plain_head(architecture, target.name)
    warm_start = read_warm_start(config.warm_start, config.runs) if config.warm_start else None
    given = _given_architecture(config, warm_start, target)
    if warm_start:
        config = replace(config, drafter=take_shape(config.drafter, warm_start.trained.config))
    layer_ids = choose_layer_ids(description.layers, config.drafter)
    mask_token_id = choose_mask_token_id(config.drafter.mask_token_id, architecture, target.tokenizer)
    drafter = given or drafter_architecture(architecture, config.drafter, layer_ids, mask_token_id)
    chat = _chat(config, target, mask_token_id)
    found = survey(conversations, chat)
    check_mask_unused(found, mask_token_id, target.tokenizer)
    check_learnable(conversations, chat, found)
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
        held_out=load_held_out_set(config.evaluate, config.data, chat, description.max_positions),
        warm_start=warm_start,
    )
    return replace(plan, warnings=tuple(_warnings(plan, found)))


def _given_architecture(config: TrainConfig, warm_start: WarmStart | None, target: Target) -> Qwen3Config | None:
    """The architecture that a warm start or a resumed run brings along, checked against the target; None for a new drafter."""
    given = warm_start.trained.config if warm_start else resumed_shape(config.resume, config.runs) if config.resume else None
    if given is not None:
        check_fit(given, target.text_config, target.name)
    return given


def _chat(config: TrainConfig, target: Target, mask_token_id: int) -> Chat:
    limit = target.description.max_positions
    fits = not limit or config.dataset.max_length <= limit
    require(fits, "dataset.max_length", f"at most the target's {limit} positions", config.dataset.max_length)
    return Chat(
        target.tokenizer,
        max_length=config.dataset.max_length,
        template_args=config.dataset.template_values(),
        mask_token_id=mask_token_id,
        vocab_size=target.description.vocab_size,
    )


def _warnings(plan: Plan, found: Survey) -> Iterator[str]:
    """A sentence for each thing that is usually a mistake, but may be intended."""
    config, target, template_args = plan.config, plan.target, plan.config.dataset.template_values()
    if plan.warm_start:
        yield from plan.warm_start.warn_of_other_target(target.name)
    yield from warn_of_little_to_learn(found)
    if (provenance := read_provenance(config.data)) is None:
        yield from warn_of_missing_thoughts(found, target.tokenizer, template_args)
    else:
        yield from warn_of_other_answers(provenance, target, precision_name(plan.placement.precision), template_args)
    yield from warn_of_other_prompts(found)
    yield from warn_of_gamma(config.loss, config.drafter.block_size)
    yield from warn_of_no_evaluation(config.evaluate.every, plan.held_out is not None, config.data)


def _check_plain_head(architecture: Any, name: str) -> None:
    """Distillation computes the target's distribution as softmax(head @ last hidden state); refuse targets where it is another."""
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
