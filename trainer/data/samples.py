"""Reads conversations in each epoch's order and tokenises them into samples.

The order is a pure function of (number of conversations, seed, epoch), so that reading can continue anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
import torch

from trainer.data.chat_template import Chat, Tokenised
from trainer.data.conversations import Message, Rejected, to_messages

OnDrop = Callable[[str, str], object]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One tokenised conversation: `token_ids` [T] int64, `loss_mask` [T] bool, and where it comes from.

    `index` is its row in the dataset, `position` its position in the order of `epoch`.
    """

    token_ids: torch.Tensor
    loss_mask: torch.Tensor
    index: int
    epoch: int
    position: int

    @property
    def nbytes(self) -> int:
        return self.token_ids.nbytes + self.loss_mask.nbytes


@dataclass(frozen=True, slots=True)
class Visit:
    """One conversation, read once per epoch; `index` and `position` as in `Sample`."""

    row: dict[str, Any]
    index: int
    epoch: int
    position: int


def epoch_order(size: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order of the rows in one epoch: a permutation of 0 … size-1, the same on every machine.

    Each row draws 64 bits from Philox, and the draws are sorted. numpy promises never to change Philox's stream; its `permutation`
    comes without that promise.
    """
    draws = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(size)
    return np.argsort(draws, kind="stable").astype(np.int64)


@dataclass(frozen=True, slots=True)
class Visits:
    """Every conversation once per epoch, in that epoch's order, from (epoch, position) `start` to the end of the last epoch."""

    dataset: datasets.Dataset
    seed: int
    epochs: int
    start: tuple[int, int] = (0, 0)

    def __iter__(self) -> Iterator[Visit]:
        first_epoch, first_position = self.start
        for epoch in range(first_epoch, self.epochs):
            order = epoch_order(len(self.dataset), self.seed, epoch)
            for position in range(first_position, len(order)):
                index = int(order[position])
                yield Visit(self.dataset[index], index, epoch, position)
            first_position = 0


class Tokeniser:
    """The stage that tokenises. Conversations that teach nothing are dropped.

    `on_drop(reason, example)` is called for each dropped conversation, on its first visit only: `reason` is one of `DROP_REASONS`,
    `example` names the conversation and what is wrong with it.
    """

    def __init__(self, chat: Chat, on_drop: OnDrop) -> None:
        self._chat = chat
        self._on_drop = on_drop
        self._dropped: set[int] = set()

    def __call__(self, visits: Iterator[Visit]) -> Iterator[Sample]:
        for visit in visits:
            tokenised = tokenise(self._chat, visit.row)
            if isinstance(tokenised, Rejected):
                self._drop(visit.index, tokenised)
                continue
            tensors = torch.from_numpy(tokenised.token_ids), torch.from_numpy(tokenised.loss_mask)
            yield Sample(*tensors, index=visit.index, epoch=visit.epoch, position=visit.position)

    def _drop(self, index: int, rejected: Rejected) -> None:
        if index not in self._dropped:
            self._dropped.add(index)
            self._on_drop(rejected.reason, f"conversation {index}: {rejected.detail}")


def tokenise(chat: Chat, row: dict[str, Any]) -> Tokenised | Rejected:
    """Token ids and loss mask of one row, or why nothing can be learnt from it."""
    messages = to_messages(row)
    return messages if isinstance(messages, Rejected) else tokenise_messages(chat, messages)


def tokenise_messages(chat: Chat, messages: Sequence[Message]) -> Tokenised | Rejected:
    """Token ids and loss mask of one conversation, or why nothing can be learnt from it."""
    tokenised = chat.tokenise(messages)
    if isinstance(tokenised, Rejected) or tokenised.learnable:
        return tokenised
    return Rejected("no_answer", "no two tokens of an answer follow each other in the part that is kept")
