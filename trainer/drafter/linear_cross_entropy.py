"""Hidden states of draft positions through the target's head: a loss for each row and its likeliest token.

Logits hidden_RD @ head_VD.T exist for a chunk of rows at a time (R rows, C of a chunk). As the head is frozen, the gradient of a
row's loss is its unit gradient times whatever weight comes back, so that forward makes it once and backward only scales it: two
products instead of three.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Rows whose logits exist at one time: 1,024 of a vocabulary of 152,000 take 0.6 GB in float32.
_CHUNK_ROWS = 1024

# The losses [C] of some rows by their logits, which it turns into the gradients of those losses in place.
Judge = Callable[[slice, torch.Tensor], torch.Tensor]


def cross_entropy(hidden_RD: torch.Tensor, head_VD: torch.Tensor, label_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """-log q(label) for each row, in float32 at least, [R]; and the likeliest token of each row, [R]."""

    def judge(rows: slice, logit_CV: torch.Tensor) -> torch.Tensor:
        label_C1 = label_R[rows, None]
        total_C1 = logit_CV.logsumexp(1, keepdim=True)
        wanted_C1 = logit_CV.gather(1, label_C1)
        logit_CV.sub_(total_C1).exp_().scatter_add_(1, label_C1, -torch.ones_like(wanted_C1))
        return (total_C1 - wanted_C1).squeeze(1)

    return _judged(hidden_RD, head_VD, judge, _CHUNK_ROWS)


def soft_cross_entropy(
    hidden_RD: torch.Tensor, head_VD: torch.Tensor, last_TD: torch.Tensor, place_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """-sum_v p_v log q_v for each row, with p = softmax(head @ last_TD[place_R]), the target's own distribution at that place.

    Shapes and precision as `cross_entropy`. The least a row can come to is the entropy of its p, where q = p.
    """

    def judge(rows: slice, logit_CV: torch.Tensor) -> torch.Tensor:
        share_CV = (last_TD[place_R[rows]].to(head_VD.dtype) @ head_VD.T).to(logit_CV.dtype)
        share_CV.sub_(share_CV.logsumexp(1, keepdim=True)).exp_()
        total_C1 = logit_CV.logsumexp(1, keepdim=True)
        wanted_C = (share_CV * logit_CV).sum(1)  # not vecdot: autocast makes that bfloat16
        logit_CV.sub_(total_C1).exp_().sub_(share_CV)
        return total_C1.squeeze(1) - wanted_C

    # Both models' logits exist at a time, so half of the rows.
    return _judged(hidden_RD, head_VD, judge, max(1, _CHUNK_ROWS // 2))


def _judged(hidden_RD: torch.Tensor, head_VD: torch.Tensor, judge: Judge, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
    loss_R, best_R = _FrozenHead.apply(hidden_RD, head_VD, judge, chunk)  # type: ignore[no-untyped-call]
    return loss_R, best_R


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_RD: torch.Tensor, head_VD: torch.Tensor, judge: Judge, chunk: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.promote_types(hidden_RD.dtype, torch.float32)
        loss_R = hidden_RD.new_empty(len(hidden_RD), dtype=wide)
        best_R = torch.empty(len(hidden_RD), dtype=torch.int64, device=hidden_RD.device)
        slope_RD = torch.empty_like(hidden_RD) if ctx.needs_input_grad[0] else None
        for start in range(0, len(hidden_RD), chunk):
            rows = slice(start, start + chunk)
            logit_CV = (hidden_RD[rows].to(head_VD.dtype) @ head_VD.T).to(wide)
            best_R[rows] = logit_CV.argmax(1)
            loss_R[rows] = judge(rows, logit_CV)
            if slope_RD is not None:
                slope_RD[rows] = (logit_CV.to(head_VD.dtype) @ head_VD).to(slope_RD.dtype)
        if slope_RD is not None:
            ctx.save_for_backward(slope_RD)
        ctx.mark_non_differentiable(best_R)
        return loss_R, best_R

    @staticmethod
    def backward(ctx: Any, weight_R: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (slope_RD,) = ctx.saved_tensors
        return slope_RD * weight_R[:, None].to(slope_RD.dtype), None, None, None
