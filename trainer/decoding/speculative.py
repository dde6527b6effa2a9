"""Speculative decoding as a drafter is served: DFlash's draft-and-verify loop for one prompt, with the counts of each round.

The loop of arXiv 2602.06036, section 4. A round drafts a block behind the newest token; the target reads it in one pass; the
longest prefix that the target confirms stays, and one token of the target's own. Greedy text is thus the target's token for token,
up to ties that a longer pass may break the other way; sampled text follows the target's distribution exactly.

Shapes: T tokens read in one pass, F features, B block size, K drafted tokens, V vocabulary, D hidden size.
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

from trainer.decoding.acceptance_length import Round, round_of, up_to_stop
from trainer.decoding.sampling import GREEDY, Sampling, TokenSampler
from trainer.drafter.model import Drafter, KeysValues
from trainer.target.features import Taps


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The text behind a prompt, the token that ended it included, and what it took."""

    token_ids: list[int]
    rounds: tuple[Round, ...]
    prefill_seconds: float
    """For the prompt and the first token."""
    decode_seconds: float
    """For the rest."""

    @property
    def tokens_per_second(self) -> float:
        """Of decoding: the first token came with the prompt."""
        return (len(self.token_ids) - 1) / self.decode_seconds if self.decode_seconds else 0.0


def prepare_for_decoding(drafter: Drafter, model: PreTrainedModel) -> Drafter:
    """Move the drafter to the target's device and into the precision it drafts in, in place; returns it.

    A bfloat16 drafter beside a float32 target is widened, because its features are float32. A drafter that runs under autocast has
    its matrices cast here, once: autocast would do the same cast in every round, and that would cost more than drafting.
    """
    drafter.to(model.device).eval().requires_grad_(False)
    if _drafts_under_autocast(model, drafter):
        for module in drafter.modules():
            if isinstance(module, nn.Linear):
                module.to(model.dtype)
    elif model.dtype == torch.float32:
        for weight in drafter.parameters():  # and no buffer: RoPE's frequencies are float32 everywhere
            weight.data = weight.data.float()
    return drafter


def _drafts_under_autocast(model: PreTrainedModel, drafter: Drafter) -> bool:
    """Whether it drafts as it trains: a float32 residual stream, matrix products in the target's bfloat16.

    An exported bfloat16 drafter is bfloat16 throughout, as in the servers that load it.
    """
    return bool(model.dtype == torch.bfloat16 and drafter.norm.weight.dtype == torch.float32)


class SpeculativeDecoder:
    """A target with a drafter on its device. Hooks stay on the target's tapped layers until `close`."""

    def __init__(self, model: PreTrainedModel, drafter: Drafter) -> None:
        self._model = model
        self._drafter = drafter
        layer_ids = drafter.config.dflash_config["target_layer_ids"]
        self._feature_width = len(layer_ids) * drafter.config.hidden_size
        self._taps = Taps(model.get_decoder().layers, layer_ids, drafter.config.hidden_size)
        mixed = _drafts_under_autocast(model, drafter)
        self._feature_dtype = model.dtype if mixed else drafter.fc.weight.dtype
        self.autocast = torch.autocast(model.device.type, torch.bfloat16, enabled=mixed, cache_enabled=False)

    def __enter__(self) -> SpeculativeDecoder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove the hooks."""
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
        """Continue one prompt. `give_up` is called before every round; where it returns True the text ends."""
        began = time.perf_counter()
        target = CachedTarget(self._model, self._taps, self._feature_width)
        sampler = TokenSampler(sampling, seed, self._model.device)
        token_ids = [sampler.next_token(target.forward(prompt_ids, keep=1)[-1])]
        prefilled = time.perf_counter()
        rounds: list[Round] = []
        context: list[KeysValues] | None = None
        new = len(prompt_ids)  # tokens that the target has read and the drafter's context lacks
        while token_ids[-1] not in stop_ids and len(token_ids) < max_new_tokens and not give_up():
            context = self._extend_context(context, target.feature_TF[:new], target.length - new)
            room = max_new_tokens - len(token_ids)
            draft = sampler.draft(self._draft(context, token_ids[-1], target.length)[:room])
            # `kept` = accepted prefix + one token of the target's own. The target's cache then holds len(draft) + 1 new tokens, the
            # anchor and the draft, of which len(kept) stay: the anchor and the accepted prefix. The target's own token is next
            # round's anchor and not in the cache yet.
            kept = sampler.verify(draft, target.forward([token_ids[-1], *draft.token_ids]))
            target.crop(len(draft.token_ids) + 1 - len(kept))
            new, kept = len(kept), up_to_stop(kept[:room], stop_ids)
            rounds.append(round_of(len(draft.token_ids), new, kept, stop_ids))
            token_ids += kept
        return Decoded(
            token_ids=token_ids,
            rounds=tuple(rounds),
            prefill_seconds=prefilled - began,
            decode_seconds=time.perf_counter() - prefilled,
        )

    @torch.no_grad()
    def features(self, token_ids: Sequence[int]) -> torch.Tensor:
        """The target's features of a text, [T, F]: what the drafter is given."""
        target = CachedTarget(self._model, self._taps, self._feature_width)
        target.forward(token_ids, keep=1)
        return target.feature_TF

    def _extend_context(self, context: list[KeysValues] | None, feature_TF: torch.Tensor, start: int) -> list[KeysValues]:
        """The drafter's keys and values with those of the tokens from position `start` on appended."""
        position_T = torch.arange(start, start + len(feature_TF), device=feature_TF.device)
        with self.autocast:
            new = self._drafter.encode_context(feature_TF.to(self._feature_dtype), position_T)
        if context is None:
            return new
        return [
            (torch.cat([key, new_key], 1), torch.cat([value, new_value], 1))
            for (key, value), (new_key, new_value) in zip(context, new, strict=True)
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
    """Continue one prompt by the target alone, token by token: the baseline of speculative decoding."""
    began = time.perf_counter()
    target = CachedTarget(model)
    sampler = TokenSampler(sampling, seed, model.device)
    token_ids = [sampler.next_token(target.forward(prompt_ids, keep=1)[-1])]
    prefilled = time.perf_counter()
    while token_ids[-1] not in stop_ids and len(token_ids) < max_new_tokens:
        token_ids.append(sampler.next_token(target.forward([token_ids[-1]])[-1]))
    decode_seconds = time.perf_counter() - prefilled
    return Decoded(token_ids=token_ids, rounds=(), prefill_seconds=prefilled - began, decode_seconds=decode_seconds)


class CachedTarget:
    """The target with the KV cache of one text, which can be extended and cropped."""

    def __init__(self, model: PreTrainedModel, taps: Taps | None = None, feature_width: int = 0) -> None:
        self.length = 0
        """Tokens in the cache."""
        self.feature_TF = torch.empty(0)
        """Features of the tokens of the newest pass, where layers are tapped."""
        self._model: Any = model
        self._taps = taps
        self._feature_width = feature_width
        self._cache = DynamicCache(config=model.config)
        self._cache.activate_past_recording()  # without it layers with a sliding window could not be cropped

    def forward(self, token_ids: Sequence[int], *, keep: int = 0) -> torch.Tensor:
        """Append tokens; returns the logits [T, V] behind each of them, or behind the last `keep`."""
        device, count = self._model.device, len(token_ids)
        if self.length:
            self._cache.crop(0)  # layers with a sliding window drop what has left it
        self.feature_TF = torch.empty(count, self._feature_width, dtype=self._model.dtype, device=device)
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

    def crop(self, tokens: int) -> None:
        """Remove the newest `tokens` from the cache."""
        self._cache.crop(-tokens)
        self.length -= tokens
