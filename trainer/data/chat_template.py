"""Turns messages into token ids and a loss mask, with the target's own chat template.

The mask covers what the target itself would generate: the tokens of every answer and the token that ends its turn.
`trainer.data.answer_spans` finds the answers in the rendered text; no template is known by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from trainer.data.answer_spans import UnalignedError, answer_spans
from trainer.data.conversations import Message, Rejected

# Some templates print today's date. A resumed run must produce the same tokens on any day, so the date is fixed.
TEMPLATE_DAY = date(2024, 7, 26)

TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError)


@dataclass(frozen=True, slots=True, eq=False)
class Tokenised:
    """Token ids [T] int64 and loss mask [T] bool: True where the token is the assistant's own."""

    token_ids: npt.NDArray[np.int64]
    loss_mask: npt.NDArray[np.bool_]

    @property
    def learnable(self) -> bool:
        """Whether two supervised tokens follow each other: an anchor and one token to draft."""
        return bool((self.loss_mask[:-1] & self.loss_mask[1:]).any())


class Chat:
    """A target's tokenizer with its chat template. Conversations are cut at `max_length` tokens (0: never).

    With `mask_token_id`, text that holds that token is rejected, since a drafter could not tell it from a masked position. With
    `vocab_size`, so are ids for which the target has no embedding.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        max_length: int = 0,
        template_args: Mapping[str, Any] | None = None,
        mask_token_id: int | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._mask_token_id = mask_token_id
        self._vocab_size = vocab_size
        self._template_args = {"strftime_now": TEMPLATE_DAY.strftime, **(template_args or {})}
        added = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids} - {tokenizer.bos_token_id}
        self.eos_id: int | None = tokenizer.eos_token_id
        self._end_ids = added | ({self.eos_id} - {None})

    def tokenise(self, messages: Sequence[Message]) -> Tokenised | Rejected:
        """The conversation with its loss mask; its end is cut off where it is too long."""
        if not any(message["role"] == "assistant" for message in messages):
            return Rejected("no_answer", "it has no answer by the assistant")
        try:
            text = self.render(messages)
            spans = answer_spans(self.render, messages, text)
        except UnalignedError as error:
            return Rejected("unaligned", f"its answers cannot be found in what the chat template makes of it ({error})")
        except TEMPLATE_ERRORS as error:
            return _template_error(error)
        encoding = self._encode(text, return_offsets_mapping=True)
        token_ids = np.array(encoding["input_ids"], dtype=np.int64)
        mask = self._loss_mask(text, spans, token_ids, np.array(encoding["offset_mapping"], dtype=np.int64).reshape(-1, 2))
        keep = self._max_length or len(token_ids)
        return self._forbidden(token_ids[:keep]) or Tokenised(token_ids[:keep], mask[:keep])

    def prompt_ids(self, messages: Sequence[Message], *, limit: int | None = None) -> list[int] | Rejected:
        """Token ids that make the target answer: the conversation so far and the header of the assistant's turn.

        At least one and at most `limit`, so that the answer still fits into the target's positions.
        """
        try:
            text = self.render(messages, add_generation_prompt=True)
        except TEMPLATE_ERRORS as error:
            return _template_error(error)
        token_ids = list(self._encode(text)["input_ids"])
        if not token_ids:
            return Rejected("template", "the target's chat template makes no text of it")
        if forbidden := self._forbidden(np.array(token_ids)):
            return forbidden
        if limit is not None and len(token_ids) > limit:
            return Rejected("too_long", f"its {len(token_ids):,} tokens leave no room for an answer in the target's positions")
        return token_ids

    def end_token_id(self) -> int | None:
        """The token with which the template ends an answer; None where plain text or nothing ends it."""
        example = self.tokenise([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello"}])
        if isinstance(example, Rejected) or not example.loss_mask.any():
            return None
        last = int(example.token_ids[example.loss_mask][-1])
        return last if last in self._end_ids else None

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, untrimmed, without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def render(self, messages: Sequence[Message], **extra: Any) -> str:
        """The text of a conversation. Raises whatever the template raises: `TEMPLATE_ERRORS`."""
        text = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, **self._template_args, **extra
        )
        return str(text)

    @cached_property
    def _prompt_ends_in_space(self) -> bool:
        """Whether the generation prompt ends in a space. If not, the target itself generates a space before its answer."""
        try:
            return self.render([{"role": "user", "content": "Hello"}], add_generation_prompt=True).endswith(" ")
        except TEMPLATE_ERRORS:
            return False

    def _encode(self, text: str, **arguments: Any) -> Any:
        return self._tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False, **arguments)

    def _loss_mask(
        self,
        text: str,
        spans: Sequence[tuple[int, int]],
        token_ids: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        """Which of the T tokens lie in the spans of `text` or end one. `offsets` [T, 2]: start and end of each token in `text`."""
        mask = np.zeros(len(token_ids), dtype=bool)
        if not len(token_ids):
            return mask
        ends = np.maximum.accumulate(offsets[:, 1])
        # Some tokenizers leave the space before a word out of its offsets, so a token starts where the one before it ended.
        begins = np.minimum(offsets[:, 0], np.concatenate(([0], ends[:-1])))
        for start, end in spans:
            first = start if self._prompt_ends_in_space else len(text[:start].rstrip(" "))
            mask |= (begins >= first) & (begins < end)
            mask[self._end_of_turn(text, end, token_ids, begins)] = True
        return mask

    def _end_of_turn(self, text: str, end: int, token_ids: npt.NDArray[np.int64], begins: npt.NDArray[np.int64]) -> slice:
        """The tokens that end a turn: a special token right after the answer, or white space and the end token."""
        first = int(np.searchsorted(begins, end))
        if first < len(begins) and begins[first] == end and int(token_ids[first]) in self._end_ids:
            return slice(first, first + 1)
        after_space = end + len(text[end:]) - len(text[end:].lstrip())
        last = int(np.searchsorted(begins, after_space))
        if after_space > end and last < len(begins) and begins[last] == after_space and int(token_ids[last]) == self.eos_id:
            return slice(first, last + 1)
        return slice(0)

    def _forbidden(self, token_ids: npt.NDArray[np.int64]) -> Rejected | None:
        if self._mask_token_id is not None and (token_ids == self._mask_token_id).any():
            return Rejected("mask_token", f"it holds {self._token(self._mask_token_id)}, which stands for masked positions")
        if self._vocab_size is not None and token_ids.max(initial=0) >= self._vocab_size:
            return Rejected("malformed", f"it holds {self._token(int(token_ids.max()))}, for which the target has no embedding")
        return None

    def _token(self, token_id: int) -> str:
        return f"token {token_id} ({self._tokenizer.convert_ids_to_tokens(token_id)})"


def _template_error(error: Exception) -> Rejected:
    return Rejected("template", f"the target's chat template refuses it ({' '.join(str(error).split())[:200]})")
