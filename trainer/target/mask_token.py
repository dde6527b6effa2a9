"""Chooses the mask token: the id that stands for the positions which the drafter is to fill."""

from __future__ import annotations

import re
from typing import Any

from transformers import PreTrainedTokenizerFast

from trainer.errors import ConfigError

# Names of reserved ids: <|reserved_special_token_247|>, <unused98>, [control_768], <SPECIAL_999> …
RESERVED = re.compile(r"[<\[]\W*(reserved|unused|control|special|extra|dummy|placeholder)\w*\d\W*[>\]]", re.IGNORECASE)
MASK = re.compile(r"[<\[]\W*mask\W*[>\]]", re.IGNORECASE)


def choose_mask_token_id(requested: int | None, config: Any, tokenizer: PreTrainedTokenizerFast) -> int:
    """The requested id, or else one that no text uses. Raises `ConfigError` for an id that cannot be a mask token."""
    mask_token_id = find_mask_token_id(config, tokenizer) if requested is None else requested
    check_mask_token_id(mask_token_id, config, tokenizer)
    return mask_token_id


def find_mask_token_id(config: Any, tokenizer: PreTrainedTokenizerFast) -> int:
    """An id of the target's vocabulary that no text uses. `config` is the target's text config.

    The first id after the tokenizer's own where the embedding has a spare row (Qwen3: 151669), else a token named as a mask, else
    the last one named as reserved, else the last special token that no conversation needs. Raises `ConfigError` if there is none.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    beyond = max(len(tokenizer), 1 + max(vocabulary.values()))
    if beyond < config.vocab_size:
        return beyond
    taken = _end_ids(config, tokenizer) | {tokenizer.bos_token_id, tokenizer.unk_token_id}
    template = str(tokenizer.chat_template)
    special: dict[str, int] = {token.content: id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
    for tokens, name in ((vocabulary, MASK), (vocabulary, RESERVED), (special, re.compile(".*"))):
        free = [id_ for token, id_ in tokens.items() if name.fullmatch(token) and id_ not in taken and token not in template]
        if in_range := [id_ for id_ in free if id_ < config.vocab_size]:
            return max(in_range)
    raise ConfigError("the target's vocabulary has no unused token to mask with: name one with --drafter.mask-token-id")


def check_mask_token_id(mask_token_id: int, config: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    """Raise `ConfigError` for an id outside the vocabulary, and for the pad or an end token, which texts contain."""
    if not 0 <= mask_token_id < config.vocab_size:
        limit = f"from 0 to {config.vocab_size - 1}, the target's vocabulary"
        raise ConfigError(f"drafter.mask_token_id must be {limit}, got {mask_token_id}")
    if mask_token_id in _end_ids(config, tokenizer):
        token = tokenizer.convert_ids_to_tokens(mask_token_id)
        way = "leave it out to have an unused one found"
        raise ConfigError(f"drafter.mask_token_id must not be a pad or end token, got {mask_token_id} ({token}): {way}")


def _end_ids(config: Any, tokenizer: PreTrainedTokenizerFast) -> set[int | None]:
    ends: set[int | None] = {tokenizer.pad_token_id, tokenizer.eos_token_id, getattr(config, "pad_token_id", None)}
    named = getattr(config, "eos_token_id", None)
    return ends | set(named if isinstance(named, list | tuple) else [named])
