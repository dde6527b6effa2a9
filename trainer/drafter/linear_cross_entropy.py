"""Cross-entropy through the target's frozen head, without ever holding the logits of all rows.

Logits hidden_RD @ head_VD.T exist for one chunk of rows at a time. Because the head is frozen, the gradient of row r's weighted
loss is w_r times its unit gradient: forward computes the unit gradient while it has the logits, backward only scales it. That is
two matrix products a chunk instead of the three of recomputing the logits in backward.

Shapes: R rows, C rows of a chunk, V vocabulary, D hidden size; 1 is a kept dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Rows whose logits exist at one time: 1,024 of a vocabulary of 152,000 take 0.6 GB in float32.
_CHUNK_ROWS = 1024

# Takes the rows of a chunk and their logits [C, V]; returns their losses [C] and overwrites the logits with the losses' gradients.
LossAndGradient = Callable[[slice, torch.Tensor], torch.Tensor]


def linear_cross_entropy(
    hidden_RD: torch.Tensor, head_VD: torch.Tensor, label_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """-log softmax(head @ hidden)[label] of each row, [R] in float32 or wider; and each row's likeliest token, [R]."""

    def loss_and_gradient(rows: slice, logit_CV: torch.Tensor) -> torch.Tensor:
        label_C1 = label_R[rows, None]
        lse_C1 = logit_CV.logsumexp(1, keepdim=True)
        label_logit_C1 = logit_CV.gather(1, label_C1)
        # d loss / d logit = softmax - onehot
        logit_CV.sub_(lse_C1).exp_().scatter_add_(1, label_C1, -torch.ones_like(label_logit_C1))
        return (lse_C1 - label_logit_C1).squeeze(1)

    return _apply(hidden_RD, head_VD, loss_and_gradient, _CHUNK_ROWS)


def linear_soft_cross_entropy(
    hidden_RD: torch.Tensor, head_VD: torch.Tensor, last_TD: torch.Tensor, source_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """-sum_v p_v log q_v of each row, where p = softmax(head @ last_TD[source_R]) is the target's own distribution.

    Shapes and precision as in `linear_cross_entropy`. The minimum is the entropy of p, where q = p.
    """

    def loss_and_gradient(rows: slice, logit_CV: torch.Tensor) -> torch.Tensor:
        p_CV = (last_TD[source_R[rows]].to(head_VD.dtype) @ head_VD.T).to(logit_CV.dtype)
        p_CV.sub_(p_CV.logsumexp(1, keepdim=True)).exp_()
        lse_C1 = logit_CV.logsumexp(1, keepdim=True)
        expected_logit_C = (p_CV * logit_CV).sum(1)  # not vecdot: autocast makes that bfloat16
        # d loss / d logit = softmax - p
        logit_CV.sub_(lse_C1).exp_().sub_(p_CV)
        return lse_C1.squeeze(1) - expected_logit_C

    # Logits of drafter and target exist at the same time, so half as many rows.
    return _apply(hidden_RD, head_VD, loss_and_gradient, max(1, _CHUNK_ROWS // 2))


def _apply(
    hidden_RD: torch.Tensor, head_VD: torch.Tensor, loss_and_gradient: LossAndGradient, chunk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    loss_R, best_R = _FrozenHeadLoss.apply(hidden_RD, head_VD, loss_and_gradient, chunk)  # type: ignore[no-untyped-call]
    return loss_R, best_R


class _FrozenHeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_RD: torch.Tensor, head_VD: torch.Tensor, loss_and_gradient: LossAndGradient, chunk: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.promote_types(hidden_RD.dtype, torch.float32)
        loss_R = hidden_RD.new_empty(len(hidden_RD), dtype=wide)
        best_R = torch.empty(len(hidden_RD), dtype=torch.int64, device=hidden_RD.device)
        unit_gradient_RD = torch.empty_like(hidden_RD) if ctx.needs_input_grad[0] else None
        for start in range(0, len(hidden_RD), chunk):
            rows = slice(start, start + chunk)
            logit_CV = (hidden_RD[rows].to(head_VD.dtype) @ head_VD.T).to(wide)
            best_R[rows] = logit_CV.argmax(1)
            loss_R[rows] = loss_and_gradient(rows, logit_CV)
            if unit_gradient_RD is not None:
                unit_gradient_RD[rows] = (logit_CV.to(head_VD.dtype) @ head_VD).to(unit_gradient_RD.dtype)
        if unit_gradient_RD is not None:
            ctx.save_for_backward(unit_gradient_RD)
        ctx.mark_non_differentiable(best_R)
        return loss_R, best_R

    @staticmethod
    def backward(ctx: Any, weight_R: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (unit_gradient_RD,) = ctx.saved_tensors
        return unit_gradient_RD * weight_R[:, None].to(unit_gradient_RD.dtype), None, None, None
