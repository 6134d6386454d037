"""A cache with spare room: a new token is appended in place, where Transformers' own cache copies everything."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

ROOM = 64  # spare positions: everything is copied once in so many steps


class RoomyLayer(DynamicLayer):
    """Keys and values [sequences, heads, cached, d] are views of longer buffers."""

    buffers: tuple[Tensor, Tensor] | None = None

    def put(self, keys: Tensor, values: Tensor) -> None:
        """Replace all keys and values."""
        self.keys, self.values, self.buffers = keys, values, None

    def move(self, source: Tensor, to: Tensor, count: int) -> None:
        """Move the sequences in rows `source` to rows `to`, and keep only the first `count` rows."""
        self.keys[to], self.values[to] = self.keys[source], self.values[source]
        self.keys, self.values = self.keys[:count], self.values[:count]
        if self.buffers is not None:
            self.buffers = self.buffers[0][:count], self.buffers[1][:count]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append new keys and values; returns all of them."""
        past, new = self.get_seq_length(), key_states.shape[-2]
        if past == 0:  # a prompt: how many tokens will follow is not known
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            self.put(key_states, value_states)
            return key_states, value_states
        if self.buffers is None or self.buffers[0].shape[-2] < past + new:
            self.buffers = with_room(self.keys, new + ROOM), with_room(self.values, new + ROOM)
        keys, values = (buffer[:, :, : past + new] for buffer in self.buffers)
        keys[:, :, past:], values[:, :, past:] = key_states, value_states
        self.keys, self.values = keys, values
        return keys, values


def with_room(states: Tensor, room: int) -> Tensor:
    sequences, heads, cached, d = states.shape
    buffer = states.new_empty(sequences, heads, cached + room, d)
    buffer[:, :, :cached] = states
    return buffer


def new_cache() -> Cache:
    """Without a configuration, so that layers with a sliding window keep everything too."""
    return Cache(layer_class_to_replicate=RoomyLayer)
