"""Choosing tokens from logits, greedily or at random, and verifying drafted ones without changing the target's distribution.

Shapes: T rows (tokens of one text), K drafted tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.decoding.acceptance_length import accepted_prefix
from trainer.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 leave all tokens in."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        warm = self.temperature == 0 or 1e-3 <= self.temperature < float("inf")  # below, dividing the logits overflows
        require(warm, "temperature", "0 (greedy) or at least 0.001", self.temperature)
        require(0 < self.top_p <= 1, "top_p", "above 0, at most 1", self.top_p)
        require(self.top_k >= 0, "top_k", "0 (all tokens) or more", self.top_k)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def probabilities(self, logit_TV: torch.Tensor) -> torch.Tensor:
        """The distribution to draw from, [T, V] in float32: temperature, then `top_k`, then `top_p`, the order of transformers."""
        logit_TV = logit_TV.float() / self.temperature
        if 0 < self.top_k < logit_TV.shape[-1]:
            least_T1 = logit_TV.topk(self.top_k).values[:, -1:]
            logit_TV = logit_TV.masked_fill(logit_TV < least_T1, -torch.inf)
        p_TV = logit_TV.softmax(-1)
        if self.top_p < 1:
            sorted_TV, order_TV = p_TV.sort(descending=True)
            # A token stays if those before it do not add up to top_p yet: the likeliest always does.
            sorted_TV = sorted_TV.masked_fill(sorted_TV.cumsum(-1) - sorted_TV >= self.top_p, 0.0)
            p_TV = torch.zeros_like(p_TV).scatter(-1, order_TV, sorted_TV)
            p_TV = p_TV / p_TV.sum(-1, keepdim=True)
        return p_TV


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens [K] and the distributions [K, V] that they were drawn from; None where the choice was greedy."""

    token_ids: list[int]
    q_KV: torch.Tensor | None


class TokenSampler:
    """Chooses the tokens of one text, with a random generator of its own."""

    def __init__(self, sampling: Sampling, seed: int, device: torch.device) -> None:
        self._sampling = sampling
        self._generator = torch.Generator(device).manual_seed(seed)

    def next_token(self, logit_V: torch.Tensor) -> int:
        """The token that follows, by the target's logits."""
        return self.draft(logit_V[None]).token_ids[0]

    def draft(self, logit_KV: torch.Tensor) -> Draft:
        """A token for each row, chosen independently of the others."""
        if self._sampling.greedy:
            return Draft(logit_KV.argmax(-1).tolist(), None)
        q_KV = self._sampling.probabilities(logit_KV)
        return Draft(self._draw(q_KV), q_KV)

    def verify(self, draft: Draft, target_KV: torch.Tensor) -> list[int]:
        """The tokens that stay: the accepted prefix of the draft and one token of the target's own.

        `target_KV` are the target's logits at each drafted token and behind the last: K + 1 rows. Greedy: accept what the target
        would have said. Random (speculative sampling, arXiv 2211.17192): accept token x with probability min(1, p(x) / q(x)) and
        replace the first one refused by a draw from max(0, p - q), scaled to 1. The text then follows p exactly.
        """
        if draft.q_KV is None:
            return accepted_prefix(draft.token_ids, target_KV.argmax(-1).tolist())
        p_KV, q_KV = self._sampling.probabilities(target_KV), draft.q_KV
        row_K, draft_K = torch.arange(len(q_KV), device=p_KV.device), torch.tensor(draft.token_ids, device=p_KV.device)
        uniform_K = torch.rand(len(q_KV), generator=self._generator, device=p_KV.device)
        # u < p / q, multiplied out: q may be tiny
        accepted_K = uniform_K * q_KV[row_K, draft_K] < p_KV[row_K, draft_K]
        accepted = int(accepted_K.cumprod(0).sum())
        last_V = p_KV[accepted]
        if accepted < len(q_KV):
            residual_V = (last_V - q_KV[accepted]).clamp(min=0)
            # Rounding can leave nothing where p and q are equal; then p itself is right.
            last_V = residual_V if residual_V.sum() > 0 else last_V
        return [*draft.token_ids[:accepted], *self._draw(last_V[None])]

    def _draw(self, p_TV: torch.Tensor) -> list[int]:
        return torch.multinomial(p_TV, 1, generator=self._generator)[:, 0].tolist()
