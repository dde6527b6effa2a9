"""What acceptance is measured on while training: prompts as token ids, and the held-out conversations that they come from."""

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
    """`prompts` are asked. `conversations`, each a batch, are the same prompts with the data's own answers, where it has any."""

    prompts: Sequence[Sequence[int]]
    conversations: Sequence[TokenBatch]


def load_held_out_set(config: EvaluateConfig, data: str, chat: Chat, max_positions: int) -> HeldOut | None:
    """The held-out set of a run over `data`; None where nothing is to be measured, or nothing is held out that can be asked.

    A prompt and its answer must fit into the target's `max_positions` (0: no limit). Raises `ConfigError` for prompts that were
    named but cannot be asked.
    """
    room = max_positions - config.max_new_tokens if max_positions else None
    if config.every == 0:
        return None
    if config.prompts is not None:
        return HeldOut(prompts=_named(config.prompts, config.limit, chat, room), conversations=[])
    rows = itertools.islice(load_held_out(data) or (), config.limit)
    pairs = [pair for row in rows if (pair := _pair(row, chat, room))]
    return HeldOut(prompts=[ids for ids, _ in pairs], conversations=[batch for _, batch in pairs]) if pairs else None


def _named(source: str, limit: int, chat: Chat, room: int | None) -> list[list[int]]:
    prompts = load_prompts(source, held_out=True, limit=limit)
    asked = [ids for prompt in prompts if (ids := _asked(prompt.messages, chat, room))]
    if not asked:
        way = "look at them, at the target's chat template and at evaluate.max_new_tokens"
        raise ConfigError(f"none of the prompts of evaluate.prompts {source!r} can be asked and answered: {way}")
    return asked


def _asked(messages: Sequence[Mapping[str, str]], chat: Chat, room: int | None) -> list[int] | None:
    token_ids = chat.prompt_ids(messages)
    return None if isinstance(token_ids, Rejected) or (room is not None and len(token_ids) > room) else token_ids or None


def _pair(row: Mapping[str, Any], chat: Chat, room: int | None) -> tuple[list[int], TokenBatch] | None:
    """The first question of a conversation, and question and answer as a batch."""
    messages = to_messages(row)
    if isinstance(messages, Rejected):
        return None
    first = next((place for place, message in enumerate(messages) if message["role"] == "assistant"), 0)
    tokenised, token_ids = chat.tokenise(messages[: first + 1]), _asked(messages[:first], chat, room) if first else None
    if token_ids is None or isinstance(tokenised, Rejected) or not tokenised.learnable:
        return None
    tensors = torch.from_numpy(tokenised.token_ids), torch.from_numpy(tokenised.loss_mask)
    return token_ids, batch_of([Sample(*tensors, index=0, epoch=0, position=0)], 0, Cursor(0, 1))
