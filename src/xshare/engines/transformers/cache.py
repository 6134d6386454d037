"""A cache with room: a token more is written behind the others, where Transformers' own copies all there are."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

ROOM = 64  # positions, so that everything is copied once in so many steps


class RoomyLayer(DynamicLayer):
    """Keys and values [sequences, heads, cached, d] are views of buffers that are longer."""

    buffers: tuple[Tensor, Tensor] | None = None

    def put(self, keys: Tensor, values: Tensor) -> None:
        """Others in their place."""
        self.keys, self.values, self.buffers = keys, values, None

    def move(self, source: Tensor, to: Tensor, count: int) -> None:
        """Some sequences to other places, and only the first `count` places stay."""
        self.keys[to], self.values[to] = self.keys[source], self.values[source]
        self.keys, self.values = self.keys[:count], self.values[:count]
        if self.buffers is not None:
            self.buffers = self.buffers[0][:count], self.buffers[1][:count]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """New ones behind those that are cached -> all of them."""
        past, new = self.get_seq_length(), key_states.shape[-2]
        if past == 0:  # a prompt: how much will follow it is not known
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            self.put(key_states, value_states)
            return key_states, value_states
        if self.buffers is None or self.buffers[0].shape[-2] < past + new:
            self.buffers = roomy(self.keys, new + ROOM), roomy(self.values, new + ROOM)
        keys, values = (buffer[:, :, : past + new] for buffer in self.buffers)
        keys[:, :, past:], values[:, :, past:] = key_states, value_states
        self.keys, self.values = keys, values
        return keys, values


def roomy(states: Tensor, more: int) -> Tensor:
    sequences, heads, cached, d = states.shape
    buffer = states.new_empty(sequences, heads, cached + more, d)
    buffer[:, :, :cached] = states
    return buffer


def new_cache() -> Cache:
    """Without a configuration: layers with a sliding window keep all, too."""
    return Cache(layer_class_to_replicate=RoomyLayer)
