"""Keys and values of a batch whose rows come and go: caches in, one cache of chosen rows out.

Rows are aligned at their newest token, so that all of them write into the same column; what is left of a row's first token is
padding, which the attention mask hides. A layer with a sliding window keeps all columns too: the mask decides what it sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache, DynamicLayer

# Columns that are made at once: one more token then copies nothing, 63 times out of 64.
ROOM = 64


class Columns(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, [B, heads, T, head_dim], at the front of tensors that have room for tokens to come."""

    keys: Any
    values: Any

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the columns of new tokens; returns all columns."""
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        if start == 0:
            self._hold(_roomy([key_states], end), _roomy([value_states], end), end)
        else:
            if end > self._room[0].shape[2]:
                self._hold(_roomy([self.keys], start), _roomy([self.values], start), start)
            keys, values = self._room
            keys[:, :, start:end], values[:, :, start:end] = key_states, value_states
            self._hold(keys, values, end)
        return self.keys, self.values

    def take(self, parts: Sequence[tuple[Columns, torch.Tensor]], width: int) -> None:
        """Become the rows named of other layers, in `width` columns. The others are empty afterwards, which halves the peak."""
        keys = _roomy([layer.keys[rows] for layer, rows in parts], width)
        values = _roomy([layer.values[rows] for layer, rows in parts], width)
        self._hold(keys, values, width)
        for layer, _ in parts:
            layer.keys = layer.values = layer._room = None

    def _hold(self, keys: torch.Tensor, values: torch.Tensor, width: int) -> None:
        self._room: Any = (keys, values)
        self.keys, self.values = keys[:, :, :width], values[:, :, :width]
        self.is_initialized = True


def _roomy(parts: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """The parts' rows, each [.., heads, T, head_dim], one below the other: in `width` columns, from the right, and room behind."""
    _, heads, _, head_dim = parts[0].shape
    room = parts[0].new_zeros(sum(len(part) for part in parts), heads, width + ROOM, head_dim)
    at = 0
    for part in parts:
        columns = min(part.shape[2], width)
        room[at : at + len(part), :, width - columns : width] = part[:, :, part.shape[2] - columns :]
        at += len(part)
    return room


def empty_cache() -> Cache:
    """A cache without rows, for any model whose layers remember keys and values alone."""
    return Cache(layer_class_to_replicate=Columns)


def join(parts: Sequence[tuple[Cache, torch.Tensor]], width: int) -> Cache:
    """One cache of the rows named of each part, in `width` columns; the parts are empty afterwards."""
    joined = empty_cache()
    for layers in zip(*(cache.layers for cache, _ in parts), strict=True):
        layer = Columns()
        layer.take([(old, rows) for old, (_, rows) in zip(layers, parts, strict=True)], width)
        joined.layers.append(layer)
    return joined
