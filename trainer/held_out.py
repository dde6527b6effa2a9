"""What acceptance is measured on while training: prompts as token ids, and the held-out conversations that they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from trainer.batches import Cursor, TokenBatch, batch_of
from trainer.chat import Chat
from trainer.config import ConfigError, EvaluateConfig
from trainer.conversations import Rejected, load_held_out
from trainer.dataset import Sample, tokenise
from trainer.prompts import load_prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """`prompts` are asked; `conversations` are the same ones with the data's own answers, each a batch, where the data has any."""

    prompts: Sequence[Sequence[int]]
    conversations: Sequence[TokenBatch]


def load_held_out_set(config: EvaluateConfig, data: str, chat: Chat, max_positions: int) -> HeldOut | None:
    """The held-out set of a run over `data`; None where nothing is to be measured, or nothing is held out.

    A prompt and its answer must fit into the target's `max_positions` (0: no limit). Raises `ConfigError` for prompts that were
    named but cannot be asked.
    """
    if config.every == 0 or (config.prompts is None and load_held_out(data) is None):
        return None
    room = max_positions - config.max_new_tokens if max_positions else None
    asked = (chat.prompt_ids(prompt.messages) for prompt in load_prompts(config.prompts or data, held_out=True, limit=config.limit))
    prompts = [ids for ids in asked if not isinstance(ids, Rejected) and (room is None or len(ids) <= room)]
    if prompts:
        return HeldOut(prompts=prompts, conversations=[] if config.prompts else list(_conversations(data, chat, config.limit)))
    if config.prompts is None:
        return None
    way = "look at them, at the target's chat template and at evaluate.max_new_tokens"
    raise ConfigError(f"none of the prompts of evaluate.prompts {config.prompts!r} can be asked and answered: {way}")


def _conversations(data: str, chat: Chat, limit: int) -> Iterator[TokenBatch]:
    rows = load_held_out(data)
    for index, row in zip(range(limit), rows or (), strict=False):
        tokenised = tokenise(chat, row)
        if not isinstance(tokenised, Rejected):
            tensors = torch.from_numpy(tokenised.token_ids), torch.from_numpy(tokenised.loss_mask)
            yield batch_of([Sample(*tensors, index=index, epoch=0, position=index)], index, Cursor(0, index + 1))
