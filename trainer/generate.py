"""Greedy answers in batches: token ids of prompts in, the target's own answers out.

Prompts of similar length share a batch and are padded on the left, so that each answer is what the target says to that prompt alone
(up to ties, which another order of additions may break the other way).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to prompt number `index`, without the token that ended it; `finished` is False if it ran out of tokens."""

    index: int
    token_ids: list[int]
    finished: bool


def stop_token_ids(model: PreTrainedModel, *more: int | None) -> list[int]:
    """Every token that ends an answer: those that the model itself names and `more`."""
    named: set[int] = {token for token in more if token is not None}
    for config in (model.generation_config, model.config):
        token = getattr(config, "eos_token_id", None)
        named.update([token] if isinstance(token, int) else token or [])
    return sorted(named)


def answer_prompts(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, stop_ids: Sequence[int], max_new_tokens: int, batch_size: int
) -> Iterator[list[Answer]]:
    """Answers batch by batch, each prompt once, the longest prompts first (so that memory runs out at once or never)."""
    order = sorted(range(len(prompts)), key=lambda index: (-len(prompts[index]), index))
    for at in range(0, len(order), batch_size):
        batch = order[at : at + batch_size]
        answers = _answer_batch(model, [prompts[index] for index in batch], stop_ids, max_new_tokens)
        yield [Answer(index, *answer) for index, answer in zip(batch, answers, strict=True)]


@torch.no_grad()
def _answer_batch(
    model: Any, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int], max_new_tokens: int
) -> Iterable[tuple[list[int], bool]]:
    width = max(len(prompt) for prompt in prompts)
    pad = stop_ids[0]
    token_ids_BT = torch.full((len(prompts), width), pad, dtype=torch.long)
    mask_BT = torch.zeros_like(token_ids_BT)
    for row, prompt in enumerate(prompts):
        token_ids_BT[row, width - len(prompt) :] = torch.tensor(prompt, dtype=torch.long)
        mask_BT[row, width - len(prompt) :] = 1
    greedy = GenerationConfig(do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=list(stop_ids), pad_token_id=pad)
    own, model.generation_config = model.generation_config, greedy  # its own may sample, or punish repetition
    try:
        said_BT = model.generate(token_ids_BT.to(model.device), attention_mask=mask_BT.to(model.device), generation_config=greedy)
    finally:
        model.generation_config = own
    return [_until_stop(row, stop_ids) for row in said_BT[:, width:].tolist()]


def _until_stop(token_ids: list[int], stop_ids: Sequence[int]) -> tuple[list[int], bool]:
    for position, token in enumerate(token_ids):
        if token in stop_ids:
            return token_ids[:position], True
    return token_ids, False
