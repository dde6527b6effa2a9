"""What spoils a drafter in silence elsewhere, looked for before a run begins: errors, or sentences to warn with.

Each guard is a line of docs/guards.md. What cannot be meant is a `ConfigError`; what may be meant is yielded as a sentence.
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
from trainer.data.samples import tokenise
from trainer.drafter.loss import decay_for
from trainer.errors import ConfigError
from trainer.target.provenance import mismatches

LOOKED_AT = 128
"""Conversations that are tokenised before a run begins, evenly spread over the data."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What the conversations that were looked at are like."""

    looked_at: int
    reasons: Counter[str]
    """Of those that are left out."""
    thoughtful: int
    """Those with an answer that has thoughts."""
    unasked: int
    """Those whose last answer stands behind something else than what the target is given when it is asked."""

    @property
    def learnable(self) -> int:
        return self.looked_at - self.reasons.total()


def survey(dataset: Dataset, chat: Chat) -> Survey:
    """Look at conversations evenly spread over the data."""
    count = min(len(dataset), LOOKED_AT)
    reasons: Counter[str] = Counter()
    thoughtful = unasked = 0
    for row in dataset.select([place * len(dataset) // count for place in range(count)]):
        tokenised, messages = tokenise(chat, row), to_messages(row)
        if isinstance(tokenised, Rejected) or isinstance(messages, Rejected):
            reasons[tokenised.reason if isinstance(tokenised, Rejected) else "malformed"] += 1
            continue
        thoughtful += any(_has_thoughts(message) for message in messages)
        unasked += not _stands_where_asked(chat, messages)
    return Survey(looked_at=count, reasons=reasons, thoughtful=thoughtful, unasked=unasked)


def _has_thoughts(message: Message) -> bool:
    before, end, _ = message["content"].partition(THINK_END)
    thoughts = message.get("reasoning_content") or (before.replace("<think>", "") if end else "")
    return message["role"] == "assistant" and bool(thoughts.strip())


def _stands_where_asked(chat: Chat, messages: Sequence[Message]) -> bool:
    last = max(place for place, message in enumerate(messages) if message["role"] == "assistant")
    try:
        return chat.render(messages[: last + 1]).startswith(chat.render(messages[:last], add_generation_prompt=True))
    except TEMPLATE_ERRORS:  # a template may refuse to ask; nothing is known then
        return True


def _is_common(count: int, of: int) -> bool:
    """Whether so many are the rule in the data, and no accident of a row."""
    return count > 1 and count > 0.05 * of


def check_mask_unused(found: Survey, mask_token_id: int, tokenizer: PreTrainedTokenizerFast) -> None:
    """Raise `ConfigError` for a mask token that the data commonly use. Single conversations with it are left out of training."""
    count = found.reasons["mask_token"]
    if _is_common(count, found.looked_at):
        token = tokenizer.convert_ids_to_tokens(mask_token_id)
        raise ConfigError(
            f"drafter.mask_token_id must be a token that no text uses, got {mask_token_id} ({token}), which {count} of the "
            f"{found.looked_at} conversations looked at hold: leave it out to have an unused one found"
        )


def check_tokenizer(tokenizer: PreTrainedTokenizerFast, vocab_size: int, name: str) -> None:
    """Raise `ConfigError` where words of the tokenizer lie outside the target's embedding: they are two models' then.

    Added tokens may (Gemma 3's text models have one for pictures, which no text holds); `GuardedChat` turns away what holds them.
    """
    ordinary = tokenizer.get_vocab().values() - tokenizer.added_tokens_decoder.keys()
    if (last := max(ordinary, default=0)) >= vocab_size:
        raise ConfigError(
            f"target {name!r} has embeddings for {vocab_size:,} tokens, but its tokenizer gives ids up to {last:,}: "
            "give a folder whose tokenizer is the model's own"
        )


def little_to_learn(found: Survey) -> Iterator[str]:
    """A warning where most conversations are left out; that one at least can be learnt from is checked elsewhere."""
    if found.learnable < found.looked_at / 2:
        reasons = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in found.reasons.most_common())
        yield (
            f"Only {found.learnable} of the {found.looked_at} conversations looked at can be learnt from ({reasons}); "
            "the rest will be left out."
        )


def another_prompt(found: Survey) -> Iterator[str]:
    """A warning where answers in the data stand behind another prompt than they would where the drafter is served."""
    if _is_common(found.unasked, found.looked_at):
        yield (
            f"In {found.unasked} of the {found.looked_at} conversations looked at, the answer does not stand behind what the "
            "target is given when it is asked, as where answers have thoughts and dataset.template_args switch thinking off: "
            "the drafter will guess worse where it is served than it does here."
        )


def other_answers(made: Mapping[str, Any], target: str, precision: str, template_args: Mapping[str, Any]) -> Iterator[str]:
    """A warning for each way in which the data's answers, made as `made` says, are not what this target would say."""
    for sentence in mismatches(made, target=target, precision=precision, template_args=template_args):
        yield f"{sentence[0].upper()}{sentence[1:]}."


def missing_thoughts(found: Survey, tokenizer: PreTrainedTokenizerFast, template_args: Mapping[str, Any]) -> Iterator[str]:
    """A warning where the target is asked to think and no answer in the data has thoughts."""
    if found.thoughtful or not found.learnable or not _asks_for_thoughts(tokenizer, template_args):
        return
    yield (
        f"None of the {found.looked_at} conversations looked at has thoughts, but the target's template asks for them: add "
        "--dataset.template-args enable_thinking false if it is served without, or train on answers that have them."
    )


def _asks_for_thoughts(tokenizer: PreTrainedTokenizerFast, template_args: Mapping[str, Any]) -> bool:
    """Whether the template has the switch that Qwen3 made common, and it is on."""
    hello: list[Message] = [{"role": "user", "content": "Hello"}]
    try:
        asked, without = (
            Chat(tokenizer, template_args=arguments).render(hello, add_generation_prompt=True)
            for arguments in (template_args, {**template_args, "enable_thinking": False})
        )
    except TEMPLATE_ERRORS:
        return False
    return asked != without


def far_gamma(config: LossConfig, block_size: int) -> Iterator[str]:
    """A warning where the decay along a block is far from what goes with its size."""
    usual = decay_for(block_size)
    if config.gamma is not None and not usual / 2 <= config.gamma <= 2 * usual:
        yield (
            f"loss.gamma is {config.gamma:g}, and {usual:g} goes with blocks of {block_size} tokens: late guesses of a block count "
            f"{'almost as much as the early ones that they hang on' if config.gamma > usual else 'next to nothing'} then."
        )


def unmeasured(every: int, measured: bool, data: str) -> Iterator[str]:
    """A warning where acceptance was to be measured while training, and there is nothing to measure it on."""
    if every and not measured:
        yield (
            f"No acceptance will be measured while training, since data {data!r} has no held-out conversation that can be asked: "
            "give --evaluate.prompts, or --evaluate.every 0 to go without."
        )
