"""Prompts in, each answered twice out: with the drafter and by the target alone, so that one can be held against the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from trainer.data.chat_template import Chat
from trainer.data.conversations import Rejected
from trainer.data.prompts import Prompt
from trainer.decoding.sampling import GREEDY, Sampling
from trainer.decoding.speculative import Decoded, SpeculativeDecoder, decode_alone
from trainer.errors import ConfigError
from trainer.evaluate.lossless import Divergence, find_divergence

# Answers begun before the first that counts: memory is taken, kernels are chosen and code is read on first use.
_WARM_UP_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt that can be answered: its number in the source, the kind of question it is, its tokens."""

    number: int
    category: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A prompt with its answers. `alone` is None where the target was not asked by itself, `divergence` if greedy ones agree."""

    prompt: Asked
    drafted: Decoded
    alone: Decoded | None = None
    divergence: Divergence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a text is decoded."""

    max_new_tokens: int
    stop_ids: Sequence[int]
    sampling: Sampling = GREEDY
    seed: int = 0
    baseline: bool = True


def read_prompts(chat: Chat, prompts: Sequence[Prompt], limit: int) -> tuple[list[Asked], Counter[str]]:
    """Prompts as token ids, and how many are left out, by reason; one longer than `limit` tokens is `too_long`.

    Raises `ConfigError` where none is left.
    """
    asked: list[Asked] = []
    left_out: Counter[str] = Counter()
    example = ""
    for number, prompt in enumerate(prompts):
        token_ids = chat.prompt_ids(prompt.messages, limit=limit)
        if isinstance(token_ids, Rejected):
            left_out[token_ids.reason] += 1
            example = example or f"prompt {number + 1}: {token_ids.detail}"
        else:
            asked.append(Asked(number, prompt.category, token_ids))
    if not asked:
        way = "look at them and at the target's chat template"
        if left_out["too_long"]:
            way = "shorten them, or give a smaller number of --max-new-tokens"
        raise ConfigError(f"none of the {len(prompts)} prompts can be answered ({example}): {way}")
    return asked, left_out


def answer_both(
    model: PreTrainedModel, speculator: SpeculativeDecoder, prompts: Sequence[Asked], terms: Terms
) -> Iterator[Answered]:
    """Answer each prompt with the drafter and alone, now this first and now that: a machine that drifts then favours neither."""
    warm_up = replace(terms, max_new_tokens=min(_WARM_UP_TOKENS, terms.max_new_tokens), stop_ids=())
    _answer(model, speculator, prompts[0], warm_up, drafter_first=True)
    for place, prompt in enumerate(prompts):
        drafted, alone = _answer(model, speculator, prompt, terms, drafter_first=place % 2 == 0)
        divergence = None
        if alone and terms.sampling.greedy:
            divergence = find_divergence(model, prompt.token_ids, drafted.token_ids, alone.token_ids)
        yield Answered(prompt=prompt, drafted=drafted, alone=alone, divergence=divergence)


def _answer(
    model: PreTrainedModel, speculator: SpeculativeDecoder, prompt: Asked, terms: Terms, *, drafter_first: bool
) -> tuple[Decoded, Decoded | None]:
    """With the drafter, and alone if that is wanted."""
    how: dict[str, Any] = {
        "max_new_tokens": terms.max_new_tokens,
        "stop_ids": terms.stop_ids,
        "sampling": terms.sampling,
        "seed": terms.seed + prompt.number,
    }

    def ask_alone() -> Decoded | None:
        return decode_alone(model, prompt.token_ids, **how) if terms.baseline else None

    alone = None if drafter_first else ask_alone()
    drafted = speculator.decode(prompt.token_ids, **how)
    return drafted, ask_alone() if drafter_first else alone
