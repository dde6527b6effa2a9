"""Checks, before a run begins, for everything in the data that would spoil a drafter without an error.

Each check is a row of docs/guards.md. What cannot be intended raises `ConfigError`; what may be intended is yielded as a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from trainer.config import LossConfig
from trainer.data.answer_spans import THINK_END
from trainer.data.chat_template import TEMPLATE_ERRORS, Chat
from trainer.data.conversations import Message, Rejected, to_messages
from trainer.data.samples import tokenise, tokenise_messages
from trainer.drafter.loss import default_gamma
from trainer.errors import ConfigError
from trainer.target.load import Target
from trainer.target.provenance import mismatches

SURVEY_SIZE = 128
"""Conversations that are tokenised before a run begins, evenly spread over the data."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Counts over the conversations that were tokenised before the run; every check and warning reads them here."""

    examined: int
    reasons: Counter[str]
    """Of the rejected ones, by reason."""
    details: Counter[str]
    """The same, by the sentence that explains it."""
    with_thoughts: int
    """Conversations that have an answer with thoughts."""
    other_prompt: int
    """Conversations whose last answer does not follow the prompt that the target would be given there."""

    @property
    def learnable(self) -> int:
        return self.examined - self.reasons.total()


def survey(dataset: Dataset, chat: Chat) -> Survey:
    """Tokenise conversations evenly spread over the data, each once."""
    rows = _surveyed_rows(dataset)
    rejected: list[Rejected] = []
    with_thoughts = other_prompt = 0
    for row in dataset.select(rows):
        messages = to_messages(row)
        if isinstance(messages, Rejected):
            rejected.append(messages)
            continue
        tokenised = tokenise_messages(chat, messages)
        if isinstance(tokenised, Rejected):
            rejected.append(tokenised)
            continue
        with_thoughts += any(_has_thoughts(message) for message in messages)
        other_prompt += not _follows_its_prompt(chat, messages)
    return Survey(
        examined=len(rows),
        reasons=Counter(one.reason for one in rejected),
        details=Counter(one.detail for one in rejected),
        with_thoughts=with_thoughts,
        other_prompt=other_prompt,
    )


def _surveyed_rows(dataset: Dataset) -> list[int]:
    count = min(len(dataset), SURVEY_SIZE)
    return [number * len(dataset) // count for number in range(count)]


def _has_thoughts(message: Message) -> bool:
    before, end, _ = message["content"].partition(THINK_END)
    thoughts = message.get("reasoning_content") or (before.replace("<think>", "") if end else "")
    return message["role"] == "assistant" and bool(thoughts.strip())


def _follows_its_prompt(chat: Chat, messages: Sequence[Message]) -> bool:
    last = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
    try:
        return chat.render(messages[: last + 1]).startswith(chat.render(messages[:last], add_generation_prompt=True))
    except TEMPLATE_ERRORS:  # some templates refuse to render a prompt here, which says nothing about the data
        return True


def _is_common(count: int, of: int) -> bool:
    """Whether so many are the rule in the data rather than a stray row."""
    return count > 1 and count > 0.05 * of


def check_learnable(dataset: Dataset, chat: Chat, found: Survey) -> None:
    """Raise `ConfigError` where no conversation has anything to learn from.

    Reads on beyond the survey only where that found none, up to the first that has.
    """
    if found.learnable:
        return
    details, surveyed = Counter(found.details), set(_surveyed_rows(dataset))
    for index, row in enumerate(dataset):
        if index in surveyed:
            continue
        tokenised = tokenise(chat, row)
        if not isinstance(tokenised, Rejected):
            return
        details[tokenised.detail] += 1
    commonest = "; ".join(f"{count}: {detail}" for detail, count in details.most_common(3))
    raise ConfigError(
        f"none of the {len(dataset)} conversations has anything to learn from ({commonest}): "
        "give data with answers that fit the target's chat template and `dataset.max_length`"
    )


def check_mask_unused(found: Survey, mask_token_id: int, tokenizer: PreTrainedTokenizerFast) -> None:
    """Raise `ConfigError` for a mask token that is common in the data. Single conversations that hold it are only dropped."""
    count = found.reasons["mask_token"]
    if _is_common(count, found.examined):
        token = tokenizer.convert_ids_to_tokens(mask_token_id)
        raise ConfigError(
            f"drafter.mask_token_id must be a token that no text uses, got {mask_token_id} ({token}), which {count} of the "
            f"{found.examined} conversations examined hold: leave it out to have an unused one chosen"
        )


def check_tokenizer(tokenizer: PreTrainedTokenizerFast, vocab_size: int, name: str) -> None:
    """Raise `ConfigError` where ordinary tokens have no row in the target's embedding: the tokenizer is another model's.

    Added tokens may lack one (Gemma 3's text models have one for pictures, which no text holds); `Chat` rejects text with them.
    """
    ordinary = tokenizer.get_vocab().values() - tokenizer.added_tokens_decoder.keys()
    if (last := max(ordinary, default=0)) >= vocab_size:
        raise ConfigError(
            f"target {name!r} has embeddings for {vocab_size:,} tokens, but its tokenizer gives ids up to {last:,}: "
            "give a folder whose tokenizer is the model's own"
        )


def warn_of_little_to_learn(found: Survey) -> Iterator[str]:
    """A warning where most conversations will be dropped; that at least one remains is `check_learnable`'s."""
    if found.learnable < found.examined / 2:
        reasons = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in found.reasons.most_common())
        yield (
            f"Only {found.learnable} of the {found.examined} conversations examined can be learnt from ({reasons}); "
            "the rest will be dropped."
        )


def warn_of_other_prompts(found: Survey) -> Iterator[str]:
    """A warning where answers in the data follow another prompt than they will where the drafter is served."""
    if _is_common(found.other_prompt, found.examined):
        yield (
            f"In {found.other_prompt} of the {found.examined} conversations examined, the answer does not follow the prompt that "
            "the target is given when it is served, for example because answers have thoughts while dataset.template_args switch "
            "thinking off: the drafter will guess worse there than it does here."
        )


def warn_of_other_answers(
    provenance: Mapping[str, Any], target: Target, precision: str, template_args: Mapping[str, Any]
) -> Iterator[str]:
    """A warning for each way in which the data's answers, made as `provenance` says, are not what this target would say."""
    for sentence in mismatches(provenance, target=target, precision=precision, template_args=template_args):
        yield f"{sentence[0].upper()}{sentence[1:]}."


def warn_of_missing_thoughts(found: Survey, tokenizer: PreTrainedTokenizerFast, template_args: Mapping[str, Any]) -> Iterator[str]:
    """A warning where the template asks the target to think and no answer in the data has thoughts."""
    if found.with_thoughts or not found.learnable or not _asks_for_thoughts(tokenizer, template_args):
        return
    yield (
        f"None of the {found.examined} conversations examined has thoughts, but the target's template asks for them: add "
        "--dataset.template-args enable_thinking false if it is served without, or train on answers that have them."
    )


def _asks_for_thoughts(tokenizer: PreTrainedTokenizerFast, template_args: Mapping[str, Any]) -> bool:
    """Whether the template has the switch `enable_thinking`, as Qwen3's, and it is on."""
    hello: list[Message] = [{"role": "user", "content": "Hello"}]
    try:
        as_configured, without = (
            Chat(tokenizer, template_args=arguments).render(hello, add_generation_prompt=True)
            for arguments in (template_args, {**template_args, "enable_thinking": False})
        )
    except TEMPLATE_ERRORS:
        return False
    return as_configured != without


def warn_of_gamma(config: LossConfig, block_size: int) -> Iterator[str]:
    """A warning where the decay along a block is far from the usual one for its size."""
    usual = default_gamma(block_size)
    if config.gamma is not None and not usual / 2 <= config.gamma <= 2 * usual:
        effect = "almost as much as the early ones that they depend on" if config.gamma > usual else "next to nothing"
        yield (
            f"loss.gamma is {config.gamma:g}, and the usual value for blocks of {block_size} tokens is {usual:g}: late positions "
            f"of a block will count {effect}."
        )


def warn_of_no_evaluation(every: int, has_held_out: bool, data: str) -> Iterator[str]:
    """A warning where acceptance was to be measured while training, and there is nothing to measure it on."""
    if every and not has_held_out:
        yield (
            f"No acceptance will be measured while training, since data {data!r} has no held-out conversation that can be used: "
            "give --evaluate.prompts, or --evaluate.every 0 to go without."
        )
