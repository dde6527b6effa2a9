"""Whether drafted text is the target's own: two answers to one prompt in, where and how far they diverge out.

Speculative decoding changes no greedy text, but a longer pass adds in another order: where the target likes two tokens equally
well, up to rounding, either may come. Where it clearly prefers one, another token is a bug. So rounding is measured, not guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from trainer.decoding.speculative import CachedTarget

# Newest tokens over which rounding is measured. The blocks that were verified are of other sizes: hence some slack.
_REREAD = 16
_SLACK = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first place, counted from 0 in the answer, where a drafted answer differs from the target's own.

    A token is None where its answer had ended. `logit_gap` is by how much the target prefers its own token when it reads the common
    text in one pass; below 0 it then prefers the other. `rounding` is the most by which a logit changes if it is read in portions.
    """

    position: int
    token: int | None
    target_token: int | None
    logit_gap: float | None
    rounding: float

    @property
    def is_rounding(self) -> bool:
        """Whether rounding explains it: the target likes both tokens equally well, as far as its numbers can tell."""
        return self.logit_gap is not None and abs(self.logit_gap) <= _SLACK * self.rounding


def find_divergence(
    model: PreTrainedModel, prompt_ids: Sequence[int], drafted: Sequence[int], alone: Sequence[int]
) -> Divergence | None:
    """Where the greedy answers `drafted` and `alone` part; None where they are the same, token for token."""
    if list(drafted) == list(alone):
        return None
    common = 0
    while common < min(len(drafted), len(alone)) and drafted[common] == alone[common]:
        common += 1
    token, target_token = (answer[common] if common < len(answer) else None for answer in (drafted, alone))
    logit_V, rounding = _reread(model, [*prompt_ids, *alone[:common]])
    both = token is not None and target_token is not None
    return Divergence(
        position=common,
        token=token,
        target_token=target_token,
        logit_gap=float(logit_V[target_token] - logit_V[token]) if both else None,
        rounding=rounding,
    )


@torch.no_grad()
def _reread(model: PreTrainedModel, token_ids: Sequence[int]) -> tuple[torch.Tensor, float]:
    """The target's logits [V] behind a text read in one pass, and the most by which one differs if the end comes token by token."""
    portions = min(_REREAD, len(token_ids) - 1)
    at_once_TV = CachedTarget(model).forward(token_ids, keep=portions + 1).float()
    smallest = float(at_once_TV.abs().max()) * torch.finfo(model.dtype).eps
    slow = CachedTarget(model)
    rows = [slow.forward(token_ids[: len(token_ids) - portions], keep=1)]
    rows += [slow.forward([token]) for token in token_ids[len(token_ids) - portions :]]
    return at_once_TV[-1], max(smallest, float((at_once_TV - torch.cat(rows).float()).abs().max()))
