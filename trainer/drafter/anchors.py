"""Anchors and blocks: the positions from which blocks are drafted, and what each block may see and must guess.

DFlash's rules for training (arXiv 2602.06036, section 4): anchors are drawn anew at every visit among supervised tokens, shared
out fairly among documents (docs/decisions/0012) and sorted; a block is the clean token at its anchor and masks after it; it sees
the features strictly before its anchor, and all of itself.

Shapes: T context tokens of a batch, A anchors, B block size, Q = A x B draft positions, K = T + Q keys, P eligible positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.data.batches import TokenBatch


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of one batch, as many for every batch so that shapes stay constant."""

    anchor_A: torch.Tensor
    """Index in the batch from which each block is drafted; rising, then 0 for unused blocks."""
    used_A: torch.Tensor
    """False for blocks left over because the batch has fewer eligible positions than anchors."""
    index_AB: torch.Tensor
    """Index in the batch of each draft position, clamped to the batch's last token."""
    position_AB: torch.Tensor
    """Position of each within its document, for RoPE."""
    label_AB: torch.Tensor
    """The token at `index_AB`."""
    valid_AB: torch.Tensor
    """Whether the drafter must guess it: never slot 0, never past the end of the assistant's turn."""


def generator_for(seed: int, seq: int) -> torch.Generator:
    """A random generator that depends on (seed, seq) alone: neither threads nor a resume change what is drawn."""
    # An odd multiplier spreads neighbouring pairs over the 64-bit seeds (Knuth's multiplicative hashing).
    return torch.Generator().manual_seed((seed * 0x9E3779B97F4A7C15 + seq) % 2**63)


def draw_anchors(batch: TokenBatch, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` sorted anchors and which of them are used: `anchor_A` and `used_A` of `Blocks`.

    Eligible is a supervised token whose next token is supervised and of the same document. Documents share the anchors by max-min
    fairness: no document could have one more without taking it from one that has no more than it. Within a document all eligible
    positions are equally likely. Drawn on the CPU, so that every device gets the same anchors.
    """
    supervised_T, document_T = batch.supervised_T.cpu(), batch.document_T.cpu()
    eligible_T = supervised_T[:-1] & supervised_T[1:] & (document_T[:-1] == document_T[1:])
    index_P = eligible_T.nonzero().squeeze(1)
    turn_P = _round_robin(document_T[index_P], batch.samples, generator)
    drawn = index_P[turn_P.topk(min(count, len(index_P)), largest=False, sorted=False).indices].sort().values
    used_A = torch.arange(count) < len(drawn)
    anchor_A = torch.zeros(count, dtype=torch.int64)
    anchor_A[: len(drawn)] = drawn
    return anchor_A, used_A


def _round_robin(document_P: torch.Tensor, documents: int, generator: torch.Generator) -> torch.Tensor:
    """The turn at which each position is drawn, all distinct: documents take turns in a random order, a position each.

    Positions lie document by document; `document_P` names each one's. Example: positions a0 a1 a2 b0 of documents a, a, a, b.

        rank within the document    0  1  2  0    (random within each document)
        order of the documents      b, a          (random)
        turn = rank x 2 + order     a0 = 1, a1 = 3, a2 = 5, b0 = 0

    Three anchors are the three lowest turns, b0, a0, a1: every document once before any twice.
    """
    size = torch.bincount(document_P, minlength=documents)
    # Sorting by document plus a fraction shuffles the positions within each document and no further.
    shuffled_P = (document_P + torch.rand(len(document_P), dtype=torch.float64, generator=generator)).argsort()
    rank_P = torch.empty_like(document_P)
    rank_P[shuffled_P] = torch.arange(len(document_P)) - (size.cumsum(0) - size)[document_P]
    return rank_P * documents + torch.randperm(documents, generator=generator)[document_P]


def build_blocks(batch: TokenBatch, anchor_A: torch.Tensor, used_A: torch.Tensor, block_size: int) -> Blocks:
    """The blocks that start at the given anchors of `batch`, on the batch's device."""
    device = batch.token_T.device
    anchor_A, used_A = anchor_A.to(device), used_A.to(device)
    offset_B = torch.arange(block_size, device=device)
    reach_AB = anchor_A[:, None] + offset_B
    index_AB = reach_AB.clamp(max=batch.tokens - 1)
    same_document_AB = (reach_AB < batch.tokens) & (batch.document_T[index_AB] == batch.document_T[anchor_A][:, None])
    # A gap in supervision ends the block for good: what follows it belongs to another turn.
    in_turn_AB = (same_document_AB & batch.supervised_T[index_AB]).cumprod(1).bool()
    return Blocks(
        anchor_A=anchor_A,
        used_A=used_A,
        index_AB=index_AB,
        position_AB=batch.position_T[anchor_A][:, None] + offset_B,
        label_AB=batch.token_T[index_AB],
        valid_AB=in_turn_AB & (offset_B > 0) & used_A[:, None],
    )


def attention_mask(batch: TokenBatch, blocks: Blocks) -> torch.Tensor:
    """The mask of training, bool [Q, K]: True where a draft position may attend.

    Of the context, what lies strictly before the block's anchor in the same document: when the block is drafted, the feature *at*
    the anchor does not exist yet. Of the draft positions, the whole of the own block and nothing of any other.
    """
    anchors, size = blocks.index_AB.shape
    index_T = torch.arange(batch.tokens, device=batch.token_T.device)
    before_AT = index_T < blocks.anchor_A[:, None]
    same_document_AT = batch.document_T == batch.document_T[blocks.anchor_A][:, None]
    context_QT = (before_AT & same_document_AT & blocks.used_A[:, None]).repeat_interleave(size, 0)
    block_Q = torch.arange(anchors, device=index_T.device).repeat_interleave(size)
    return torch.cat([context_QT, block_Q[:, None] == block_Q], dim=1)
