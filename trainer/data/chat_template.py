"""Messages in, token ids and loss mask out, by the target's own chat template.

The mask covers what the target itself would have said: the tokens of every answer and the token that ends its turn. Where the
answers stand in the rendered text is found by `trainer.data.answer_spans`; no template is known by name.
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

# Some templates write today's date. A run must give the same tokens whenever it is resumed, so the day stands still.
TEMPLATE_DAY = date(2024, 7, 26)

TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError)


@dataclass(frozen=True, slots=True, eq=False)
class Tokenised:
    """Token ids [T] int64 and loss mask [T] bool: True where the token is the assistant's own."""

    token_ids: npt.NDArray[np.int64]
    loss_mask: npt.NDArray[np.bool_]

    @property
    def learnable(self) -> bool:
        """Whether two supervised tokens follow each other: an anchor and one token to guess."""
        return bool((self.loss_mask[:-1] & self.loss_mask[1:]).any())


class Chat:
    """A target's tokenizer with its chat template, cut at `max_length` tokens (0: never)."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, max_length: int = 0, template_args: Mapping[str, Any] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._template_args = {"strftime_now": TEMPLATE_DAY.strftime, **(template_args or {})}
        added = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids} - {tokenizer.bos_token_id}
        self.eos_id: int | None = tokenizer.eos_token_id
        self._end_ids = added | ({self.eos_id} - {None})

    def tokenise(self, messages: Sequence[Message]) -> Tokenised | Rejected:
        """The whole conversation with its loss mask, its head kept where it is too long."""
        if not any(message["role"] == "assistant" for message in messages):
            return Rejected("no_answer", "it has no answer by the assistant")
        try:
            text = self.render(messages)
            spans = answer_spans(self.render, messages, text)
        except UnalignedError as error:
            return Rejected("unaligned", f"its answers cannot be found in what the chat template makes of it ({error})")
        except TEMPLATE_ERRORS as error:
            return _refused(error)
        encoding = self._encode(text, return_offsets_mapping=True)
        token_ids = np.array(encoding["input_ids"], dtype=np.int64)
        mask = self._loss_mask(text, spans, token_ids, np.array(encoding["offset_mapping"], dtype=np.int64).reshape(-1, 2))
        keep = self._max_length or len(token_ids)
        return Tokenised(token_ids[:keep], mask[:keep])

    def prompt_ids(self, messages: Sequence[Message]) -> list[int] | Rejected:
        """Token ids that make the target answer: the conversation so far and the header of the assistant's turn."""
        try:
            text = self.render(messages, add_generation_prompt=True)
        except TEMPLATE_ERRORS as error:
            return _refused(error)
        return list(self._encode(text)["input_ids"])

    def end_token_id(self) -> int | None:
        """The token with which the template ends an answer; None where it ends it by plain text or by nothing."""
        example = self.tokenise([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello"}])
        if isinstance(example, Rejected) or not example.loss_mask.any():
            return None
        last = int(example.token_ids[example.loss_mask][-1])
        return last if last in self._end_ids else None

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, nothing trimmed, special tokens left out."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def render(self, messages: Sequence[Message], **extra: Any) -> str:
        """The text of a conversation. Raises whatever the template raises."""
        text = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, **self._template_args, **extra
        )
        return str(text)

    @cached_property
    def _asks_with_space(self) -> bool:
        """Whether what asks for an answer ends in a space. If not, a space before an answer is the target's to say."""
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
        """Which of the T tokens lie in the spans of `text`, each span's end token included."""
        mask = np.zeros(len(token_ids), dtype=bool)
        if not len(token_ids):
            return mask
        ends = np.maximum.accumulate(offsets[:, 1])
        # A token begins where the one before it ended: some tokenizers leave the space before a word out of its offsets.
        begins = np.minimum(offsets[:, 0], np.concatenate(([0], ends[:-1])))
        for start, end in spans:
            first = start if self._asks_with_space else len(text[:start].rstrip(" "))
            mask |= (begins >= first) & (begins < end)
            mask[self._end_of_turn(text, end, token_ids, begins)] = True
        return mask

    def _end_of_turn(self, text: str, end: int, token_ids: npt.NDArray[np.int64], begins: npt.NDArray[np.int64]) -> slice:
        """The tokens that end a turn: a special token right behind the answer, or the end token behind white space."""
        first = int(np.searchsorted(begins, end))
        if first < len(begins) and begins[first] == end and int(token_ids[first]) in self._end_ids:
            return slice(first, first + 1)
        behind = end + len(text[end:]) - len(text[end:].lstrip())
        last = int(np.searchsorted(begins, behind))
        if behind > end and last < len(begins) and begins[last] == behind and int(token_ids[last]) == self.eos_id:
            return slice(first, last + 1)
        return slice(0)


def _refused(error: Exception) -> Rejected:
    return Rejected("template", f"the target's chat template refuses it ({' '.join(str(error).split())[:200]})")


class GuardedChat(Chat):
    """A chat that turns away what the target or the drafter cannot tell from something else.

    That is the token that stands for masks, and ids for which the target has no embedding.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        max_length: int,
        template_args: Mapping[str, Any],
        mask_token_id: int,
        vocab_size: int,
    ) -> None:
        super().__init__(tokenizer, max_length, template_args)
        self._mask_token_id = mask_token_id
        self._vocab_size = vocab_size

    def tokenise(self, messages: Sequence[Message]) -> Tokenised | Rejected:
        tokenised = super().tokenise(messages)
        return tokenised if isinstance(tokenised, Rejected) else self._turned_away(tokenised.token_ids) or tokenised

    def prompt_ids(self, messages: Sequence[Message]) -> list[int] | Rejected:
        token_ids = super().prompt_ids(messages)
        return token_ids if isinstance(token_ids, Rejected) else self._turned_away(np.array(token_ids)) or token_ids

    def _turned_away(self, token_ids: npt.NDArray[np.int64]) -> Rejected | None:
        if (token_ids == self._mask_token_id).any():
            return Rejected("mask_token", f"it holds {self._named(self._mask_token_id)}, which stands for masks")
        if token_ids.max(initial=0) >= self._vocab_size:
            return Rejected("malformed", f"it holds {self._named(int(token_ids.max()))}, for which the target has no embedding")
        return None

    def _named(self, token_id: int) -> str:
        return f"token {token_id} ({self._tokenizer.convert_ids_to_tokens(token_id)})"
