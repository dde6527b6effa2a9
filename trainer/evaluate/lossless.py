"""Checks losslessness: finds where a drafted answer diverges from the target's own, and whether rounding explains it.

Speculative decoding does not change greedy text. But a forward pass over more tokens sums in another order, so where the target's
logits of two tokens are equal up to rounding, either may be chosen. Where they clearly differ, another token is a bug. Rounding is
therefore measured rather than assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from trainer.decoding.speculative import CachedTarget

# Rounding is measured over this many last tokens, and may be exceeded by this factor: verified blocks had other sizes.
_MEASURED_TOKENS = 16
_TOLERANCE = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first position, counted from 0 in the answer, at which a drafted answer differs from the target's own.

    A token is None where its answer had ended. `logit_gap` is the logit of the target's own token less that of the other, in one
    pass over the common text; below 0, that pass prefers the other. `rounding` is the largest change of a logit if the last tokens
    are read one by one instead.
    """

    position: int
    token: int | None
    target_token: int | None
    logit_gap: float | None
    rounding: float

    @property
    def is_rounding(self) -> bool:
        """Whether rounding explains it: both tokens have the same logit as far as the target's precision can tell."""
        return self.logit_gap is not None and abs(self.logit_gap) <= _TOLERANCE * self.rounding


def find_divergence(
    model: PreTrainedModel, prompt_ids: Sequence[int], drafted: Sequence[int], alone: Sequence[int]
) -> Divergence | None:
    """Where the greedy answers `drafted` and `alone` diverge; None where they are the same, token for token."""
    if list(drafted) == list(alone):
        return None
    common = 0
    while common < min(len(drafted), len(alone)) and drafted[common] == alone[common]:
        common += 1
    token, target_token = (answer[common] if common < len(answer) else None for answer in (drafted, alone))
    logit_V, rounding = _logits_and_rounding(model, [*prompt_ids, *alone[:common]])
    both = token is not None and target_token is not None
    return Divergence(
        position=common,
        token=token,
        target_token=target_token,
        logit_gap=float(logit_V[target_token] - logit_V[token]) if both else None,
        rounding=rounding,
    )


@torch.no_grad()
def _logits_and_rounding(model: PreTrainedModel, token_ids: Sequence[int]) -> tuple[torch.Tensor, float]:
    """The target's logits [V] after a text read in one pass, and the largest change of one if its end is read token by token."""
    count = min(_MEASURED_TOKENS, len(token_ids) - 1)
    at_once_TV = CachedTarget(model).forward(token_ids, keep=count + 1).float()
    smallest = float(at_once_TV.abs().max()) * torch.finfo(model.dtype).eps
    stepwise = CachedTarget(model)
    rows = [stepwise.forward(token_ids[: len(token_ids) - count], keep=1)]
    rows += [stepwise.forward([token]) for token in token_ids[len(token_ids) - count :]]
    return at_once_TV[-1], max(smallest, float((at_once_TV - torch.cat(rows).float()).abs().max()))
