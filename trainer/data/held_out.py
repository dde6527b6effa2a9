"""The held-out set on which acceptance is measured while training: prompts as token ids, and the conversations they come from."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainer.config import EvaluateConfig
from trainer.data.batches import Cursor, TokenBatch, batch_of
from trainer.data.chat_template import Chat
from trainer.data.conversations import Rejected, load_held_out, to_messages
from trainer.data.prompts import load_prompts
from trainer.data.samples import Sample
from trainer.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What acceptance is measured on."""

    prompts: Sequence[Sequence[int]]
    """Token ids that the target answers, with and without the drafter's help."""
    conversations: Sequence[TokenBatch]
    """The same prompts with the data's own answers, one batch each, for the estimate; empty for prompts without answers."""


def load_held_out_set(config: EvaluateConfig, data: str, chat: Chat, max_positions: int) -> HeldOut | None:
    """The held-out set of a run over `data`; None where measuring is switched off or no held-out conversation can be used.

    A prompt and its answer must fit into the target's `max_positions` (0: no limit). Raises `ConfigError` where none of the prompts
    in `config.prompts` can be used.
    """
    if config.every == 0:
        return None
    limit = max_positions - config.max_new_tokens if max_positions else None
    if config.prompts is not None:
        return HeldOut(prompts=_read_prompts(config.prompts, config.limit, chat, limit), conversations=[])
    rows = itertools.islice(load_held_out(data) or (), config.limit)
    pairs = [pair for row in rows if (pair := _first_turn(row, chat, limit))]
    return HeldOut(prompts=[ids for ids, _ in pairs], conversations=[batch for _, batch in pairs]) if pairs else None


def _read_prompts(source: str, count: int, chat: Chat, limit: int | None) -> list[list[int]]:
    prompts = load_prompts(source, held_out=True, limit=count)
    tokenised = (chat.prompt_ids(prompt.messages, limit=limit) for prompt in prompts)
    usable = [token_ids for token_ids in tokenised if not isinstance(token_ids, Rejected)]
    if not usable:
        way = "check them, the target's chat template and evaluate.max_new_tokens"
        raise ConfigError(f"none of the prompts of evaluate.prompts {source!r} can be asked and answered: {way}")
    return usable


def _first_turn(row: Mapping[str, Any], chat: Chat, limit: int | None) -> tuple[list[int], TokenBatch] | None:
    """The first question of a conversation, and question and answer as a batch; None where it cannot be used."""
    messages = to_messages(row)
    if isinstance(messages, Rejected):
        return None
    first = next((index for index, message in enumerate(messages) if message["role"] == "assistant"), 0)
    if first == 0:
        return None
    tokenised, token_ids = chat.tokenise(messages[: first + 1]), chat.prompt_ids(messages[:first], limit=limit)
    if isinstance(token_ids, Rejected) or isinstance(tokenised, Rejected) or not tokenised.learnable:
        return None
    tensors = torch.from_numpy(tokenised.token_ids), torch.from_numpy(tokenised.loss_mask)
    return token_ids, batch_of([Sample(*tensors, index=0, epoch=0, position=0)], 0, Cursor(0, 1))
