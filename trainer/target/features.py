"""Runs the frozen target over each batch and keeps the outputs of the tapped layers: the drafter's features.

The target runs without its head and stops after the deepest tapped layer, unless its last hidden state is needed too. Hooks write
each tapped layer's output straight into its columns of one tensor: a slot of a ring that is allocated at the start, so that memory
is bounded and nothing is allocated per batch.

Shapes: T tokens of a batch, V vocabulary, D hidden size, F = K x D features of K tapped layers.
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
    """The target's embedding and head, both [V, D], frozen, on the drafter's device: the drafter has none of its own."""

    embedding_VD: torch.Tensor
    head_VD: torch.Tensor


@dataclass(frozen=True, slots=True)
class FeatureBatch:
    """A batch and its features `feature_TF`, on the drafter's device. Columns are ordered layer by layer.

    `last_TD` is the hidden state after the target's last norm, which its head reads; None unless it is needed. `release()` returns
    the slot to the ring; the features must not be read after that.
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
    """Preallocated slots of [tokens, width] for features. There must be as many as can ever be in use at once."""

    def __init__(self, slots: int, tokens: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self._free: SimpleQueue[torch.Tensor] = SimpleQueue()
        for _ in range(slots):
            self._free.put(torch.empty(tokens, width, dtype=dtype, device=device))

    def take(self, tokens: int) -> tuple[torch.Tensor, Callable[[], None]]:
        """The first `tokens` rows of a free slot, and a function that returns it. Raises `RuntimeError` when no slot is free."""
        try:
            slot = self._free.get_nowait()
        except Empty:
            raise RuntimeError(
                "the feature ring has no free slot: it is smaller than the queue and the threads around it"
            ) from None
        return slot[:tokens], lambda: self._free.put(slot)


class Taps:
    """Forward hooks that write the outputs of chosen decoder layers into a tensor [T, F], layer by layer.

    Only within `into`, and only for the thread that entered it: other threads may run the same layers meanwhile.
    """

    def __init__(self, layers: nn.ModuleList, layer_ids: Sequence[int], width: int) -> None:
        self._output = threading.local()
        self._handles = [
            layers[layer].register_forward_hook(self._write_to(slice(number * width, (number + 1) * width)))
            for number, layer in enumerate(layer_ids)
        ]

    @contextmanager
    def into(self, feature_TF: torch.Tensor) -> Iterator[None]:
        """Write the outputs of this thread's next forward pass, over T tokens in one row, into `feature_TF`."""
        self._output.feature_TF = feature_TF
        try:
            yield
        finally:
            del self._output.feature_TF

    def remove(self) -> None:
        """Remove the hooks from the layers."""
        for handle in self._handles:
            handle.remove()

    def _write_to(self, columns: slice) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            feature_TF = getattr(self._output, "feature_TF", None)
            if feature_TF is not None:
                hidden_1TD = output[0] if isinstance(output, tuple) else output
                feature_TF[:, columns].copy_(hidden_1TD[0])

        return hook


class FeatureExtractor:
    """Extracts features with one copy of the frozen target on one device. `extract` may run on several threads at once.

    With `keep_last`, the last hidden state is kept beside the features; the ring's slots then need K x D + D columns.
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
        """The stage. On GPUs its thread uses CUDA streams of its own; the target's device is the current one."""
        streams = [torch.cuda.Stream(device) for device in dict.fromkeys((self._ring.device, self.device)) if device.type == "cuda"]  # type: ignore[no-untyped-call]
        for batch in batches:
            # Leave the contexts before each yield: a generator's contexts would stay active in the code that reads it.
            with torch.no_grad(), _using(streams):
                features = self._features(batch)
            for stream in streams:
                # Wait for the device here: the reader needs no event, and the stage's busy time includes the device's.
                stream.synchronize()
            yield features

    def _features(self, batch: TokenBatch) -> FeatureBatch:
        slot, release = self._ring.take(batch.tokens)
        local_batch = batch.to(self.device)
        if self._ring.device == self.device:
            self._run(local_batch, slot)
        else:
            local = torch.empty_like(slot, device=self.device)
            self._run(local_batch, local)
            slot.copy_(local, non_blocking=True)
        last_TD = slot[:, self._columns :] if self._keep_last else None
        return FeatureBatch(batch.to(self._ring.device), slot[:, : self._columns], release, last_TD)

    def _run(self, batch: TokenBatch, slot: torch.Tensor) -> None:
        with self._taps.into(slot):
            # Given no mask, transformers treats a position that starts again at 0 as the border between packed documents.
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
    """Make each stream the current one of its device.

    A copy between GPUs waits for the current streams of both; on the default streams, for all of the drafter's queued work.
    """
    with ExitStack() as stack:
        for stream in streams:
            stack.enter_context(torch.cuda.stream(stream))
        yield
