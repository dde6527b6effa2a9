"""Speculative decoding, as a drafter is served: a prompt in, the target's own words out, and what each round of drafts was worth.

DFlash's loop (arXiv 2602.06036, section 4). A round drafts a block behind the newest token, and the target reads it in one pass:
the longest start of it that agrees with the target stays, and one token more, the target's own. Greedy text is thus the target's
token for token, up to ties that a longer pass may break the other way; sampled text follows its distribution exactly (speculative
sampling, arXiv 2211.17192).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

from trainer.decoding.sampling import GREEDY, Chooser, Sampling
from trainer.drafter.model import Drafter, KeysValues
from trainer.target.features import Taps


@dataclass(frozen=True, slots=True)
class Round:
    """One draft and its verification: tokens drafted, as far as the text went on; of these accepted; kept in all.

    One more is kept than accepted, the target's own, unless the text ends first.
    """

    drafted: int
    accepted: int
    kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The text behind a prompt, the token that ended it included. `decode_seconds` is all but the prompt and the first token."""

    token_ids: list[int]
    rounds: tuple[Round, ...]
    prefill_seconds: float
    decode_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Of decoding: the first token came with the prompt."""
        return (len(self.token_ids) - 1) / self.decode_seconds if self.decode_seconds else 0.0


def seat(drafter: Drafter, model: PreTrainedModel) -> Drafter:
    """The drafter, changed in place, where and in what precision it drafts for this target.

    One in bfloat16 beside a float32 target is widened: its features are float32. One that drafts under autocast has its matrices
    cast here, once; autocast would make the same of them in every round, for more than it costs to draft.
    """
    drafter.to(model.device).eval().requires_grad_(False)
    if _is_mixed(model, drafter):
        for module in drafter.modules():
            if isinstance(module, nn.Linear):
                module.to(model.dtype)
    elif model.dtype == torch.float32:
        for weight in drafter.parameters():  # and no buffer: RoPE's frequencies are float32 everywhere
            weight.data = weight.data.float()
    return drafter


def _is_mixed(model: PreTrainedModel, drafter: Drafter) -> bool:
    """Whether it drafts under autocast, as in training: a float32 residual stream, the target's bfloat16 in between.

    An exported drafter in bfloat16 is bfloat16 throughout, as it is where it is served.
    """
    return bool(model.dtype == torch.bfloat16 and drafter.norm.weight.dtype == torch.float32)


class Speculator:
    """A target with a drafter, both on the target's device. Its taps stay on the target's layers until it is closed."""

    def __init__(self, model: PreTrainedModel, drafter: Drafter) -> None:
        self._model = model
        self._drafter = drafter
        layer_ids = drafter.config.dflash_config["target_layer_ids"]
        self._width = len(layer_ids) * drafter.config.hidden_size
        self._taps = Taps(model.get_decoder().layers, layer_ids, drafter.config.hidden_size)
        mixed = _is_mixed(model, drafter)
        self._feature_dtype = model.dtype if mixed else drafter.fc.weight.dtype
        self.autocast = torch.autocast(model.device.type, torch.bfloat16, enabled=mixed, cache_enabled=False)

    def __enter__(self) -> Speculator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._taps.remove()

    @torch.no_grad()
    def decode(
        self,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Sequence[int],
        sampling: Sampling = GREEDY,
        seed: int = 0,
        give_up: Callable[[], bool] = lambda: False,
    ) -> Decoded:
        """Answer one prompt. `give_up` is asked before every round, and ends the text there."""
        began = time.perf_counter()
        text = Reading(self._model, self._taps, self._width)
        choose = Chooser(sampling, seed, self._model.device)
        said = [choose.one(text.read(prompt_ids, keep=1)[-1])]
        prefilled = time.perf_counter()
        rounds: list[Round] = []
        context: list[KeysValues] | None = None
        new = len(prompt_ids)
        while said[-1] not in stop_ids and len(said) < max_new_tokens and not give_up():
            context = self._read_on(context, text.feature_TF[:new], text.length - new)
            room = max_new_tokens - len(said)
            draft_KV = self._draft(context, said[-1], text.length)[:room]
            draft = choose.each(draft_KV)
            kept = choose.judge(draft, draft_KV, text.read([said[-1], *draft]))
            text.forget(len(draft) + 1 - len(kept))
            new, kept = len(kept), _up_to_stop(kept[:room], stop_ids)
            accepted = min(new - 1, len(kept))
            # A text that ended did not ask for guesses behind its end; the end itself was one to guess.
            drafted = min(len(draft), len(kept)) if kept[-1] in stop_ids else len(draft)
            rounds.append(Round(drafted, accepted, len(kept)))
            said += kept
        return Decoded(
            token_ids=said,
            rounds=tuple(rounds),
            prefill_seconds=prefilled - began,
            decode_seconds=time.perf_counter() - prefilled,
        )

    @torch.no_grad()
    def features(self, token_ids: Sequence[int]) -> torch.Tensor:
        """What the drafter reads of a text, [T, F]."""
        text = Reading(self._model, self._taps, self._width)
        text.read(token_ids, keep=1)
        return text.feature_TF

    def _read_on(self, context: list[KeysValues] | None, feature_TF: torch.Tensor, start: int) -> list[KeysValues]:
        """The context with the features of the tokens from position `start` on."""
        position_T = torch.arange(start, start + len(feature_TF), device=feature_TF.device)
        with self.autocast:
            read = self._drafter.read(feature_TF.to(self._feature_dtype), position_T)
        if context is None:
            return read
        return [
            (torch.cat([k, more_k], 1), torch.cat([v, more_v], 1)) for (k, v), (more_k, more_v) in zip(context, read, strict=True)
        ]

    def _draft(self, context: list[KeysValues], anchor_id: int, position: int) -> torch.Tensor:
        """Logits [B-1, V] of the tokens behind the anchor at `position`."""
        size, head_VD = self._drafter.block_size, self._model.get_output_embeddings().weight
        block_B = torch.full((size,), self._drafter.mask_token_id, device=head_VD.device)
        block_B[0] = anchor_id
        draft_BD = F.embedding(block_B, self._model.get_input_embeddings().weight)
        position_B = torch.arange(position, position + size, device=head_VD.device)
        with self.autocast:
            hidden_BD = self._drafter.draft(context, draft_BD.to(self._drafter.norm.weight.dtype), position_B)
        return hidden_BD[1:].to(head_VD.dtype) @ head_VD.T  # type: ignore[no-any-return]


@torch.no_grad()
def decode_alone(
    model: PreTrainedModel,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    sampling: Sampling = GREEDY,
    seed: int = 0,
) -> Decoded:
    """The same answer by the target without a drafter: what speculative decoding is measured against."""
    began = time.perf_counter()
    text = Reading(model)
    choose = Chooser(sampling, seed, model.device)
    said = [choose.one(text.read(prompt_ids, keep=1)[-1])]
    prefilled = time.perf_counter()
    while said[-1] not in stop_ids and len(said) < max_new_tokens:
        said.append(choose.one(text.read([said[-1]])[-1]))
    return Decoded(token_ids=said, rounds=(), prefill_seconds=prefilled - began, decode_seconds=time.perf_counter() - prefilled)


class Reading:
    """A text as the target has read it so far: it can read on, and forget the newest tokens."""

    def __init__(self, model: PreTrainedModel, taps: Taps | None = None, width: int = 0) -> None:
        self.length = 0
        self.feature_TF = torch.empty(0)
        self._model: Any = model
        self._taps = taps
        self._width = width
        self._cache = DynamicCache(config=model.config)
        self._cache.activate_past_recording()  # or layers with a sliding window could not forget

    def read(self, token_ids: Sequence[int], *, keep: int = 0) -> torch.Tensor:
        """Logits [T, V] behind each of the tokens, or the last `keep`; all features, if they are tapped, are in `feature_TF`."""
        device, count = self._model.device, len(token_ids)
        if self.length:
            self._cache.crop(0)  # layers with a sliding window let go of what has left it
        self.feature_TF = torch.empty(count, self._width, dtype=self._model.dtype, device=device)
        with self._taps.into(self.feature_TF) if self._taps else nullcontext():
            output = self._model(
                input_ids=torch.tensor([list(token_ids)], device=device),
                position_ids=torch.arange(self.length, self.length + count, device=device)[None],
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=keep,
            )
        self.length += count
        return output.logits[0]  # type: ignore[no-any-return]

    def forget(self, tokens: int) -> None:
        self._cache.crop(-tokens)
        self.length -= tokens


def _up_to_stop(token_ids: list[int], stop_ids: Sequence[int]) -> list[int]:
    for place, token in enumerate(token_ids):
        if token in stop_ids:
            return token_ids[: place + 1]
    return token_ids
