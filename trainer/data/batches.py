"""Packs samples end to end into batches under a token budget; positions start at 0 in each document.

Shape legend, here and in later stages: T tokens of a batch, A anchors, B block size, Q = A x B draft positions, D hidden size,
F = K x D features of K tapped layers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from trainer.data.samples import Sample


class Cursor(NamedTuple):
    """The first conversation that no batch has used yet: a resume continues reading here."""

    epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Samples end to end. `document_T` numbers them from 0; `position_T` starts at 0 in each. `samples` is their number."""

    seq: int
    token_T: torch.Tensor
    supervised_T: torch.Tensor
    position_T: torch.Tensor
    document_T: torch.Tensor
    samples: int
    after: Cursor

    @property
    def tokens(self) -> int:
        return len(self.token_T)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.token_T, self.supervised_T, self.position_T, self.document_T))

    def to(self, device: torch.device) -> TokenBatch:
        return replace(
            self,
            token_T=self.token_T.to(device),
            supervised_T=self.supervised_T.to(device),
            position_T=self.position_T.to(device),
            document_T=self.document_T.to(device),
        )


def pack(samples: Iterator[Sample], *, token_budget: int, first_seq: int = 0) -> Iterator[TokenBatch]:
    """Fill each batch in the samples' order until the next one does not fit; a sample over the budget gets a batch of its own.

    A batch therefore depends only on the samples before it, and a resume needs only the cursor and the next batch's number.
    """
    held: list[Sample] = []
    tokens, seq = 0, first_seq
    for sample in samples:
        if held and tokens + len(sample.token_ids) > token_budget:
            yield batch_of(held, seq, Cursor(sample.epoch, sample.position))
            held, tokens, seq = [], 0, seq + 1
        held.append(sample)
        tokens += len(sample.token_ids)
    if held:
        last = held[-1]
        yield batch_of(held, seq, Cursor(last.epoch, last.position + 1))


def batch_of(samples: list[Sample], seq: int, after: Cursor) -> TokenBatch:
    """One batch of these samples, however many tokens they have."""
    lengths = torch.tensor([len(sample.token_ids) for sample in samples])
    return TokenBatch(
        seq=seq,
        token_T=torch.cat([torch.as_tensor(sample.token_ids, dtype=torch.int64) for sample in samples]),
        supervised_T=torch.cat([torch.as_tensor(sample.loss_mask, dtype=torch.bool) for sample in samples]),
        position_T=torch.cat([torch.arange(int(length)) for length in lengths]),
        document_T=torch.repeat_interleave(torch.arange(len(samples)), lengths),
        samples=len(samples),
        after=after,
    )
