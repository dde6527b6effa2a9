"""Features and anchors in, the loss out, with what it says about drafting.

A batch's loss is sum_k w_k loss_k over its guesses k = 1 … B-1, to be divided by a weight. Three objectives (docs/decisions/0011):
cross-entropy with the data's tokens and a decay w_k = exp(-(k - 1) / gamma), divided by sum_k w_k (arXiv 2602.06036); the same
with weights that follow the drafter, divided by the number of blocks (D-PACE, arXiv 2605.18810); and soft cross-entropy with the
target's own distribution, decayed and divided like the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from trainer.config import LossConfig
from trainer.drafter.anchors import Blocks, visible
from trainer.drafter.linear_cross_entropy import cross_entropy, soft_cross_entropy
from trainer.drafter.model import Drafter
from trainer.target.features import FeatureBatch, TargetWeights


def decay_for(block_size: int) -> float:
    """The gamma, in tokens, that goes with a block size: 4, 5, 7 for 8, 10, 16 (the paper's), and on the lines through these."""
    return block_size / 2 if block_size <= 10 else 5 + (block_size - 10) / 3


@dataclass(frozen=True, slots=True)
class LossParts:
    """Sums over one batch, so that batches can be added up before anything is divided.

    `weighted` carries the gradient and is to be divided by `weight`. By position k = 1 … B-1: `hit` right guesses and `asked`
    guesses; `kept` blocks right up to and with k, `at_risk` blocks right up to k-1 that were asked for k.
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


def drafter_loss(drafter: Drafter, target: TargetWeights, features: FeatureBatch, blocks: Blocks, config: LossConfig) -> LossParts:
    """The loss of one batch at the given blocks, all on the drafter's device.

    Whatever the objective, a guess is right where it equals the data's token: accuracies of all three compare with each other.
    """
    guess_ABD = _draft(drafter, target, features, blocks)[:, 1:]
    label_AB, valid_AB = blocks.label_AB[:, 1:], blocks.valid_AB[:, 1:]
    if config.objective == "distillation":
        if features.last_TD is None:
            raise ValueError("distillation needs the target's last hidden states, and these features came without")
        # What the target says of the token at anchor + k stands one place before it.
        place_AB = blocks.index_AB[:, :-1]
        entropy, best = soft_cross_entropy(guess_ABD.flatten(0, 1), target.head_VD, features.last_TD, place_AB.flatten())
    else:
        entropy, best = cross_entropy(guess_ABD.flatten(0, 1), target.head_VD, label_AB.flatten())
    entropy_AB = entropy.view_as(label_AB)
    if config.objective == "dpace":
        weight_AB = dpace_weights(entropy_AB.detach(), valid_AB, config.dpace_alpha)
        weight = valid_AB.any(1).sum()
    else:
        gamma = config.gamma or decay_for(blocks.label_AB.shape[1])
        weight_AB = torch.exp(-torch.arange(label_AB.shape[1], device=label_AB.device) / gamma) * valid_AB
        weight = weight_AB.sum()
    right_AB = (best.view_as(label_AB) == label_AB) & valid_AB
    return _parts((entropy_AB * weight_AB).sum(), weight, right_AB, valid_AB)


def dpace_weights(entropy_AB: torch.Tensor, valid_AB: torch.Tensor, alpha: float) -> torch.Tensor:
    """D-PACE's weight of each guess, [A, B-1], 0 where nothing is asked: w_j = sum_{m >= j} prod_{i <= m} s_i.

    s = (1 - alpha) q + alpha with q = exp(-cross-entropy), the chance that the drafter gives the right token: the product is about
    the chance that the block is kept up to m, and w_j how much of the kept length hangs on guess j (arXiv 2605.18810, equations 7
    and 8). Sums end with the block. To be called with what carries no gradient: the weights are constants.
    """
    smooth_AB = torch.where(valid_AB, (1 - alpha) * torch.exp(-entropy_AB) + alpha, 1)
    kept_AB = smooth_AB.cumprod(1) * valid_AB
    return kept_AB.flip(1).cumsum(1).flip(1) * valid_AB


def _draft(drafter: Drafter, target: TargetWeights, features: FeatureBatch, blocks: Blocks) -> torch.Tensor:
    """The drafter's hidden states for each block, [A, B, D]: it is given the token at the anchor and masks after it."""
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
    return hidden_QD.view(*blocks.label_AB.shape, -1)  # type: ignore[no-any-return]


def _parts(weighted: torch.Tensor, weight: torch.Tensor, right_AB: torch.Tensor, valid_AB: torch.Tensor) -> LossParts:
    kept_AB = right_AB.cumprod(1).bool()
    alive_AB = torch.cat([torch.ones_like(kept_AB[:, :1]), kept_AB[:, :-1]], dim=1)
    return LossParts(
        weighted=weighted,
        weight=weight,
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
