"""Where blocks are drafted from, and what each block may see and must guess.

Rules of DFlash's training (arXiv 2602.06036, section 4): anchors are drawn anew at every visit among supervised tokens and sorted,
each document having its fair share (docs/decisions/0012); a block is the clean token at its anchor and masks after it; it sees the
features strictly before its anchor and all of itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.data.batches import TokenBatch


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of one batch.

    `index_AB` is each draft position's place in the batch (clamped to it at the end), `label_AB` the token there, `valid_AB`
    whether the drafter is asked for it: never slot 0, and never past the end of the assistant's turn. `used_A` is False for the
    rest of a constant number of anchors that found no place.
    """

    anchor_A: torch.Tensor
    used_A: torch.Tensor
    index_AB: torch.Tensor
    position_AB: torch.Tensor
    label_AB: torch.Tensor
    valid_AB: torch.Tensor


def generator_for(seed: int, seq: int) -> torch.Generator:
    """A generator that depends on (seed, seq) alone, so that neither threads nor resumes change what is drawn."""
    # An odd multiplier spreads neighbouring pairs over the 64-bit seeds (Knuth's multiplicative hashing).
    return torch.Generator().manual_seed((seed * 0x9E3779B97F4A7C15 + seq) % 2**63)


def draw_anchors(batch: TokenBatch, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` sorted anchors and which of them are used: distinct positions whose token and next token are supervised.

    Documents share them out evenly, and what a short one has no place for goes to the others: no document could have one more
    without taking it from one that has no more than it (max-min fairness). Within a document every place is as likely as any other.
    The draw happens on the CPU, so that every device gets the same anchors.
    """
    supervised_T, document_T = batch.supervised_T.cpu(), batch.document_T.cpu()
    eligible = supervised_T[:-1] & supervised_T[1:] & (document_T[:-1] == document_T[1:])
    places = eligible.nonzero().squeeze(1)
    turn = _turns(document_T[places], batch.samples, generator)
    chosen = places[turn.topk(min(count, len(places)), largest=False, sorted=False).indices].sort().values
    used_A = torch.arange(count) < len(chosen)
    anchor_A = torch.zeros(count, dtype=torch.int64)
    anchor_A[: len(chosen)] = chosen
    return anchor_A, used_A


def _turns(document: torch.Tensor, documents: int, generator: torch.Generator) -> torch.Tensor:
    """When each place is drawn, a number of its own, for places that lie document by document (`document` names each one's).

    Documents draw in rounds, in an order that is drawn too: each draws one of its places a round, as long as it has any.
    """
    size = torch.bincount(document, minlength=documents)
    # The fractions shuffle the places within each document, and no further.
    shuffled = (document + torch.rand(len(document), dtype=torch.float64, generator=generator)).argsort()
    round_ = torch.empty_like(document)
    round_[shuffled] = torch.arange(len(document)) - (size.cumsum(0) - size)[document]
    return round_ * documents + torch.randperm(documents, generator=generator)[document]


def lay_blocks(batch: TokenBatch, anchor_A: torch.Tensor, used_A: torch.Tensor, block_size: int) -> Blocks:
    """The blocks that start at the given anchors of `batch`, on the batch's device."""
    device = batch.token_T.device
    anchor_A, used_A = anchor_A.to(device), used_A.to(device)
    offset_B = torch.arange(block_size, device=device)
    reach_AB = anchor_A[:, None] + offset_B
    index_AB = reach_AB.clamp(max=batch.tokens - 1)
    same_AB = (reach_AB < batch.tokens) & (batch.document_T[index_AB] == batch.document_T[anchor_A][:, None])
    # A gap in supervision ends the block for good: what comes after it is another turn.
    open_AB = (same_AB & batch.supervised_T[index_AB]).cumprod(1).bool()
    return Blocks(
        anchor_A=anchor_A,
        used_A=used_A,
        index_AB=index_AB,
        position_AB=batch.position_T[anchor_A][:, None] + offset_B,
        label_AB=batch.token_T[index_AB],
        valid_AB=open_AB & (offset_B > 0) & used_A[:, None],
    )


def visible(batch: TokenBatch, blocks: Blocks) -> torch.Tensor:
    """The attention mask, bool [Q, T + Q]: True where a draft position may look.

    Context strictly before the block's anchor (the feature *at* the anchor does not exist yet when the block is drafted) and of
    the same document; then the whole of the own block and nothing of any other.
    """
    anchors, size = blocks.index_AB.shape
    place_T = torch.arange(batch.tokens, device=batch.token_T.device)
    before_AT = place_T < blocks.anchor_A[:, None]
    same_AT = batch.document_T == batch.document_T[blocks.anchor_A][:, None]
    context_QT = (before_AT & same_AT & blocks.used_A[:, None]).repeat_interleave(size, 0)
    block_Q = torch.arange(anchors, device=place_T.device).repeat_interleave(size)
    return torch.cat([context_QT, block_Q[:, None] == block_Q], dim=1)
