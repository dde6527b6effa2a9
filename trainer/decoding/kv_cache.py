"""KV cache for continuous batching: rows join and leave, left-padded to one width.

Rows end at their newest token, so that all of them write the next one into the same column; the columns before a row's first token
are padding, which the attention mask hides. Layers with a sliding window keep all columns too: the mask limits what they see.

Shapes: B rows, H heads, T columns (tokens), d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache, DynamicLayer

# Columns allocated ahead: appending a token then copies nothing, 63 times out of 64.
SPARE_COLUMNS = 64


class KVCacheLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, [B, H, T, d]: the front of larger tensors that have spare columns behind."""

    keys: Any
    values: Any

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the columns of new tokens; returns all columns."""
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        if start == 0:
            self._set(_allocate([key_states], end), _allocate([value_states], end), end)
        else:
            if end > self._allocated[0].shape[2]:
                self._set(_allocate([self.keys], start), _allocate([self.values], start), start)
            keys, values = self._allocated
            keys[:, :, start:end], values[:, :, start:end] = key_states, value_states
            self._set(keys, values, end)
        return self.keys, self.values

    def gather(self, parts: Sequence[tuple[KVCacheLayer, torch.Tensor]], width: int) -> None:
        """Become the given rows of other layers, in `width` columns. Empties the others, which halves the peak of memory."""
        keys = _allocate([layer.keys[rows] for layer, rows in parts], width)
        values = _allocate([layer.values[rows] for layer, rows in parts], width)
        self._set(keys, values, width)
        for layer, _ in parts:
            layer.keys = layer.values = layer._allocated = None

    def _set(self, keys: torch.Tensor, values: torch.Tensor, width: int) -> None:
        self._allocated: Any = (keys, values)
        self.keys, self.values = keys[:, :, :width], values[:, :, :width]
        self.is_initialized = True


def _allocate(parts: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """The rows of all parts, each [.., H, T, d], stacked and right-aligned in `width` columns, with spare columns behind."""
    _, heads, _, head_dim = parts[0].shape
    allocated = parts[0].new_zeros(sum(len(part) for part in parts), heads, width + SPARE_COLUMNS, head_dim)
    row = 0
    for part in parts:
        columns = min(part.shape[2], width)
        allocated[row : row + len(part), :, width - columns : width] = part[:, :, part.shape[2] - columns :]
        row += len(part)
    return allocated


def empty_cache() -> Cache:
    """A cache without rows, for any model whose layers cache only keys and values."""
    return Cache(layer_class_to_replicate=KVCacheLayer)


def join(parts: Sequence[tuple[Cache, torch.Tensor]], width: int) -> Cache:
    """One cache of the given rows of each part, in `width` columns. Empties the parts."""
    joined = empty_cache()
    for layers in zip(*(cache.layers for cache, _ in parts), strict=True):
        layer = KVCacheLayer()
        layer.gather([(old, rows) for old, (_, rows) in zip(layers, parts, strict=True)], width)
        joined.layers.append(layer)
    return joined
