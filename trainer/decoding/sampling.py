"""How the next token is chosen: logits in, tokens out, greedily or by chance; and how drafted tokens are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainer.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """`temperature` 0 is greedy. Else the `top_k` likeliest tokens (0: all) and of these the likeliest that make up `top_p`."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        warm = self.temperature == 0 or 1e-3 <= self.temperature < float("inf")  # below, logits over it overflow
        require(warm, "temperature", "0 (greedy) or at least 0.001", self.temperature)
        require(0 < self.top_p <= 1, "top_p", "above 0, at most 1", self.top_p)
        require(self.top_k >= 0, "top_k", "0 (all tokens) or more", self.top_k)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def probabilities(self, logit_TV: torch.Tensor) -> torch.Tensor:
        """What is drawn from, [T, V] in float32: temperature first, then `top_k`, then `top_p`, as everywhere else."""
        logit_TV = logit_TV.float() / self.temperature
        if 0 < self.top_k < logit_TV.shape[-1]:
            least_T1 = logit_TV.topk(self.top_k).values[:, -1:]
            logit_TV = logit_TV.masked_fill(logit_TV < least_T1, -torch.inf)
        share_TV = logit_TV.softmax(-1)
        if self.top_p < 1:
            sorted_TV, order_TV = share_TV.sort(descending=True)
            # A token stays if those before it do not make up top_p yet: the likeliest always does.
            sorted_TV = sorted_TV.masked_fill(sorted_TV.cumsum(-1) - sorted_TV >= self.top_p, 0.0)
            share_TV = torch.zeros_like(share_TV).scatter(-1, order_TV, sorted_TV)
            share_TV = share_TV / share_TV.sum(-1, keepdim=True)
        return share_TV


GREEDY = Sampling()


class Chooser:
    """Chooses the tokens of one text; its chances are its own, from `seed`."""

    def __init__(self, sampling: Sampling, seed: int, device: torch.device) -> None:
        self._sampling = sampling
        self._dice = torch.Generator(device).manual_seed(seed)

    def one(self, logit_V: torch.Tensor) -> int:
        return self.each(logit_V[None])[0]

    def each(self, logit_TV: torch.Tensor) -> list[int]:
        """A token for each row, chosen by itself."""
        if self._sampling.greedy:
            return logit_TV.argmax(-1).tolist()
        return self._draw(self._sampling.probabilities(logit_TV))

    def judge(self, draft: Sequence[int], draft_KV: torch.Tensor, target_KV: torch.Tensor) -> list[int]:
        """The tokens that stay, one more than are accepted of the K drafted ones.

        `draft_KV` are the logits that the draft was chosen by, `target_KV` the target's, with one row more. By chance: token x is
        accepted with probability min(1, p(x) / q(x)), and the first one refused is drawn anew from max(0, p - q).
        """
        if self._sampling.greedy:
            return _agreed(draft, self.each(target_KV))
        p_KV, q_KV = self._sampling.probabilities(target_KV), self._sampling.probabilities(draft_KV)
        place_K, draft_K = torch.arange(len(draft), device=p_KV.device), torch.tensor(draft, device=p_KV.device)
        chance_K = torch.rand(len(draft), generator=self._dice, device=p_KV.device)
        stays_K = chance_K * q_KV[place_K, draft_K] < p_KV[place_K, draft_K]
        accepted = int(stays_K.cumprod(0).sum())
        last_V = p_KV[accepted]
        if accepted < len(draft):
            left_V = (last_V - q_KV[accepted]).clamp(min=0)
            # Rounding can leave nothing where p and q are equal; then either will do.
            last_V = left_V if left_V.sum() > 0 else last_V
        return [*draft[:accepted], *self._draw(last_V[None])]

    def _draw(self, share_TV: torch.Tensor) -> list[int]:
        return torch.multinomial(share_TV, 1, generator=self._dice)[:, 0].tolist()


def _agreed(draft: Sequence[int], target: Sequence[int]) -> list[int]:
    for place, (guess, truth) in enumerate(zip(draft, target, strict=False)):
        if guess != truth:
            return list(target[: place + 1])
    return list(target)
