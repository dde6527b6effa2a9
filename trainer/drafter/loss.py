"""The loss of a batch of blocks under each objective, and the counts from which acceptance is estimated.

A batch's loss is sum_k w_k loss_k over its guesses k = 1 … B-1, to be divided by a weight. Three objectives (docs/decisions/0011;
units: `LOSS_UNITS`):

    cross_entropy   loss_k = -log q(data's token)    w_k = exp(-(k - 1) / gamma)        weight = sum_k w_k   arXiv 2602.06036
    dpace           loss_k = -log q(data's token)    w_k follows the drafter, below     weight = blocks      arXiv 2605.18810
    distillation    loss_k = -sum_v p_v log q_v      w_k = exp(-(k - 1) / gamma)        weight = sum_k w_k   p is the target's

Shapes: A anchors, B block size (B-1 guesses where a tensor begins at slot 1), Q = A x B draft positions, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from trainer.config import LossConfig
from trainer.drafter.anchors import Blocks, attention_mask
from trainer.drafter.linear_cross_entropy import linear_cross_entropy, linear_soft_cross_entropy
from trainer.drafter.model import Drafter
from trainer.target.features import FeatureBatch, TargetWeights


def default_gamma(block_size: int) -> float:
    """The decay gamma, in tokens, for a block size: the paper's 4, 5, 7 for 8, 10, 16, and the straight lines through these."""
    return block_size / 2 if block_size <= 10 else 5 + (block_size - 10) / 3


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over one batch, so that batches can be added up before anything is divided.

    `loss_sum` carries the gradient and is to be divided by `weight`. The rest, [B-1] each, counts by position k = 1 … B-1.
    """

    loss_sum: torch.Tensor
    weight: torch.Tensor
    hit: torch.Tensor
    """Right guesses."""
    asked: torch.Tensor
    """Guesses."""
    kept: torch.Tensor
    """Blocks right up to k, k included: verification would keep k."""
    at_risk: torch.Tensor
    """Blocks right up to k-1 that have a guess at k: the denominator of `kept`."""

    def packed(self) -> torch.Tensor:
        """[loss_sum, weight, hit(B-1), asked(B-1), kept(B-1), at_risk(B-1)], float64 without gradient: one transfer for all."""
        parts = (self.loss_sum, self.weight, self.hit, self.asked, self.kept, self.at_risk)
        return torch.cat([part.detach().double().reshape(-1) for part in parts])


def drafter_loss(drafter: Drafter, target: TargetWeights, features: FeatureBatch, blocks: Blocks, config: LossConfig) -> LossSums:
    """The loss of one batch at the given blocks, all on the drafter's device.

    Under every objective a guess is right where it equals the data's token, so that accuracies compare across objectives.
    """
    hidden_ABD = _draft_hidden_states(drafter, target, features, blocks)[:, 1:]
    label_AB, valid_AB = blocks.label_AB[:, 1:], blocks.valid_AB[:, 1:]
    if config.objective == "distillation":
        if features.last_TD is None:
            raise ValueError("distillation needs the target's last hidden states, and these features came without")
        # The target's distribution of token t comes from its hidden state at t - 1.
        source_AB = blocks.index_AB[:, :-1]
        loss, best = linear_soft_cross_entropy(hidden_ABD.flatten(0, 1), target.head_VD, features.last_TD, source_AB.flatten())
    else:
        loss, best = linear_cross_entropy(hidden_ABD.flatten(0, 1), target.head_VD, label_AB.flatten())
    loss_AB = loss.view_as(label_AB)
    if config.objective == "dpace":
        weight_AB = dpace_weights(loss_AB.detach(), valid_AB, config.dpace_alpha)
        weight = valid_AB.any(1).sum()
    else:
        gamma = config.gamma or default_gamma(blocks.label_AB.shape[1])
        weight_AB = torch.exp(-torch.arange(label_AB.shape[1], device=label_AB.device) / gamma) * valid_AB
        weight = weight_AB.sum()
    right_AB = (best.view_as(label_AB) == label_AB) & valid_AB
    return _count((loss_AB * weight_AB).sum(), weight, right_AB, valid_AB)


def dpace_weights(loss_AB: torch.Tensor, valid_AB: torch.Tensor, alpha: float) -> torch.Tensor:
    """D-PACE's weight of each guess, [A, B-1], 0 where there is none (arXiv 2605.18810, equations 7 and 8).

    `loss_AB` is the cross-entropy of each guess, without gradient: the weights are constants. Sums end with the block.
    """
    # s_k = (1 - alpha) q_k + alpha, where q_k = exp(-loss_k) is the drafter's probability of the right token
    smooth_AB = torch.where(valid_AB, (1 - alpha) * torch.exp(-loss_AB) + alpha, 1)
    # c_m = prod_{k <= m} s_k: about the probability that verification keeps the block up to m
    kept_AB = smooth_AB.cumprod(1) * valid_AB
    # w_j = sum_{m >= j} c_m: how much of the expected accepted length depends on guess j
    return kept_AB.flip(1).cumsum(1).flip(1) * valid_AB


def _draft_hidden_states(drafter: Drafter, target: TargetWeights, features: FeatureBatch, blocks: Blocks) -> torch.Tensor:
    """The drafter's hidden states [A, B, D], given the clean token at each anchor and masks after it."""
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
        attention_mask(batch, blocks),
    )
    return hidden_QD.view(*blocks.label_AB.shape, -1)  # type: ignore[no-any-return]


def _count(loss_sum: torch.Tensor, weight: torch.Tensor, right_AB: torch.Tensor, valid_AB: torch.Tensor) -> LossSums:
    kept_AB = right_AB.cumprod(1).bool()
    kept_before_AB = torch.cat([torch.ones_like(kept_AB[:, :1]), kept_AB[:, :-1]], dim=1)
    return LossSums(
        loss_sum=loss_sum,
        weight=weight,
        hit=right_AB.sum(0),
        asked=valid_AB.sum(0),
        kept=kept_AB.sum(0),
        at_risk=(kept_before_AB & valid_AB).sum(0),
    )


def estimated_acceptance_length(kept: list[float], at_risk: list[float]) -> float:
    """Tokens kept per round, the bonus token included: 1 + sum_k prod_{i <= k} P(i right | all before it right).

    Each conditional probability is kept_i / at_risk_i (Kaplan and Meier's estimator), so that blocks cut short by the end of a
    turn count as far as they go (docs/decisions/0009).
    """
    length, survival = 1.0, 1.0
    for kept_here, at_risk_here in zip(kept, at_risk, strict=True):
        survival *= kept_here / at_risk_here if at_risk_here else 0.0
        length += survival
    return length
