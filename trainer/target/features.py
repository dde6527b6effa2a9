"""Batches in, features out: the frozen target reads each batch once, and the tapped layers' outputs are kept.

The target runs without its head and stops after the deepest tapped layer, unless its last hidden state is wanted too. Hooks write
each tapped layer's output straight into its columns of one tensor, which lies in a ring of slots made at the start: memory is
bounded, none is allocated per batch.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from trainer.data.batches import TokenBatch


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """What the drafter borrows of the target, frozen, on the drafter's device: its embedding and its head, both [V, D]."""

    embedding_VD: torch.Tensor
    head_VD: torch.Tensor


@dataclass(frozen=True, slots=True)
class FeatureBatch:
    """A batch and its features `feature_TF` (columns: layer by layer), on the drafter's device.

    `last_TD` is what the target's head reads, the hidden state after its last norm, where it was asked for. `release()` gives the
    slot back; the features must not be read after it.
    """

    batch: TokenBatch
    feature_TF: torch.Tensor
    release: Callable[[], None] = field(default=lambda: None)
    last_TD: torch.Tensor | None = None

    @property
    def seq(self) -> int:
        return self.batch.seq

    @property
    def nbytes(self) -> int:
        return self.batch.nbytes + self.feature_TF.nbytes + (0 if self.last_TD is None else self.last_TD.nbytes)


class FeatureRing:
    """Slots of [tokens, width] for features. `take` hands out a free one; there must be one more than can ever be in use."""

    def __init__(self, slots: int, tokens: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self._free: SimpleQueue[torch.Tensor] = SimpleQueue()
        for _ in range(slots):
            self._free.put(torch.empty(tokens, width, dtype=dtype, device=device))

    def take(self, tokens: int) -> tuple[torch.Tensor, Callable[[], None]]:
        """Room for `tokens` rows, and how to give it back. Raises `RuntimeError` when no slot is free."""
        try:
            slot = self._free.get_nowait()
        except Empty:
            raise RuntimeError(
                "the feature ring has no free slot: it is smaller than the queue and the threads around it"
            ) from None
        return slot[:tokens], lambda: self._free.put(slot)


class Taps:
    """Writes the outputs of chosen decoder layers into a tensor [T, F], layer by layer, for the thread that asks for it.

    Any thread may run the layers; those that do not ask are left alone.
    """

    def __init__(self, layers: nn.ModuleList, layer_ids: Sequence[int], width: int) -> None:
        self._room = threading.local()
        self._handles = [
            layers[layer].register_forward_hook(self._keep(slice(place * width, (place + 1) * width)))
            for place, layer in enumerate(layer_ids)
        ]

    @contextmanager
    def into(self, feature_TF: torch.Tensor) -> Iterator[None]:
        """What this thread's layers say for one document, or several packed end to end, goes into `feature_TF`."""
        self._room.feature_TF = feature_TF
        try:
            yield
        finally:
            del self._room.feature_TF

    def remove(self) -> None:
        """Leave the layers as they were."""
        for handle in self._handles:
            handle.remove()

    def _keep(self, columns: slice) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            feature_TF = getattr(self._room, "feature_TF", None)
            if feature_TF is not None:
                hidden_1TD = output[0] if isinstance(output, tuple) else output
                feature_TF[:, columns].copy_(hidden_1TD[0])

        return hook


class Target:
    """One copy of the frozen target on one device. `extract` may run on several threads at once.

    With `keep_last` its last hidden state is kept beside the features, and the ring's slots need room for it: K x D + D columns.
    """

    def __init__(self, model: PreTrainedModel, layer_ids: tuple[int, ...], ring: FeatureRing, *, keep_last: bool = False) -> None:
        self.device = next(model.parameters()).device
        self._ring = ring
        self._keep_last = keep_last
        self._body = model.get_decoder() if keep_last else _first_layers(model, max(layer_ids) + 1)
        width = model.config.get_text_config().hidden_size
        self._columns = len(layer_ids) * width
        self._taps = Taps(self._body.layers, layer_ids, width)

    def extract(self, batches: Iterator[TokenBatch]) -> Iterator[FeatureBatch]:
        """The stage. Where devices are GPUs, its thread works on streams of its own, the target's device being the current one."""
        streams = [torch.cuda.Stream(device) for device in dict.fromkeys((self._ring.device, self.device)) if device.type == "cuda"]  # type: ignore[no-untyped-call]
        for batch in batches:
            # Contexts are left before each yield: in a generator they would leak into whoever reads it.
            with torch.no_grad(), _using(streams):
                features = self._features(batch)
            for stream in streams:
                # The device is done before the batch is handed on: its reader needs no event, and the time busy is the device's.
                stream.synchronize()
            yield features

    def _features(self, batch: TokenBatch) -> FeatureBatch:
        slot, release = self._ring.take(batch.tokens)
        here = batch.to(self.device)
        if self._ring.device == self.device:
            self._run(here, slot)
        else:
            local = torch.empty_like(slot, device=self.device)
            self._run(here, local)
            slot.copy_(local, non_blocking=True)
        last_TD = slot[:, self._columns :] if self._keep_last else None
        return FeatureBatch(batch.to(self._ring.device), slot[:, : self._columns], release, last_TD)

    def _run(self, batch: TokenBatch, slot: torch.Tensor) -> None:
        with self._taps.into(slot):
            # Without a mask, transformers takes positions that start again for the borders of packed documents.
            out = self._body(input_ids=batch.token_T[None], position_ids=batch.position_T[None], use_cache=False)
        if self._keep_last:
            slot[:, self._columns :].copy_(out.last_hidden_state[0])


def borrow_weights(model: PreTrainedModel, device: torch.device) -> TargetWeights:
    """The target's embedding and head on the drafter's device."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return TargetWeights(embedding.detach().to(device), head.detach().to(device))


def _first_layers(model: PreTrainedModel, count: int) -> Any:
    """The decoder cut off after `count` layers, without its last norm; it shares all weights with `model`."""
    whole = model.get_decoder()
    body = copy.copy(whole)
    body.config = copy.deepcopy(whole.config)
    body.config.num_hidden_layers = count
    body._modules = dict(whole._modules)
    body._modules["layers"] = nn.ModuleList(whole.layers[:count])
    body._modules["norm"] = nn.Identity()
    return body.eval()


@contextmanager
def _using(streams: list[torch.cuda.Stream]) -> Iterator[None]:
    """Make each stream its device's current one.

    A copy between GPUs waits for the current streams of both: on the default ones it would wait for all the drafter's queued work.
    """
    with ExitStack() as stack:
        for stream in streams:
            stack.enter_context(torch.cuda.stream(stream))
        yield
