"""Answers each prompt twice, with the drafter and by the target alone, and compares the two answers."""

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
class TokenisedPrompt:
    """A prompt as token ids, with its number in the source and its category."""

    number: int
    category: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredPrompt:
    """A prompt with its answers. `alone` is None without a baseline, `divergence` where the two answers agree or are sampled."""

    prompt: TokenisedPrompt
    drafted: Decoded
    alone: Decoded | None = None
    divergence: Divergence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingSettings:
    """How answers are decoded."""

    max_new_tokens: int
    stop_ids: Sequence[int]
    sampling: Sampling = GREEDY
    seed: int = 0
    baseline: bool = True


def read_prompts(chat: Chat, prompts: Sequence[Prompt], limit: int) -> tuple[list[TokenisedPrompt], Counter[str]]:
    """Prompts as token ids, and how many are left out, by reason; one longer than `limit` tokens is `too_long`.

    Raises `ConfigError` where none is left.
    """
    tokenised: list[TokenisedPrompt] = []
    left_out: Counter[str] = Counter()
    example = ""
    for number, prompt in enumerate(prompts):
        token_ids = chat.prompt_ids(prompt.messages, limit=limit)
        if isinstance(token_ids, Rejected):
            left_out[token_ids.reason] += 1
            example = example or f"prompt {number + 1}: {token_ids.detail}"
        else:
            tokenised.append(TokenisedPrompt(number, prompt.category, token_ids))
    if not tokenised:
        way = "check them and the target's chat template"
        if left_out["too_long"]:
            way = "shorten them, or give a smaller number of --max-new-tokens"
        raise ConfigError(f"none of the {len(prompts)} prompts can be answered ({example}): {way}")
    return tokenised, left_out


def answer_prompts(
    model: PreTrainedModel, speculator: SpeculativeDecoder, prompts: Sequence[TokenisedPrompt], settings: DecodingSettings
) -> Iterator[AnsweredPrompt]:
    """Answer each prompt with the drafter and alone, in alternating order: a machine whose speed drifts then favours neither."""
    warm_up = replace(settings, max_new_tokens=min(_WARM_UP_TOKENS, settings.max_new_tokens), stop_ids=())
    _answer(model, speculator, prompts[0], warm_up, drafter_first=True)
    for index, prompt in enumerate(prompts):
        drafted, alone = _answer(model, speculator, prompt, settings, drafter_first=index % 2 == 0)
        divergence = None
        if alone and settings.sampling.greedy:
            divergence = find_divergence(model, prompt.token_ids, drafted.token_ids, alone.token_ids)
        yield AnsweredPrompt(prompt=prompt, drafted=drafted, alone=alone, divergence=divergence)


def _answer(
    model: PreTrainedModel,
    speculator: SpeculativeDecoder,
    prompt: TokenisedPrompt,
    settings: DecodingSettings,
    *,
    drafter_first: bool,
) -> tuple[Decoded, Decoded | None]:
    """The answer with the drafter and, with a baseline, the target's own."""
    arguments: dict[str, Any] = {
        "max_new_tokens": settings.max_new_tokens,
        "stop_ids": settings.stop_ids,
        "sampling": settings.sampling,
        "seed": settings.seed + prompt.number,
    }

    def without_drafter() -> Decoded | None:
        return decode_alone(model, prompt.token_ids, **arguments) if settings.baseline else None

    alone = None if drafter_first else without_drafter()
    drafted = speculator.decode(prompt.token_ids, **arguments)
    return drafted, without_drafter() if drafter_first else alone
