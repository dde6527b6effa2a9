"""Batched generation with continuous batching: the target's own answers to many prompts, greedy or sampled.

A row whose answer has ended makes room for the next request while the others go on, so that one long answer does not hold back a
batch. Rows are left-padded, and each answer is what the target says to that request alone, up to ties: in another batch the same
sums are added in another order, which can change the last bits. Why it is not transformers' `generate_batch`: docs/decisions/0025.

Shapes: B rows of a batch, T tokens of a pass or columns of the cache, V vocabulary.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from trainer.decoding.kv_cache import empty_cache, join
from trainer.decoding.sampling import GREEDY, Sampling
from trainer.errors import ConfigError

# Rows are exchanged when a quarter of them can be: each exchange copies the cache of the others and costs a prefill pass.
REBATCH_DIVISOR = 4
# Limits of one prefill pass: its tokens, padding included, and the share of them that may be padding.
PREFILL_TOKENS, PREFILL_PADDING = 16_384, 1 / 8


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Token ids [T] to be answered. `key` is the caller's name for it; with the seed it decides all random choices."""

    key: tuple[int, int]
    token_ids: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the request `key`, without the token that ended it."""

    key: tuple[int, int]
    token_ids: list[int]
    finished: bool
    """False if it reached `max_new_tokens` first."""


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One pass of the target: how many tokens it generated, and the answers that ended with it."""

    tokens: int
    answers: list[Answer]


class RequestQueue:
    """Requests that wait, longest first: similar lengths meet, and if memory runs out it does so at once."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, tuple[int, int], Request]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: Request) -> None:
        heapq.heappush(self._waiting, (-len(request.token_ids), request.key, request))

    def take(self, most: int) -> list[Request]:
        return [heapq.heappop(self._waiting)[-1] for _ in range(min(most, len(self._waiting)))]


def stop_token_ids(model: PreTrainedModel, *more: int | None) -> list[int]:
    """Every token that ends an answer: those in the model's configs, and `more`."""
    named: set[int] = {token for token in more if token is not None}
    for config in (model.generation_config, model.config):
        token = getattr(config, "eos_token_id", None)
        named.update([token] if isinstance(token, int) else token or [])
    return sorted(named)


def require_stop_token_ids(model: PreTrainedModel, target: str, *more: int | None) -> list[int]:
    """`stop_token_ids` of the target of that name. Raises `ConfigError` without any: no answer would end."""
    stop_ids = stop_token_ids(model, *more)
    if not stop_ids:
        raise ConfigError(f"target {target!r} names no token that ends an answer: set eos_token_id in its config.json")
    return stop_ids


def generate_answers(
    model: PreTrainedModel,
    requests: RequestQueue,
    *,
    stop_ids: Sequence[int],
    max_new_tokens: int,
    batch_size: int,
    sampling: Sampling = GREEDY,
    seed: int = 0,
) -> Iterator[DecodeStep]:
    """Generate until no request waits, pass by pass; the caller may add requests between passes.

    Raises `ConfigError` for a target that caches anything but keys and values.
    """
    batch = _Batch(model, frozenset(stop_ids), max_new_tokens, sampling, seed)
    while requests or batch.active:
        free = batch_size - batch.active
        if requests and REBATCH_DIVISOR * free >= batch_size:
            yield batch.admit(requests.take(free))
        else:
            yield batch.step()


@dataclass(slots=True, eq=False)
class _Row:
    request: Request
    uniforms: npt.NDArray[np.float64] | None
    """A number in [0, 1) for each token, which decides it; None for greedy."""
    length: int = 0
    """Tokens of it in the cache."""
    newest: int = 0
    """The newest token, not in the cache yet."""
    token_ids: list[int] = field(default_factory=list)
    """The answer so far."""
    done: bool = False


class _Batch:
    """The rows being generated. Rows that have ended stay until enough of them can be exchanged."""

    def __init__(
        self, model: PreTrainedModel, stop_ids: frozenset[int], max_new_tokens: int, sampling: Sampling, seed: int
    ) -> None:
        self._model: Any = model
        self._stop_ids = stop_ids
        self._max_new_tokens = max_new_tokens
        self._sampling = sampling
        self._seed = seed
        self._rows: list[_Row] = []
        self._cache = empty_cache()

    @property
    def active(self) -> int:
        return sum(not row.done for row in self._rows)

    def admit(self, requests: Sequence[Request]) -> DecodeStep:
        """Prefill new requests, generate the first token of each, and join them to the rows that go on."""
        steps, prefilled = [], []
        for group in prefill_groups(requests):
            rows, cache = [self._row(request) for request in group], empty_cache()
            logit_BV = self._forward(_left_padded(group), rows, cache)
            if cache.get_seq_length() == 0:
                raise ConfigError("the target caches something else than keys and values: it cannot be used to generate answers")
            steps.append(self._append(logit_BV, rows))
            prefilled.append((rows, cache))
        self._rebatch(prefilled)
        return DecodeStep(sum(step.tokens for step in steps), [answer for step in steps for answer in step.answers])

    def step(self) -> DecodeStep:
        """Generate one more token in every row."""
        if REBATCH_DIVISOR * (len(self._rows) - self.active) >= len(self._rows):
            self._rebatch([])
        token_ids_B1 = torch.tensor([[row.newest] for row in self._rows])
        return self._append(self._forward(token_ids_B1, self._rows, self._cache), self._rows)

    def _row(self, request: Request) -> _Row:
        if self._sampling.greedy:
            return _Row(request, None)
        return _Row(request, np.random.default_rng([self._seed, *request.key]).random(self._max_new_tokens))

    def _rebatch(self, prefilled: Sequence[tuple[list[_Row], Any]]) -> None:
        """Drop the rows that have ended and append the prefilled ones, in as few columns as the longest row needs."""
        rows_kept, parts = [], []
        for rows, cache in [(self._rows, self._cache), *prefilled]:
            active = [number for number, row in enumerate(rows) if not row.done]
            if active:
                rows_kept += [rows[number] for number in active]
                parts.append((cache, torch.tensor(active, device=self._model.device)))
        self._rows = rows_kept
        self._cache = join(parts, max(row.length for row in rows_kept)) if rows_kept else empty_cache()

    @torch.no_grad()
    def _forward(self, token_ids_BT: torch.Tensor, rows: Sequence[_Row], cache: Any) -> torch.Tensor:
        """Logits [B, V] behind the last of the rows' next tokens, which are right-aligned in `token_ids_BT`."""
        device, new = self._model.device, token_ids_BT.shape[1]
        for row in rows:
            row.length += len(row.request.token_ids) if row.length == 0 else 1
        length_B1 = torch.tensor([[row.length] for row in rows], device=device)
        width = cache.get_seq_length() + new
        position_BT = torch.arange(width, device=device) - (width - length_B1)  # negative: padding
        output = self._model(
            input_ids=token_ids_BT.to(device),
            attention_mask=(position_BT >= 0).long(),
            position_ids=position_BT[:, -new:].clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]  # type: ignore[no-any-return]

    def _append(self, logit_BV: torch.Tensor, rows: Sequence[_Row]) -> DecodeStep:
        """Choose the next token of each row that has not ended."""
        tokens, answers = 0, []
        for row, token in zip(rows, self._next_tokens(logit_BV, rows), strict=True):
            if row.done:
                continue
            tokens += 1
            row.newest = token
            finished = token in self._stop_ids
            if not finished:
                row.token_ids.append(token)
            if finished or len(row.token_ids) == self._max_new_tokens:
                row.done = True
                answers.append(Answer(row.request.key, row.token_ids, finished))
        return DecodeStep(tokens, answers)

    def _next_tokens(self, logit_BV: torch.Tensor, rows: Sequence[_Row]) -> list[int]:
        if self._sampling.greedy:
            return logit_BV.argmax(-1).tolist()
        uniform_B = [row.uniforms[len(row.token_ids)] if row.uniforms is not None and not row.done else 0.0 for row in rows]
        return draw(self._sampling.probabilities(logit_BV), torch.tensor(uniform_B, dtype=torch.float64)).tolist()


def prefill_groups(requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
    """Requests in groups for one prefill pass each: neighbours in the given order, within the limits on tokens and padding."""
    group: list[Request] = []
    for request in requests:
        together = [*group, request]
        sizes = [len(one.token_ids) for one in together]
        padded = max(sizes) * len(sizes)
        if group and (padded > PREFILL_TOKENS or sum(sizes) < (1 - PREFILL_PADDING) * padded):
            yield group
            together = [request]
        group = together
    if group:
        yield group


def _left_padded(requests: Sequence[Request]) -> torch.Tensor:
    """Their token ids [B, T], right-aligned."""
    width = max(len(request.token_ids) for request in requests)
    token_ids_BT = torch.zeros(len(requests), width, dtype=torch.long)
    for number, request in enumerate(requests):
        token_ids_BT[number, width - len(request.token_ids) :] = torch.from_numpy(request.token_ids)
    return token_ids_BT


def draw(p_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """A token [B] of each row by inverse transform sampling: the first whose cumulative probability exceeds `uniform_B`, in [0, 1).

    Unlike a draw by one generator for the whole batch, a row's token depends only on its own probabilities and number, so that it
    does not change with the batch it is in.
    """
    cumulative_BV = p_BV.double().cumsum(-1)
    sought_B1 = uniform_B.to(cumulative_BV.device)[:, None] * cumulative_BV[:, -1:]
    return torch.searchsorted(cumulative_BV, sought_B1, right=True)[:, 0].clamp(max=p_BV.shape[1] - 1)
