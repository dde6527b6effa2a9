"""Answers in batches: token ids of questions in, the target's own answers out, greedily or by chance.

A row whose answer has ended makes place for the next question while the others go on, so that no long answer holds back a batch.
Rows are padded on the left, and so each answer is what the target says to that question alone, up to ties: in other company the
same sums are added up in another order, which may differ in the last bits.
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

# Rows change when a quarter of them can: each change copies what the others remember, and reads new questions in a pass of its own.
CHANGE = 4
# Questions read in one pass: tokens in all, and the share of the pass that may be padding.
READ_TOKENS, READ_PADDING = 16_384, 1 / 8


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Token ids [T] that ask for an answer. The key is the caller's name for it; with the seed it decides all chances."""

    key: tuple[int, int]
    token_ids: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said to the question `key`, without the token that ended it; `finished` is False if it ran out of tokens."""

    key: tuple[int, int]
    token_ids: list[int]
    finished: bool


@dataclass(frozen=True, slots=True)
class Stride:
    """One pass of the target: how many tokens it said, and the answers that ended with them."""

    tokens: int
    answers: list[Answer]


class Questions:
    """Those that wait, the longest first: similar lengths meet, and memory runs out at once or never."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, tuple[int, int], Question]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, question: Question) -> None:
        heapq.heappush(self._waiting, (-len(question.token_ids), question.key, question))

    def take(self, most: int) -> list[Question]:
        return [heapq.heappop(self._waiting)[-1] for _ in range(min(most, len(self._waiting)))]


def stop_token_ids(model: PreTrainedModel, *more: int | None) -> list[int]:
    """Every token that ends an answer: those that the model itself names and `more`."""
    named: set[int] = {token for token in more if token is not None}
    for config in (model.generation_config, model.config):
        token = getattr(config, "eos_token_id", None)
        named.update([token] if isinstance(token, int) else token or [])
    return sorted(named)


def require_stop_token_ids(model: PreTrainedModel, target: str, *more: int | None) -> list[int]:
    """The same for a target by that name. Raises `ConfigError` where there is no such token: no answer would come to an end."""
    stop_ids = stop_token_ids(model, *more)
    if not stop_ids:
        raise ConfigError(f"target {target!r} names no token that ends an answer: set eos_token_id in its config.json")
    return stop_ids


def answer_all(
    model: PreTrainedModel,
    questions: Questions,
    *,
    stop_ids: Sequence[int],
    max_new_tokens: int,
    batch_size: int,
    sampling: Sampling = GREEDY,
    seed: int = 0,
) -> Iterator[Stride]:
    """Answer until no question waits, pass by pass; whoever reads the answers may put more questions in between.

    Raises `ConfigError` for a target that remembers what it has read in another way than by keys and values.
    """
    batch = _Batch(model, frozenset(stop_ids), max_new_tokens, sampling, seed)
    while questions or batch.active:
        free = batch_size - batch.active
        if questions and CHANGE * free >= batch_size:
            yield batch.admit(questions.take(free))
        else:
            yield batch.step()


@dataclass(slots=True, eq=False)
class _Row:
    question: Question
    chances: npt.NDArray[np.float64] | None
    """A number from 0 to 1 for each token; None if the choice is greedy."""
    length: int = 0
    """Tokens that the target has read of it."""
    newest: int = 0
    """The token chosen last, which the target has not read yet."""
    said: list[int] = field(default_factory=list)
    done: bool = False


class _Batch:
    """The answers that are being made: a row for each, and rows that have ended until enough have for a change."""

    def __init__(
        self, model: PreTrainedModel, stop_ids: frozenset[int], max_new_tokens: int, sampling: Sampling, seed: int
    ) -> None:
        self._model: Any = model
        self._stop_ids = stop_ids
        self._most = max_new_tokens
        self._sampling = sampling
        self._seed = seed
        self._rows: list[_Row] = []
        self._cache = empty_cache()

    @property
    def active(self) -> int:
        return sum(not row.done for row in self._rows)

    def admit(self, questions: Sequence[Question]) -> Stride:
        """Read new questions, say the first token of each answer, and let them join the rows that go on."""
        strides, newcomers = [], []
        for group in alike(questions):
            rows, cache = [self._row(question) for question in group], empty_cache()
            logit_BV = self._read(_padded(group), rows, cache)
            if cache.get_seq_length() == 0:
                raise ConfigError("the target keeps what it reads in another form than keys and values: it cannot be asked yet")
            strides.append(self._choose(logit_BV, rows))
            newcomers.append((rows, cache))
        self._change(newcomers)
        return Stride(sum(one.tokens for one in strides), [answer for one in strides for answer in one.answers])

    def step(self) -> Stride:
        """Say one more token in every row."""
        if CHANGE * (len(self._rows) - self.active) >= len(self._rows):
            self._change([])
        token_ids_B1 = torch.tensor([[row.newest] for row in self._rows])
        return self._choose(self._read(token_ids_B1, self._rows, self._cache), self._rows)

    def _row(self, question: Question) -> _Row:
        if self._sampling.greedy:
            return _Row(question, None)
        return _Row(question, np.random.default_rng([self._seed, *question.key]).random(self._most))

    def _change(self, newcomers: Sequence[tuple[list[_Row], Any]]) -> None:
        """Drop the rows that have ended and append the newcomers, all in as few columns as the longest needs."""
        chosen, parts = [], []
        for rows, cache in [(self._rows, self._cache), *newcomers]:
            going_on = [number for number, row in enumerate(rows) if not row.done]
            if going_on:
                chosen += [rows[number] for number in going_on]
                parts.append((cache, torch.tensor(going_on, device=self._model.device)))
        self._rows = chosen
        self._cache = join(parts, max(row.length for row in chosen)) if chosen else empty_cache()

    @torch.no_grad()
    def _read(self, token_ids_BT: torch.Tensor, rows: Sequence[_Row], cache: Any) -> torch.Tensor:
        """Logits [B, V] behind the last of the rows' next tokens, which stand at the right of `token_ids_BT`."""
        device, new = self._model.device, token_ids_BT.shape[1]
        for row in rows:
            row.length += len(row.question.token_ids) if row.length == 0 else 1
        length_B1 = torch.tensor([[row.length] for row in rows], device=device)
        width = cache.get_seq_length() + new
        position_BT = torch.arange(width, device=device) - (width - length_B1)
        output = self._model(
            input_ids=token_ids_BT.to(device),
            attention_mask=(position_BT >= 0).long(),
            position_ids=position_BT[:, -new:].clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]  # type: ignore[no-any-return]

    def _choose(self, logit_BV: torch.Tensor, rows: Sequence[_Row]) -> Stride:
        """Choose a token in each row that has not ended."""
        said, answers = 0, []
        for row, token in zip(rows, self._tokens(logit_BV, rows), strict=True):
            if row.done:
                continue
            said += 1
            row.newest = token
            finished = token in self._stop_ids
            if not finished:
                row.said.append(token)
            if finished or len(row.said) == self._most:
                row.done = True
                answers.append(Answer(row.question.key, row.said, finished))
        return Stride(said, answers)

    def _tokens(self, logit_BV: torch.Tensor, rows: Sequence[_Row]) -> list[int]:
        if self._sampling.greedy:
            return logit_BV.argmax(-1).tolist()
        chance_B = [row.chances[len(row.said)] if row.chances is not None and not row.done else 0.0 for row in rows]
        return draw(self._sampling.probabilities(logit_BV), torch.tensor(chance_B, dtype=torch.float64)).tolist()


def alike(questions: Sequence[Question]) -> Iterator[Sequence[Question]]:
    """Questions in groups that are read in one pass: those that stand together in the order given and waste little on padding."""
    group: list[Question] = []
    for question in questions:
        together = [*group, question]
        sizes = [len(one.token_ids) for one in together]
        passed = max(sizes) * len(sizes)
        if group and (passed > READ_TOKENS or sum(sizes) < (1 - READ_PADDING) * passed):
            yield group
            together = [question]
        group = together
    if group:
        yield group


def _padded(questions: Sequence[Question]) -> torch.Tensor:
    """Their token ids [B, T], at the right."""
    width = max(len(question.token_ids) for question in questions)
    token_ids_BT = torch.zeros(len(questions), width, dtype=torch.long)
    for number, question in enumerate(questions):
        token_ids_BT[number, width - len(question.token_ids) :] = torch.from_numpy(question.token_ids)
    return token_ids_BT


def draw(share_BV: torch.Tensor, chance_B: torch.Tensor) -> torch.Tensor:
    """The token [B] at which the shares before it and its own first exceed a number from 0 to below 1.

    Unlike a draw by one generator for the whole batch, a row's token depends on nothing but its own shares and its own number.
    """
    reach_BV = share_BV.double().cumsum(-1)
    sought_B1 = chance_B.to(reach_BV.device)[:, None] * reach_BV[:, -1:]
    return torch.searchsorted(reach_BV, sought_B1, right=True)[:, 0].clamp(max=share_BV.shape[1] - 1)
