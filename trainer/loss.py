"""Station 5. Features and anchors in, the loss out, with what it says about drafting.

Decay-weighted cross-entropy: sum_k w_k m_k CE_k / sum_k w_k m_k with w_k = exp(-(k - 1) / gamma), k = 1 … B-1 (arXiv 2602.06036).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from trainer.anchors import Blocks, visible
from trainer.drafter import Drafter
from trainer.target import FeatureBatch, TargetWeights

# Rows whose logits exist at one time: 1,024 of a vocabulary of 152,000 take 0.6 GB in float32.
_CHUNK_ROWS = 1024


def decay_for(block_size: int) -> float:
    """The gamma, in tokens, that goes with a block size: 4, 5, 7 for 8, 10, 16 (the paper's), and on the lines through these."""
    return block_size / 2 if block_size <= 10 else 5 + (block_size - 10) / 3


@dataclass(frozen=True, slots=True)
class LossParts:
    """Sums over one batch, so that batches can be added up before anything is divided.

    `weighted` carries the gradient. By position k = 1 … B-1: `hit` right guesses and `asked` guesses; `kept` blocks right up to
    and with k, `at_risk` blocks right up to k-1 that were asked for k.
    """

    weighted: torch.Tensor
    weight: torch.Tensor
    hit: torch.Tensor
    asked: torch.Tensor
    kept: torch.Tensor
    at_risk: torch.Tensor

    def numbers(self) -> torch.Tensor:
        """All of it in one float64 vector [2 + 4 (B-1)] without gradient: one transfer from the device instead of six."""
        return torch.cat([part.detach().double().reshape(-1) for part in self._parts()])

    def _parts(self) -> tuple[torch.Tensor, ...]:
        return self.weighted, self.weight, self.hit, self.asked, self.kept, self.at_risk


def drafter_loss(drafter: Drafter, target: TargetWeights, features: FeatureBatch, blocks: Blocks, gamma: float) -> LossParts:
    """The loss of one batch at the given blocks, all on the drafter's device."""
    batch = features.batch
    block_AB = torch.full_like(blocks.label_AB, drafter.mask_token_id)
    block_AB[:, 0] = blocks.label_AB[:, 0]
    draft_QD = F.embedding(block_AB.flatten(), target.embedding_VD)
    hidden_QD = drafter(
        features.feature_TF,
        batch.position_T,
        # In bfloat16 the residual stream would round away what the layers add to it.
        draft_QD.to(torch.promote_types(draft_QD.dtype, torch.float32)),
        blocks.position_AB.flatten(),
        visible(batch, blocks),
    )
    guess_ABD = hidden_QD.view(*blocks.label_AB.shape, -1)[:, 1:]
    label_AB, valid_AB = blocks.label_AB[:, 1:], blocks.valid_AB[:, 1:]
    entropy, best = frozen_head_cross_entropy(guess_ABD.flatten(0, 1), target.head_VD, label_AB.flatten())
    decay_B = torch.exp(-torch.arange(label_AB.shape[1], device=label_AB.device) / gamma)
    weight_AB = decay_B * valid_AB
    right_AB = (best.view_as(label_AB) == label_AB) & valid_AB
    kept_AB = right_AB.cumprod(1).bool()
    alive_AB = torch.cat([torch.ones_like(kept_AB[:, :1]), kept_AB[:, :-1]], dim=1)
    return LossParts(
        weighted=(entropy.view_as(weight_AB) * weight_AB).sum(),
        weight=weight_AB.sum(),
        hit=right_AB.sum(0),
        asked=valid_AB.sum(0),
        kept=kept_AB.sum(0),
        at_risk=(alive_AB & valid_AB).sum(0),
    )


def estimated_acceptance_length(kept: list[float], at_risk: list[float]) -> float:
    """Tokens kept per round, the bonus token included: 1 + sum_k prod_{i <= k} P(i right | all before it right).

    The product of conditional shares (Kaplan and Meier's estimator) uses blocks that the end of a turn cuts short for as far as
    they go.
    """
    length, survival = 1.0, 1.0
    for here, before in zip(kept, at_risk, strict=True):
        survival *= here / before if before else 0.0
        length += survival
    return length


def frozen_head_cross_entropy(
    hidden_RD: torch.Tensor, head_VD: torch.Tensor, label_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy per row in float32 [R] and the likeliest token per row [R], for logits hidden_RD @ head_VD.T.

    The logits exist for a chunk of rows at a time. As the head is frozen, the gradient of a row is its unit gradient times whatever
    weight comes back, so that forward makes it once and backward only scales it: two products instead of three.
    """
    entropy_R, best_R = _FrozenHeadCrossEntropy.apply(hidden_RD, head_VD, label_R)  # type: ignore[no-untyped-call]
    return entropy_R, best_R


class _FrozenHeadCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_RD: torch.Tensor, head_VD: torch.Tensor, label_R: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.promote_types(hidden_RD.dtype, torch.float32)
        entropy_R = hidden_RD.new_empty(len(hidden_RD), dtype=wide)
        best_R = torch.empty_like(label_R)
        slope_RD = torch.empty_like(hidden_RD) if ctx.needs_input_grad[0] else None
        for start in range(0, len(hidden_RD), _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            logit_CV = (hidden_RD[rows].to(head_VD.dtype) @ head_VD.T).to(wide)
            best_R[rows] = logit_CV.argmax(1)
            total_C1 = logit_CV.logsumexp(1, keepdim=True)
            wanted_C1 = logit_CV.gather(1, label_R[rows, None])
            entropy_R[rows] = (total_C1 - wanted_C1).squeeze(1)
            if slope_RD is not None:
                share_CV = logit_CV.sub_(total_C1).exp_()
                share_CV.scatter_add_(1, label_R[rows, None], -torch.ones_like(wanted_C1))
                slope_RD[rows] = (share_CV.to(head_VD.dtype) @ head_VD).to(slope_RD.dtype)
        if slope_RD is not None:
            ctx.save_for_backward(slope_RD)
        ctx.mark_non_differentiable(best_R)
        return entropy_R, best_R

    @staticmethod
    def backward(ctx: Any, weight_R: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (slope_RD,) = ctx.saved_tensors
        return slope_RD * weight_R[:, None].to(slope_RD.dtype), None, None
